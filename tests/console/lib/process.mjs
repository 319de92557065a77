// The end of a child process.
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';

/** Ends a process by SIGTERM. Fails, and kills it, unless it ends within a minute: the gateway gives its calls 30 s. */
export async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = once(child, 'exit');
  child.kill('SIGTERM');
  if (await Promise.race([ended, setTimeout(60_000, null, { ref: false })])) return;
  child.kill('SIGKILL');
  throw new Error(`${child.spawnargs.join(' ')}: still runs a minute after SIGTERM`);
}
