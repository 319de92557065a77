// The checks every TypeScript client runs, over a small adapter:
//   version                                 negotiated protocol version
//   list(cursor) -> {prompts, nextCursor}   ONE page of prompts/list
//   get({name, arguments}) -> result
//   complete(params) -> result
//   errorCode(thrown) -> number | undefined (JSON-RPC code of a protocol error)
import { readFileSync } from 'node:fs';

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export function must(condition, message) {
  if (!condition) throw new Error(message);
}

export async function check(peer, expect) {
  const names = [];
  const seen = new Set();
  let cursor;
  let pages = 0;
  do {
    const page = await peer.list(cursor);
    pages += 1;
    names.push(...page.prompts.map((p) => p.name));
    cursor = page.nextCursor;
    must(cursor === undefined || !seen.has(cursor), `prompts/list repeats the cursor ${cursor}`);
    seen.add(cursor);
  } while (cursor !== undefined);
  console.log(`pages: ${pages}`);

  if (expect.names) {
    const [got, want] = [[...names].sort(), [...expect.names].sort()];
    must(same(got, want), `names: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  }
  must(pages >= (expect.minPages ?? 1), `pages: got ${pages}, want at least ${expect.minPages}`);

  for (const { name, arguments: args, contains = [], messages } of expect.gets ?? []) {
    const result = await peer.get({ name, arguments: args });
    const text = JSON.stringify(result);
    for (const part of contains) must(text.includes(part), `get ${name}: ${JSON.stringify(part)} not in ${text}`);
    const count = result.messages.length;
    must(messages === undefined || count === messages, `get ${name}: ${count} messages, want ${messages}`);
  }

  for (const { name, argument, value, values, context } of expect.completions ?? []) {
    const { completion } = await peer.complete({
      ref: { type: 'ref/prompt', name },
      argument: { name: argument, value },
      ...(context && { context: { arguments: context } }),
    });
    const got = JSON.stringify(completion.values);
    must(same(completion.values, values), `complete ${name}.${argument}=${JSON.stringify(value)}: got ${got}, want ${JSON.stringify(values)}`);
  }

  for (const { name, arguments: args, code } of expect.errors ?? []) {
    let got = 'no error';
    try {
      await peer.get({ name, arguments: args });
    } catch (error) {
      got = peer.errorCode(error) ?? `a non-protocol error (${error})`;
    }
    must(got === code, `error ${name}: got ${got}, want ${code}`);
  }

  const n = (key) => expect[key]?.length ?? 0;
  return `${peer.version} prompts=${names.length} pages=${pages} gets=${n('gets')} completions=${n('completions')} errors=${n('errors')}`;
}

// argv: URL expect.json [mode]. Runs `body(url, expect, mode)`, prints one line, sets the exit code.
export async function main(label, body) {
  const [url, file, mode] = process.argv.slice(2);
  if (!url || !file) usage(`${label} URL expect.json [mode]`);
  await run(label, mode, file, (expect) => body(new URL(url), expect, mode));
}

// argv: expect.json [mode] -- COMMAND ARGS... The same with `body({command, args}, expect, mode)`.
export async function mainStdio(label, body) {
  const dashes = process.argv.indexOf('--');
  const [file, mode] = process.argv.slice(2, dashes);
  const [command, ...args] = process.argv.slice(dashes + 1);
  if (dashes < 3 || !command) usage(`${label} expect.json [mode] -- COMMAND ARGS...`);
  await run(label, mode, file, (expect) => body({ command, args }, expect, mode));
}

function usage(text) {
  console.error(`usage: ${text}`);
  process.exit(2);
}

async function run(label, mode, file, body) {
  try {
    const line = await body(JSON.parse(readFileSync(file, 'utf8')));
    console.log(`ok ${label}${mode ? `-${mode}` : ''} ${line}`);
    process.exit(0);
  } catch (error) {
    console.error(`FAIL ${label}${mode ? `-${mode}` : ''}: ${error?.message ?? error}`);
    process.exit(1);
  }
}

// Closes the input of a server that is a child, which the SDKs kill if it has not ended by itself in
// GRACE. (Those of 1.x before the newest send SIGTERM at once instead, and do not wait.)
const GRACE = 2_000;
export async function closeStdio(client, errors) {
  must(errors.length === 0, `what is no message came on the server's output: ${errors.join('; ')}`);
  const start = Date.now();
  await client.close();
  must(Date.now() - start < GRACE, 'the server did not end when its input did');
}
