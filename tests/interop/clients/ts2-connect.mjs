// Connects with the TypeScript SDK 2.x in one of its modes:
//   legacy  the SDK's default: initialize handshake
//   modern  server/discover must offer 2026-07-28; no fallback
//   auto    server/discover, else fall back to initialize
import { Client, ProtocolError } from '@modelcontextprotocol/client';
import { must } from './check.mjs';

const MODES = { legacy: undefined, modern: { mode: { pin: '2026-07-28' } }, auto: { mode: 'auto' } };

export async function connect(transport, mode, prepare = () => {}, capabilities = {}) {
  must(mode in MODES, `unknown mode ${mode}`);
  const client = new Client(
    { name: 'interop-ts2', version: '1.0.0' },
    { capabilities, ...(MODES[mode] && { versionNegotiation: MODES[mode] }) },
  );
  prepare(client);
  await client.connect(transport);
  const era = client.getProtocolEra();
  must(mode === 'auto' || era === mode, `negotiated era ${era}, want ${mode}`);
  return client;
}

export const errorCode = (error) => (error instanceof ProtocolError ? error.code : undefined);

// The adapter that check.mjs wants.
export const adapter = (client) => ({
  version: client.getNegotiatedProtocolVersion(),
  // listPrompts() without a cursor walks every page itself; request() gets one.
  list: (cursor) => client.request({ method: 'prompts/list', params: cursor === undefined ? {} : { cursor } }),
  get: (params) => client.getPrompt(params),
  complete: (params) => client.complete(params),
  errorCode,
});
