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
  if (!url || !file) {
    console.error(`usage: ${label} URL expect.json [mode]`);
    process.exit(2);
  }
  try {
    const line = await body(new URL(url), JSON.parse(readFileSync(file, 'utf8')), mode);
    console.log(`ok ${label}${mode ? `-${mode}` : ''} ${line}`);
    process.exit(0);
  } catch (error) {
    console.error(`FAIL ${label}${mode ? `-${mode}` : ''}: ${error?.message ?? error}`);
    process.exit(1);
  }
}
