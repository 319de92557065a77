// "Sees what is approved": what every TypeScript client does while that changes.
//
// main(label, connect): argv URL STEPS [mode], with the steps of approvals.py. `connect(url, mode, heard)` connects,
// has `heard` called at each notifications/prompts/list_changed, waits until the subscription is up, and returns the
// peer that check.mjs wants (its list() asks the gateway, not a cache), with close().
// Prints `seen N` once step N is seen.
import { readFileSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import { check, must } from './check.mjs';

const PATIENCE = 30_000; // for one step
const POLL = 200; // between two looks at what no notification tells of

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// What the expectations say of a prompt, in the order of their members.
const shown = ({ name, title, description, arguments: args, _meta }) => ({
  name,
  title: title ?? null,
  description,
  arguments: (args ?? []).map((argument) => [argument.name, argument.required ?? false]),
  choices: _meta?.choices ?? null,
});

// The checks of check.mjs, of what is shown and of the reasons of errors.
async function look(peer, expect) {
  const prompts = [];
  const reasons = [];
  await check(
    {
      ...peer,
      list: async (cursor) => {
        const page = await peer.list(cursor);
        prompts.push(...page.prompts);
        return page;
      },
      get: async (params) => {
        try {
          return await peer.get(params);
        } catch (error) {
          reasons.push(error?.data?.reason);
          throw error;
        }
      },
    },
    expect,
  );
  const [got, want] = [prompts.map(shown), expect.prompts];
  must(same(got, want), `prompts: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  const wanted = expect.errors.map(({ reason }) => reason);
  must(same(reasons, wanted), `reasons: got ${JSON.stringify(reasons)}, want ${JSON.stringify(wanted)}`);
}

export async function main(label, connect) {
  const [url, file, mode] = process.argv.slice(2);
  const who = `approvals ${label}${mode ? `-${mode}` : ''}`;
  const fail = (message) => {
    console.error(`FAIL ${who}: ${message}`);
    process.exit(1);
  };
  if (!url || !file) fail('usage: URL STEPS [mode]');
  const steps = JSON.parse(readFileSync(file, 'utf8'));

  let count = 0;
  let wake = () => {};
  let number = 0;
  let problem = 'nothing';
  const timer = setTimeout(() => {
    fail(`step ${number}: not seen within ${PATIENCE / 1000} s; ${count} notifications; at last: ${problem}`);
  }, PATIENCE);
  try {
    const peer = await connect(new URL(url), mode, () => {
      count += 1;
      wake();
    });
    let before = 0;
    for (const expect of steps) {
      for (let isSeen = false; !isSeen; ) {
        if (expect.heard) {
          if (before === count) await new Promise((resolve) => (wake = resolve));
          before = count;
        }
        try {
          await look(peer, expect);
          isSeen = true;
        } catch (error) {
          problem = error?.message ?? error;
          if (!expect.heard) await pause(POLL);
        }
      }
      before = count;
      timer.refresh();
      console.log(`seen ${number}`); // which brings the next change
      number += 1;
      problem = 'nothing';
    }
    const due = steps.filter((expect) => expect.heard).length;
    if (count !== due) fail(`${count} notifications, where ${due} changes can be seen`);
    await peer.close();
    console.log(`ok ${who} ${peer.version} steps=${steps.length} notifications=${count}`);
    process.exit(0);
  } catch (error) {
    fail(error?.message ?? error);
  }
}
