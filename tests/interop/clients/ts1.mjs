// MCP TypeScript SDK 1.x over Streamable HTTP (initialize handshake).
// usage: node ts1.mjs URL expect.json [17|11]     (1.17, 1.11; without, the newest 1.x)
import { check, main } from './check.mjs';
import { adapter, connect } from './ts1-connect.mjs';

await main('ts1', async (url, expect, minor) => {
  const peer = await connect(url, minor);
  const line = await check(adapter(peer), expect);
  await peer.transport.terminateSession();
  await peer.client.close();
  return line;
});
