// MCP TypeScript SDK 1.x answers what a prompt asks.
// usage: node ask_ts1.mjs URL PROMPT [LEAD [17]]     (as ts1.mjs; 1.11 cannot be asked)
import { main } from './ask.mjs';
import { connect } from './ts1-connect.mjs';

await main('ts1', async (url, minor, answer) => {
  let stray = 0;
  const prepare = (client, { ElicitRequestSchema }) => {
    if (answer) client.setRequestHandler(ElicitRequestSchema, ({ params }) => answer(params));
    else client.fallbackRequestHandler = async () => (stray += 1, { action: 'cancel' });
  };
  const elicitation = minor ? {} : { form: {} }; // since 2025-11-25 it names the modes
  const { client, transport, types } = await connect(url, minor, prepare, answer && { elicitation });
  return {
    get: (name) => client.getPrompt({ name }),
    stray: () => stray,
    errorCode: (error) => (error instanceof types.McpError ? error.code : undefined),
    close: async () => {
      await transport.terminateSession();
      await client.close();
    },
  };
});
