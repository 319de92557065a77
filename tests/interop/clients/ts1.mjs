// MCP TypeScript SDK 1.x over Streamable HTTP (initialize handshake).
// usage: node ts1.mjs URL expect.json
import { Client } from 'ts1/client/index.js';
import { StreamableHTTPClientTransport } from 'ts1/client/streamableHttp.js';
import { McpError } from 'ts1/types.js';
import { check, main } from './check.mjs';

await main('ts1', async (url, expect) => {
  const client = new Client({ name: 'interop-ts1', version: '1.0.0' });
  const transport = new StreamableHTTPClientTransport(url);
  await client.connect(transport);
  const line = await check(
    {
      version: transport.protocolVersion,
      list: (cursor) => client.listPrompts({ cursor }),
      get: (params) => client.getPrompt(params),
      complete: (params) => client.complete(params),
      errorCode: (error) => (error instanceof McpError ? error.code : undefined),
    },
    expect,
  );
  await transport.terminateSession();
  await client.close();
  return line;
});
