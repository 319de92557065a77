// MCP TypeScript SDK 1.x over HTTP+SSE, the transport of 2024-11-05.
// usage: node sse_ts1.mjs URL expect.json [17|11|9]     (as ts1.mjs, and 1.9; URL is the stream's)
import { check, main } from './check.mjs';
import { adapter, connect } from './ts1-connect.mjs';

await main('sse ts1', async (url, expect, minor) => {
  const peer = await connect({ sse: url }, minor);
  const line = await check(adapter(peer), expect);
  await peer.client.close();
  return line;
});
