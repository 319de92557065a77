// Calls prompts as tools in both forms, and a tool of the everything server, with the official TypeScript SDK, 1.x or
// 2.x.
//   node tools.mjs URL TOOLS_URL legacy|modern ts1|ts2
const [url, toolsUrl, mode, sdk] = process.argv.slice(2);
const clients = new URL('../interop/clients/', import.meta.url);

async function open(address) {
  const at = new URL(address);
  if (sdk === 'ts1') return (await (await import(new URL('ts1-connect.mjs', clients))).connect(at)).client;
  const { connect } = await import(new URL('ts2-connect.mjs', clients));
  const { createRequire } = await import('node:module');
  const require = createRequire(new URL('ts2.mjs', clients));
  const { StreamableHTTPClientTransport } = await import(require.resolve('@modelcontextprotocol/client'));
  return connect(new StreamableHTTPClientTransport(at), mode);
}

function must(condition, message) {
  if (!condition) throw new Error(message);
}

const names = (list) => list.map(({ name }) => name);
const texts = ({ content }) => content.map((block) => block.text ?? block.type).join('\n');

const pair = await open(`${url}/pair`);
const listed = names((await pair.listTools()).tools);
must(`${listed}` === 'find_prompt,use_prompt', `tools: ${listed}`);
const found = await pair.callTool({ name: 'find_prompt', arguments: { query: 'review code' } });
must(found.structuredContent.prompts[0].name === 'library__review-code', texts(found));
const args = { name: 'library__review-code', arguments: { code: 'let x' } };
const used = await pair.callTool({ name: 'use_prompt', arguments: args });
must(texts(used).startsWith('[user]\n') && texts(used).includes('let x'), texts(used));
const unknown = await pair.callTool({ name: 'use_prompt', arguments: { name: 'none' } });
must(unknown.isError === true, texts(unknown));
await pair.close();

const each = await open(`${url}/each`);
const tool = (await each.listTools()).tools.find(({ name }) => name === 'library__review-code');
must(tool.inputSchema.properties.focus.enum.includes('security'), JSON.stringify(tool));
const result = await each.callTool({ name: 'library__review-code', arguments: { code: 'let y' } });
must(texts(result).includes('let y'), texts(result));
await each.close();

const everything = await open(toolsUrl);
const echo = await everything.callTool({ name: 'echo', arguments: { message: 'hello' } });
must(texts(echo) === 'Echo: hello', texts(echo));
await everything.close();
console.log(`${sdk} ${mode}: ok`);
