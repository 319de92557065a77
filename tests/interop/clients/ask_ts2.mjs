// MCP TypeScript SDK 2.x answers what a prompt asks.
// usage: node ask_ts2.mjs URL PROMPT LEAD legacy|modern     (LEAD may be empty)
//   legacy  asked by a request on the stream of the get
//   modern  asked by its result, which the SDK repeats with the answer; in both by the same handler
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { main } from './ask.mjs';
import { connect, errorCode } from './ts2-connect.mjs';

await main('ts2', async (url, mode, answer) => {
  let stray = 0;
  const prepare = (client) => {
    if (answer) client.setRequestHandler('elicitation/create', ({ params }) => answer(params));
    else client.fallbackRequestHandler = async () => (stray += 1, { action: 'cancel' });
  };
  const transport = new StreamableHTTPClientTransport(url);
  const client = await connect(transport, mode, prepare, answer && { elicitation: { form: {} } });
  return {
    get: (name) => client.getPrompt({ name }),
    stray: () => stray,
    errorCode,
    close: async () => {
      await transport.terminateSession(); // does nothing when there is no session
      await client.close();
    },
  };
});
