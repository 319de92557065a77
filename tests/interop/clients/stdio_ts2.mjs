// MCP TypeScript SDK 2.x with the server as its child.
// usage: node stdio_ts2.mjs expect.json [legacy|modern|auto] -- COMMAND ARGS...     (see ts2-connect.mjs)
//   auto probes a child of its own, which it ends before it starts the one it uses
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { check, closeStdio, mainStdio } from './check.mjs';
import { adapter, connect } from './ts2-connect.mjs';

await mainStdio('stdio ts2', async (child, expect, mode = 'legacy') => {
  const errors = []; // the SDK passes over what it cannot read (and in silence over what is not JSON)
  const note = (client) => (client.onerror = (error) => errors.push(error));
  const client = await connect(new StdioClientTransport(child), mode, note);
  const line = await check(adapter(client), expect);
  await closeStdio(client, errors);
  return line;
});
