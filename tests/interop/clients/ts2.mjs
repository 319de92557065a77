// MCP TypeScript SDK 2.x over Streamable HTTP.
// usage: node ts2.mjs URL expect.json [legacy|modern|auto]
//   legacy  the SDK's default: initialize handshake
//   modern  server/discover must offer 2026-07-28; no fallback
//   auto    server/discover, else fall back to initialize
import { Client, ProtocolError, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { check, main, must } from './check.mjs';

const MODES = { legacy: undefined, modern: { mode: { pin: '2026-07-28' } }, auto: { mode: 'auto' } };

await main('ts2', async (url, expect, mode = 'legacy') => {
  must(mode in MODES, `unknown mode ${mode}`);
  const client = new Client(
    { name: 'interop-ts2', version: '1.0.0' },
    MODES[mode] && { versionNegotiation: MODES[mode] },
  );
  const transport = new StreamableHTTPClientTransport(url);
  await client.connect(transport);
  const era = client.getProtocolEra();
  must(mode === 'auto' || era === mode, `negotiated era ${era}, want ${mode}`);
  const line = await check(
    {
      version: client.getNegotiatedProtocolVersion(),
      // listPrompts() without a cursor walks every page itself; request() gets one.
      list: (cursor) => client.request({ method: 'prompts/list', params: cursor === undefined ? {} : { cursor } }),
      get: (params) => client.getPrompt(params),
      complete: (params) => client.complete(params),
      errorCode: (error) => (error instanceof ProtocolError ? error.code : undefined),
    },
    expect,
  );
  await transport.terminateSession(); // does nothing when there is no session
  await client.close();
  return line;
});
