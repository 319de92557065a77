// What ten browsers on live pages cost the calls: node load.mjs [CALLS per second] [SECONDS of each round]
//
// Calls are sent at a fixed rate, without and with the browsers, in turn. Printed are the processor time of the gateway
// for each call and the 99th percentile of the time to an answer. Give 30 % of the highest rate of the machine
// (benches/README.md), and an optimised binary in PROMPTGATE.
import { readFileSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import { setTimeout } from 'node:timers/promises';

import { Person, close, launch } from './lib/browser.mjs';
import { Connection } from './lib/connection.mjs';
import { Showcase } from './lib/showcase.mjs';

const rate = Number(process.argv[2] ?? 300);
const seconds = Number(process.argv[3] ?? 20);
const ROUNDS = 5;
const CONNECTIONS = 64;
const TICK = 1; // milliseconds
/** The pages that follow what happens. */
const LIVE = ['/', '/upstreams', '/upstreams/library', '/approvals', '/usage', '/usage?by=caller', '/audit', '/audit?caller=ada@example.com', '/audit?outcome=denied', '/'];
const TICKS_PER_SECOND = 100; // of /proc, on Linux

/** The processor time that a process has used, in milliseconds. */
function spent(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return ((Number(fields[11]) + Number(fields[12])) * 1000) / TICKS_PER_SECOND;
}

/** Opens a connection whose calls are those of this caller; the ids of one session differ. */
function open(stage, caller, id) {
  const params = { name: 'library__review-code', arguments: { code: 'a patch' } };
  return Connection.open(stage.mcp, caller.headers, { jsonrpc: '2.0', id, method: 'prompts/get', params });
}

/**
 * Calls at the rate; returns processor milliseconds of the gateway for each call, and the 99th percentile. The
 * connections take turns, and live for one round: the gateway closes idle ones.
 */
async function round(stage, caller) {
  const connections = await Promise.all(Array.from({ length: CONNECTIONS }, (_, id) => open(stage, caller, id)));
  const free = [...connections];
  const [begin, before] = [performance.now(), spent(stage.process.pid)];
  const due = [];
  for (let sent = 0; performance.now() - begin < seconds * 1000; await setTimeout(TICK)) {
    for (; sent < ((performance.now() - begin) * rate) / 1000; sent++) due.push(begin + (sent * 1000) / rate);
    while (due.length && free.length) {
      const connection = free.shift();
      connection.send(due.shift()).then(() => free.push(connection));
    }
  }
  while (free.length < connections.length) await setTimeout(TICK);
  for (const connection of connections) connection.close();
  const times = connections.flatMap((connection) => connection.times).sort((one, other) => one - other);
  const failures = connections.reduce((sum, connection) => sum + connection.failures, 0);
  if (failures) throw new Error(`${failures} calls failed`);
  const cpu = (spent(stage.process.pid) - before) / times.length;
  return { calls: times.length, cpu, p50: times[times.length >> 1], p99: times[Math.floor(times.length * 0.99)] };
}

async function visit(browser, stage) {
  const first = await (await Person.arrive(browser, stage)).signIn();
  const cookies = await first.context.storageState();
  const arrive = async (path) => {
    const person = await Person.arrive(browser, stage, { cookies });
    await person.open(path);
    return person;
  };
  return [first, ...(await Promise.all(LIVE.map(arrive)))];
}

const median = (of) => of.toSorted((one, other) => one - other)[of.length >> 1];

async function main() {
  const [stage, browser] = await Promise.all([Showcase.start(), launch()]);
  const found = { without: [], with: [] };
  try {
    const caller = await stage.caller('ada@example.com');
    await round(stage, caller); // warms up
    for (let go = 0; go < ROUNDS; go++) {
      found.without.push(await round(stage, caller));
      const people = await visit(browser, stage);
      found.with.push(await round(stage, caller));
      for (const person of people) await person.leave();
    }
  } finally {
    await close(browser);
    await stage.stop();
  }
  for (const [what, rounds] of Object.entries(found)) {
    for (const { calls, cpu, p50, p99 } of rounds) {
      console.log(`${what.padEnd(8)} ${calls} calls, ${cpu.toFixed(3)} ms of processor each, median ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms`);
    }
  }
  const cpu = (rounds) => median(rounds.map((one) => one.cpu));
  console.log(`processor per call with browsers: ${(cpu(found.with) / cpu(found.without)).toFixed(3)} × that without, at ${rate} calls/s`);
}

await main();
