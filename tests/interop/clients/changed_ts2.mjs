// MCP TypeScript SDK 2.x hears of a change.
// usage: node changed_ts2.mjs URL NAME legacy|modern
//   legacy  on the stream it opens by GET after initialize
//   modern  on a subscriptions/listen stream
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { main, standaloneStream } from './changed.mjs';
import { must } from './check.mjs';

const MODES = { legacy: 'legacy', modern: { pin: '2026-07-28' } };

await main('ts2', async (url, mode, heard) => {
  must(mode in MODES, `unknown mode ${mode}`);
  const client = new Client(
    { name: 'interop-ts2', version: '1.0.0' },
    { versionNegotiation: { mode: MODES[mode] } },
  );
  client.setNotificationHandler('notifications/prompts/list_changed', heard);
  const transport = new StreamableHTTPClientTransport(url);
  if (mode === 'legacy') {
    const up = standaloneStream();
    await client.connect(transport);
    await up;
  } else {
    await client.connect(transport);
    const { honoredFilter } = await client.listen({ promptsListChanged: true }); // up at its acknowledgement
    must(honoredFilter.promptsListChanged, `honoured: ${JSON.stringify(honoredFilter)}`);
  }
  return {
    list: () => client.listPrompts(), // all pages, and through the SDK's cache, which the change empties
    close: async () => {
      await transport.terminateSession(); // does nothing when there is no session
      await client.close();
    },
  };
});
