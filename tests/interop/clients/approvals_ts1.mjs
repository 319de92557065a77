// MCP TypeScript SDK 1.x sees what is approved.
// usage: node approvals_ts1.mjs URL STEPS [17|11]     (as ts1.mjs)
import { standaloneStream } from './changed.mjs';
import { main } from './approvals.mjs';
import { adapter, connect } from './ts1-connect.mjs';

await main('ts1', async (url, minor, heard) => {
  const up = standaloneStream();
  const peer = await connect(url, minor, (client, types) =>
    client.setNotificationHandler(types.PromptListChangedNotificationSchema, heard),
  );
  await up;
  return {
    ...adapter(peer),
    close: async () => {
      await peer.transport.terminateSession();
      await peer.client.close();
    },
  };
});
