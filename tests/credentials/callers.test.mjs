// Callers who sign in themselves: a client that elicits URLs is sent to the gateway's page, and hears that it can go on.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  ElicitationCompleteNotificationSchema,
  PromptListChangedNotificationSchema,
  UrlElicitationRequiredError,
} from '@modelcontextprotocol/sdk/types.js';

import { walk } from './lib/person.mjs';
import { KINDS, stage } from './lib/stage.mjs';

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
async function signIn(gateway, { url, message }) {
  const here = ({ pathname, search }) => new URL(pathname + search, gateway.mcp);
  const link = new URL(url);
  const [, code] = /it is (\S+)\./.exec(message);
  const body = new URLSearchParams({ link: link.searchParams.get('link'), code });
  const clicked = await fetch(new URL(link.pathname, gateway.mcp), { method: 'POST', body, redirect: 'manual' });
  assert.equal(clicked.status, 303, await clicked.text());
  const back = await walk(new URL(clicked.headers.get('location')));
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
