// MCP TypeScript SDK 2.x, whose caller has to sign in.
// usage: node sign_in_ts2.mjs URL KEY PROMPT legacy|modern elicits|plain
//
// Prints and reads the lines that sign_in.py describes.
import { createInterface } from 'node:readline';
import { StreamableHTTPClientTransport, UrlElicitationRequiredError } from '@modelcontextprotocol/client';
import { must } from './check.mjs';
import { connect } from './ts2-connect.mjs';

const [url, key, prompt, mode, elicits] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function tell(asked) {
  console.log(JSON.stringify(asked));
  must((await lines.next()).value === 'signed in', 'nobody has signed in');
}

async function get(client) {
  try {
    return await client.getPrompt({ name: prompt });
  } catch (error) {
    const { code, message, data } = error;
    const page = error instanceof UrlElicitationRequiredError ? error.elicitations[0] : { url: data.url, message };
    await tell({ code, url: page.url, message: page.message });
    return client.getPrompt({ name: prompt });
  }
}

const visit = async ({ params }) => {
  await tell({ url: params.url, message: params.message });
  return { action: 'accept' };
};
const prepare = (client) => elicits === 'elicits' && client.setRequestHandler('elicitation/create', visit);
const capabilities = elicits === 'elicits' ? { elicitation: { url: {} } } : {};
const requestInit = { headers: { Authorization: `Bearer ${key}` } };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
const client = await connect(transport, mode, prepare, capabilities);
const { messages } = await get(client);
console.log(JSON.stringify({ got: messages.map(({ content }) => content.text) }));
await client.close();
process.exit(0);
