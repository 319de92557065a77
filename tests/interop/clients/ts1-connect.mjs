// Connects with one of the releases of the TypeScript SDK 1.x in package.json, each chosen for the
// revision it speaks: 1.9 for 2024-11-05 (it has no Streamable HTTP yet), 1.11 for 2025-03-26, 1.17 for
// 2025-06-18, the newest for 2025-11-25.
import { must } from './check.mjs';

// `target` is a URL for Streamable HTTP, {sse: URL} for HTTP+SSE, or {command, args} for a child.
async function open(sdk, target) {
  const load = (file) => import(`${sdk}/client/${file}.js`);
  if (target.command) return new (await load('stdio')).StdioClientTransport(target);
  if (target.sse) return new (await load('sse')).SSEClientTransport(target.sse);
  return new (await load('streamableHttp')).StreamableHTTPClientTransport(target);
}

export async function connect(target, minor, prepare = () => {}, capabilities = {}) {
  const sdk = minor ? `ts1-${minor}` : 'ts1';
  const { Client } = await import(`${sdk}/client/index.js`);
  const types = await import(`${sdk}/types.js`);
  const client = new Client({ name: `interop-${sdk}`, version: '1.0.0' }, { capabilities });
  // 1.11 tells nobody what it negotiated, so look at the answer to initialize.
  let version;
  const request = client.request;
  client.request = async (...args) => {
    const result = await request.apply(client, args);
    if (args[0].method === 'initialize') version = result.protocolVersion;
    return result;
  };
  prepare(client, types);
  const transport = await open(sdk, target);
  await client.connect(transport);
  must(version === types.LATEST_PROTOCOL_VERSION, `negotiated ${version}, want ${types.LATEST_PROTOCOL_VERSION}`);
  return { client, transport, version, types };
}

// The adapter that check.mjs wants.
export const adapter = ({ client, version, types }) => ({
  version,
  list: (cursor) => client.listPrompts({ cursor }),
  get: (params) => client.getPrompt(params),
  complete: (params) => client.complete(params),
  errorCode: (error) => (error instanceof types.McpError ? error.code : undefined),
});
