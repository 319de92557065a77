// MCP TypeScript SDK 2.x sees what is approved.
// usage: node approvals_ts2.mjs URL STEPS legacy|modern     (as changed_ts2.mjs)
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { standaloneStream } from './changed.mjs';
import { must } from './check.mjs';
import { main } from './approvals.mjs';
import { adapter, connect } from './ts2-connect.mjs';

await main('ts2', async (url, mode, heard) => {
  const transport = new StreamableHTTPClientTransport(url);
  const up = mode === 'legacy' && standaloneStream();
  const client = await connect(transport, mode, (client) =>
    client.setNotificationHandler('notifications/prompts/list_changed', heard),
  );
  if (up) {
    await up;
  } else {
    const { honoredFilter } = await client.listen({ promptsListChanged: true }); // up at its acknowledgement
    must(honoredFilter.promptsListChanged, `honoured: ${JSON.stringify(honoredFilter)}`);
  }
  return {
    ...adapter(client),
    close: async () => {
      await transport.terminateSession(); // does nothing when there is no session
      await client.close();
    },
  };
});
