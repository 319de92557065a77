// Connects with one of the releases of the TypeScript SDK 1.x in package.json, each chosen for the
// revision it speaks: 1.11 for 2025-03-26, 1.17 for 2025-06-18, the newest for 2025-11-25.
import { must } from './check.mjs';

export async function connect(url, minor, prepare = () => {}) {
  const sdk = minor ? `ts1-${minor}` : 'ts1';
  const { Client } = await import(`${sdk}/client/index.js`);
  const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);
  const types = await import(`${sdk}/types.js`);
  const client = new Client({ name: `interop-${sdk}`, version: '1.0.0' });
  // 1.11 tells nobody what it negotiated, so look at the answer to initialize.
  let version;
  const request = client.request;
  client.request = async (...args) => {
    const result = await request.apply(client, args);
    if (args[0].method === 'initialize') version = result.protocolVersion;
    return result;
  };
  prepare(client, types);
  const transport = new StreamableHTTPClientTransport(url);
  await client.connect(transport);
  must(version === types.LATEST_PROTOCOL_VERSION, `negotiated ${version}, want ${types.LATEST_PROTOCOL_VERSION}`);
  return { client, transport, version, types };
}
