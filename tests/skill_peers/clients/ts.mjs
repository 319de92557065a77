// The TypeScript SDK as a host of skills.
// usage: node ts.mjs URL EXPECT.json legacy|modern     all that the file expects
//        node ts.mjs URL SKILL changed                 see `change`
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';

const INVALID_PARAMS = -32602;
const [url, given, mode] = process.argv.slice(2);
const versionNegotiation = mode === 'legacy' ? undefined : { mode: { pin: '2026-07-28' } };
const client = new Client({ name: 'skill-host', version: '1.0.0' }, { versionNegotiation });
const skills = new SkillsClient(client);

const code = (error) => (error instanceof ProtocolError ? error.code : `${error.name}: ${error.message}`);
const refused = (call) => call.then(() => 'no error', code);
const digests = (skill) => Object.fromEntries(skill.resources.map(({ uri, digest }) => [uri, digest]));

async function check(expect) {
  const found = mode === 'modern' ? await checkSkills(expect) : await hasNone();
  const prompts = await checkPrompts(expect.prompts[mode]);
  for (const { name, arguments: given, isError = false, contains } of expect.tools) {
    const result = await client.callTool({ name, arguments: given });
    assert.equal(result.isError ?? false, isError, name);
    includes(result, contains);
  }
  return `${found}, ${prompts} prompts, ${expect.tools.length} tool calls`;
}

async function hasNone() {
  assert.equal(skills.supported, false);
  assert.deepEqual((await skills.list()).skills, []);
  return 'no skills declared';
}

async function checkSkills(expect) {
  assert.ok(skills.supported && skills.directoryRead);
  const listed = [];
  let pages = 0;
  let cursor = '';
  // Without a cursor it walks every page by itself.
  const all = (await skills.list()).skills;
  for (let page; page === undefined || page.nextCursor !== undefined; cursor = page.nextCursor) {
    page = await client.request({ method: 'skills/list', params: pages === 0 ? {} : { cursor } }, anyResult);
    listed.push(...page.skills);
    pages += 1;
  }
  assert.deepEqual(all, listed);
  assert.deepEqual(all.map(({ uri }) => uri).sort(), Object.keys(expect.skills).sort());
  assert.ok(pages >= expect.pages, `${pages} pages`);
  let read = 0;
  for (const skill of all) {
    assert.deepEqual((await skills.get(skill.uri)).skill, skill);
    assert.deepEqual(digests(skill), expect.skills[skill.uri]);
    for (const { uri } of skill.resources) {
      assert.equal((await skills.read(skill, uri)).verified, true);
      read += 1;
    }
  }
  for (const uri of expect.refused) {
    assert.equal(await refused(skills.get(uri)), INVALID_PARAMS, uri);
    assert.equal(await refused(client.readResource({ uri })), INVALID_PARAMS, uri);
  }
  const folders = Object.entries(expect.folders);
  for (const [folder, children] of folders) {
    const { resources } = await skills.readDirectory(folder);
    assert.deepEqual(resources.map(({ uri }) => uri).sort(), [...children].sort());
  }
  return `${all.length} skills on ${pages} pages, ${read} files, ${folders.length} folders`;
}

// The client checks a result of an extension by a schema that is given.
const anyResult = { '~standard': { version: 1, vendor: 'test', validate: (value) => ({ value }) } };

// Gets each prompt, and reads what it links to.
async function checkPrompts(prompts) {
  for (const { name, arguments: given, code: refusal, contains } of prompts) {
    const got = client.getPrompt({ name, arguments: given });
    if (refusal !== undefined) {
      assert.equal(await refused(got), refusal, name);
      continue;
    }
    const result = await got;
    includes(result, contains);
    for (const { content } of result.messages.filter(({ content }) => content.type === 'resource_link')) {
      const { contents } = await client.readResource({ uri: content.uri });
      const [{ text, blob }] = contents;
      assert.equal(Buffer.from(text ?? blob, text === undefined ? 'base64' : 'utf8').length, content.size);
    }
  }
  return prompts.length;
}

function includes(result, parts) {
  const text = JSON.stringify(result);
  // As it stands within JSON, without the quotation marks.
  for (const part of parts ?? []) assert.ok(text.includes(JSON.stringify(part).slice(1, -1)), `${part} is not in ${text}`);
}

// A file changes at the server while the client holds its entry: "ready" on one side, a line on the
// other. The file is refused, and then there is another entry, whose file is right.
async function change(uri) {
  const notes = (skill) => skill.resources.find((file) => file.uri.endsWith('/notes.md'));
  const { skill: held } = await skills.get(uri);
  console.log('ready');
  await once(process.stdin, 'data');
  process.stdin.destroy();
  const error = await refused(skills.read(held, notes(held).uri));
  assert.equal(typeof error, 'number', error);
  for (;;) {
    const { skill } = await skills.get(uri);
    if (notes(skill).digest !== notes(held).digest) {
      assert.equal((await skills.read(skill, notes(skill).uri)).verified, true);
      return `${notes(held).uri} refused with ${error}, then served by a new entry`;
    }
    await setTimeout(100);
  }
}

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const done = mode === 'changed' ? await change(given) : await check(JSON.parse(readFileSync(given, 'utf8')));
console.log(`ok ts ${mode}: ${done}`);
await client.close();
