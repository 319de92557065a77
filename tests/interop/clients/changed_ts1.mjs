// MCP TypeScript SDK 1.x hears of a change.
// usage: node changed_ts1.mjs URL NAME [17|11]     (as ts1.mjs)
import { main, standaloneStream } from './changed.mjs';
import { connect } from './ts1-connect.mjs';

await main('ts1', async (url, minor, heard) => {
  const up = standaloneStream();
  const { client, transport } = await connect(url, minor, (client, types) =>
    client.setNotificationHandler(types.PromptListChangedNotificationSchema, heard),
  );
  await up;
  return {
    list: (cursor) => client.listPrompts({ cursor }),
    close: async () => {
      await transport.terminateSession();
      await client.close();
    },
  };
});
