// The TypeScript SDK as a server of skills: the folders below one that is given, which it reads
// again on SIGHUP.
// usage: node ts.mjs FOLDER     (Streamable HTTP on a free port, which it prints; at every path)
import { createServer } from 'node:http';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import { loadSkills } from '@modelcontextprotocol/server/ext/skills/node';

const skills = await loadSkills(process.argv[2], { pageSize: 2 });
process.on('SIGHUP', async () => {
  await skills.reload();
  console.log('reloaded');
});
const handler = createMcpHandler(() => {
  const server = new McpServer({ name: 'ts-skills', version: '1.0.0' });
  skills.attach(server);
  return server;
});
const listener = createServer(toNodeHandler(handler));
listener.listen(0, '127.0.0.1', () => console.log(`listening: 127.0.0.1:${listener.address().port}`));
