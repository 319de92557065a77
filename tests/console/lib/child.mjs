// A scripted upstream over stdio: writes the lines of its arguments to standard error, and offers one prompt.
import { createInterface } from 'node:readline';

const RESULTS = {
  initialize: {
    protocolVersion: '2025-11-25',
    serverInfo: { name: 'child', version: '1' },
    capabilities: { prompts: {} },
  },
  'prompts/list': { prompts: [{ name: 'hello', description: 'A prompt of a child process.' }] },
  'prompts/get': { messages: [{ role: 'user', content: { type: 'text', text: 'Hello.' } }] },
  ping: {},
};

for (const line of process.argv.slice(2)) console.error(line);
for await (const line of createInterface({ input: process.stdin })) {
  const { id, method } = JSON.parse(line);
  if (id === undefined) continue;
  const result = RESULTS[method];
  const answer = result ? { result } : { error: { code: -32601, message: `unknown method ${method}` } };
  console.log(JSON.stringify({ jsonrpc: '2.0', id, ...answer }));
}
