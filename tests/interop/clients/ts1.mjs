// MCP TypeScript SDK 1.x over Streamable HTTP (initialize handshake).
// usage: node ts1.mjs URL expect.json [17|11]     (1.17, 1.11; without, the newest 1.x)
import { check, main } from './check.mjs';
import { connect } from './ts1-connect.mjs';

await main('ts1', async (url, expect, minor) => {
  const { client, transport, version, types } = await connect(url, minor);
  const line = await check(
    {
      version,
      list: (cursor) => client.listPrompts({ cursor }),
      get: (params) => client.getPrompt(params),
      complete: (params) => client.complete(params),
      errorCode: (error) => (error instanceof types.McpError ? error.code : undefined),
    },
    expect,
  );
  await transport.terminateSession();
  await client.close();
  return line;
});
