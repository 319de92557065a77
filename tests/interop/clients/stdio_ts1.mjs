// MCP TypeScript SDK 1.x with the server as its child.
// usage: node stdio_ts1.mjs expect.json [17|11|9] -- COMMAND ARGS...     (as sse_ts1.mjs)
import { check, closeStdio, mainStdio } from './check.mjs';
import { adapter, connect } from './ts1-connect.mjs';

await mainStdio('stdio ts1', async (child, expect, minor) => {
  const errors = []; // the SDK passes over what it cannot read
  const peer = await connect(child, minor, (client) => (client.onerror = (error) => errors.push(error)));
  const line = await check(adapter(peer), expect);
  await closeStdio(peer.client, errors);
  return line;
});
