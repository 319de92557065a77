// Callers who sign in themselves: a client that elicits URLs is sent to the gateway's page, and hears that it can go on.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  ElicitationCompleteNotificationSchema,
  PromptListChangedNotificationSchema,
  UrlElicitationRequiredError,
} from '@modelcontextprotocol/sdk/types.js';

import { BINARY, Command } from './lib/gateway.mjs';
import { walk } from './lib/person.mjs';
import { GATEWAYS_CLIENT, SCOPE } from './lib/provider.mjs';
import { KINDS, stage } from './lib/stage.mjs';
import { PYTHON } from './lib/upstreams.mjs';

const keyOf = (who) => `key-of-${who}`;
const table = (who) => `
[[auth.api_keys]]
id = "${who}"
hash = "sha256:${createHash('sha256').update(keyOf(who)).digest('hex')}"
`;
const configure = () => ({
  credential: '{ sign_in = {} }',
  wiki: 'act_as = "caller"\nlist_as = "caller"',
  server: 'public_url = "http://127.0.0.1:1/mcp"', // its port is known once it listens
  tables: `[listing]\ndebounce = "20ms"\n${table('ada')}${table('bob')}`,
});

async function connect(gateway, who) {
  const client = new Client({ name: 'check', version: '1.0.0' }, { capabilities: { elicitation: { url: {} } } });
  const requestInit = { headers: { Authorization: `Bearer ${keyOf(who)}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(gateway.mcp), { requestInit }));
  return client;
}

/** Resolves with the parameters of the next notification of a kind. */
const heard = (client, schema) =>
  new Promise((resolve) => client.setNotificationHandler(schema, ({ params }) => resolve(params)));

const get = (client) => client.getPrompt({ name: 'wiki__onboarding' });

/** The page that a get is answered with. */
async function asked(client) {
  const error = await get(client).then(assert.fail, (error) => error);
  assert.ok(error instanceof UrlElicitationRequiredError, `${error}`);
  return error.elicitations[0];
}

/** Types the code, agrees at the provider, and comes back. */
async function signIn(gateway, { url, message }, login) {
  const here = ({ pathname, search }) => new URL(pathname + search, gateway.mcp);
  const link = new URL(url);
  const [, code] = /(?:it is|type the code) (\S+?)[. ]/.exec(message);
  const body = new URLSearchParams({ link: link.searchParams.get('link'), code });
  const clicked = await fetch(new URL(link.pathname, gateway.mcp), { method: 'POST', body, redirect: 'manual' });
  assert.equal(clicked.status, 303, await clicked.text());
  const back = await walk(new URL(clicked.headers.get('location')), login);
  const [cookie] = clicked.headers.getSetCookie()[0].split(';');
  const last = await fetch(here(back), { headers: { Cookie: cookie } });
  assert.match(await last.text(), /You can go on/);
}

for (const [kind, options] of Object.entries(KINDS)) {
  test(`a caller signs in to an upstream of ${kind} when a prompt is needed, and no other caller with it`, () =>
    stage({ ...options, configure }, async ({ gateway }) => {
      await gateway.serve();
      const [ada, bob] = await Promise.all(['ada', 'bob'].map((who) => connect(gateway, who)));
      const completed = heard(ada, ElicitationCompleteNotificationSchema);
      const changed = heard(ada, PromptListChangedNotificationSchema);
      assert.deepEqual((await ada.listPrompts()).prompts, []);
      const page = await asked(ada);
      await signIn(gateway, page);
      assert.equal((await completed).elicitationId, page.elicitationId);
      await changed;
      assert.equal((await ada.listPrompts()).prompts.length, 2);
      assert.equal((await get(ada)).messages.length, 1);
      assert.notEqual((await asked(bob)).url, page.url);
      assert.deepEqual((await bob.listPrompts()).prompts, []);
      await Promise.all([ada.close(), bob.close()]);
    }));
}

/** The clients of others, as commands. */
const script = (name) => fileURLToPath(new URL(`../interop/clients/${name}`, import.meta.url));
const CLIENTS = {
  'the TypeScript SDK 2.x': [process.execPath, script('sign_in_ts2.mjs')],
  'the Python SDK': [PYTHON, script('sign_in_py.py')],
  FastMCP: [PYTHON, script('sign_in_fm.py')],
  rmcp: [join(dirname(BINARY), 'examples/rmcp-sign-in')],
};

/** How each client is run, the code of the error that it gets, and where that has the page. */
const SHOWN = [
  [['modern', 'elicits'], undefined, 'in an elicitation'],
  [['legacy', 'elicits'], -32042, 'in an error that has an elicitation'],
  [['modern', 'plain'], -32603, 'as a link in an error'],
  [['legacy', 'plain'], -32603, 'as a link in an error'],
];

const { client_id: id, client_secret: secret } = GATEWAYS_CLIENT;

/** The gateway lists prompts as itself. */
const listed = (callers) => ({
  ...configure(),
  credential: `{ oauth = { client_id = "${id}", client_secret = { value = "${secret}" }, scope = "${SCOPE}" }, \
sign_in = {} }`,
  wiki: 'act_as = "caller"',
  tables: callers.map(table).join(''),
});

for (const [kind, [program, ...first]] of Object.entries(CLIENTS)) {
  test(`a caller of ${kind} is shown the page as its client can, signs in there, and gets the prompt`, (context) => {
    const callers = SHOWN.map(([mode]) => mode.join('-'));
    return stage({ configure: () => listed(callers) }, async ({ gateway }) => {
      await gateway.serve();
      const reader = await connect(gateway, callers[0]);
      await gateway.until(async () => (await reader.listPrompts()).prompts.length === 2);
      await reader.close();
      for (const [mode, code, where] of SHOWN) {
        const who = mode.join('-');
        await context.test(`${who}: ${where}`, async () => {
          const child = spawn(program, [...first, gateway.mcp, keyOf(who), 'wiki__minutes', ...mode]);
          const client = new Command(child);
          try {
            // FastMCP takes seconds to start.
            const [asked] = await client.line(/.*"url".*/, 60_000);
            const page = JSON.parse(asked);
            assert.equal(page.code, code);
            if (code === -32603) assert.ok(page.message.includes(page.url), page.message);
            await signIn(gateway, page, who);
            client.type('signed in');
            const { code: exit, stdout, stderr } = await client.ended;
            assert.equal(exit, 0, stderr);
            assert.deepEqual(JSON.parse(stdout.split('\n')[1]), { got: [`Write the minutes for ${who}.`] });
          } finally {
            child.kill('SIGKILL');
          }
        });
      }
    });
  });
}
