// MCP TypeScript SDK 2.x over Streamable HTTP.
// usage: node ts2.mjs URL expect.json [legacy|modern|auto]     (see ts2-connect.mjs)
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { check, main } from './check.mjs';
import { adapter, connect } from './ts2-connect.mjs';

await main('ts2', async (url, expect, mode = 'legacy') => {
  const transport = new StreamableHTTPClientTransport(url);
  const client = await connect(transport, mode);
  const line = await check(adapter(client), expect);
  await transport.terminateSession(); // does nothing when there is no session
  await client.close();
  return line;
});
