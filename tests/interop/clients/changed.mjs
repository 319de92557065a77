// "Hears of a change": what every TypeScript client does with its subscription.
//
// main(label, connect): argv URL NAME [mode]. `connect(url, mode, heard)` connects, has `heard`
// called at each notifications/prompts/list_changed, waits until the subscription is up, and returns
//   list(cursor) -> {prompts, nextCursor}
//   close()
// Prints `ready` once a change would be heard, and succeeds when NAME, not listed before, is listed
// after a notification.
import { must } from './check.mjs';

const PATIENCE = 30_000;

// Settles once the stream of a legacy session, on which its server notifies, is open: the SDKs open
// it by themselves after initialize and tell nobody when it is. Call this before connecting.
export function standaloneStream() {
  const fetch = globalThis.fetch;
  return new Promise((resolve, reject) => {
    globalThis.fetch = async (url, init) => {
      const response = await fetch(url, init);
      if (init?.method === 'GET') {
        response.ok ? resolve() : reject(new Error(`GET stream: HTTP ${response.status}`));
      }
      return response;
    };
  });
}

async function names(list) {
  const found = [];
  let cursor;
  do {
    const page = await list(cursor);
    found.push(...page.prompts.map((prompt) => prompt.name));
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

export async function main(label, connect) {
  const [url, name, mode] = process.argv.slice(2);
  const who = `changed ${label}${mode ? `-${mode}` : ''}`;
  const fail = (message) => {
    console.error(`FAIL ${who}: ${message}`);
    process.exit(1);
  };
  if (!url || !name) fail('usage: URL NAME [mode]');

  let count = 0;
  let wake = () => {};
  setTimeout(() => fail(`no ${name} within ${PATIENCE / 1000} s; ${count} notifications`), PATIENCE);
  try {
    const peer = await connect(new URL(url), mode, () => {
      count += 1;
      wake();
    });
    must(!(await names(peer.list)).includes(name), `${name} is listed before the change`);
    console.log('ready');
    for (let seen = 0, there = false; !there; ) {
      if (seen === count) await new Promise((resolve) => (wake = resolve));
      seen = count;
      there = (await names(peer.list)).includes(name);
    }
    await peer.close();
    console.log(`ok ${who} notifications=${count}`);
    process.exit(0);
  } catch (error) {
    fail(error?.message ?? error);
  }
}
