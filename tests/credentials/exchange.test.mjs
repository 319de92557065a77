// Upstreams let in each caller by a token that was exchanged for its own, and the gateway by an assertion that its
// platform renews.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';

import { PromptListChangedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';

import { TOKEN_EXCHANGE } from './lib/exchange.mjs';
import { ADMIN_TOKEN } from './lib/gateway.mjs';
import { ASSERTING_CLIENT, ID_JAG, JWT_BEARER } from './lib/id_jag.mjs';
import { callersToken } from './lib/person.mjs';
import { AuthorizationServer, GATEWAY, GATEWAYS_CLIENT, SCOPE, WORKLOADS_CLIENT } from './lib/provider.mjs';
import { KINDS, stage } from './lib/stage.mjs';
import { FastMcp, Personal } from './lib/upstreams.mjs';
import { Platform } from './lib/workload.mjs';

const { client_id: id, client_secret: secret } = GATEWAYS_CLIENT;
const AS_GATEWAY = `client_id = "${id}", client_secret = { value = "${secret}" }`;
const API_KEY = 'key-of-a-build-server';

/** The gateway lists prompts as itself, and gets them as its callers, by default for the resource at the URL. */
const asCallers = ({ provider: { issuer } }) => ({
  server: `public_url = "${GATEWAY}"`,
  credential: `{ oauth = { ${AS_GATEWAY}, scope = "${SCOPE}" }, \
exchange = { token_url = "${issuer}/token", ${AS_GATEWAY} } }`,
  wiki: 'act_as = "caller"',
  tables: `
[auth.jwt]
issuer = "${issuer}"
[[auth.api_keys]]
id = "ci"
hash = "sha256:${createHash('sha256').update(API_KEY).digest('hex')}"
`,
});

/** The same, where the configuration names the audience. */
const toAudience = (others) => {
  const { credential, ...rest } = asCallers(others);
  const exchange = `exchange = { audience = "${others.upstream.url}",`;
  return { ...rest, credential: credential.replace('exchange = {', exchange) };
};

const minutes = async (client) => {
  const { messages } = await client.getPrompt({ name: 'wiki__minutes' });
  return messages[0].content.text;
};

/** The claim `sub` of a JSON Web Token. */
const subject = (token) => JSON.parse(Buffer.from(token.split('.')[1], 'base64url')).sub;

/** The `reason` of the error that a get ends with; `undefined` if it ends with none. */
const reason = (client) =>
  client.getPrompt({ name: 'wiki__minutes' }).then(
    () => undefined,
    ({ data }) => data.reason,
  );

/** A client with this credential, once the gateway has the list of the upstream. */
async function ready(gateway, bearer) {
  const client = await gateway.client(bearer);
  // A list may fail while the gateway starts.
  const listed = () => client.listPrompts().catch(() => ({ prompts: [] }));
  await gateway.until(async () => (await listed()).prompts.length === 2);
  return client;
}

/** Clients of people who have signed in at the provider. */
async function signedIn({ gateway, provider }, ...people) {
  const tokens = await Promise.all(people.map((person) => callersToken(provider, person)));
  await gateway.serve();
  return { tokens, clients: await Promise.all(tokens.map((token) => ready(gateway, token))) };
}

const close = (clients) => Promise.all(clients.map((client) => client.close()));

for (const [kind, parameter, configure] of [
  ['the TypeScript SDK', 'resource', asCallers],
  ['FastMCP', 'audience', toAudience],
]) {
  test(`callers get prompts of ${kind} at the same time, each by a token for its ${parameter}`, () =>
    stage({ ...KINDS[kind], configure }, async ({ gateway, provider, upstream }) => {
      const people = ['ada', 'bob'];
      const { tokens, clients } = await signedIn({ gateway, provider }, ...people);
      const calls = Array.from({ length: 20 }, (_, n) => minutes(clients[n % 2]));
      assert.deepEqual(
        await Promise.all(calls),
        calls.map((_, n) => `Write the minutes for ${people[n % 2]}.`),
      );

      const exchanges = provider.granted('token', { grant_type: TOKEN_EXCHANGE });
      assert.deepEqual(exchanges.map(({ params }) => params.subject_token).sort(), tokens.toSorted());
      for (const { params } of exchanges) assert.equal(params[parameter], upstream.url);
      assert.deepEqual(provider.refused('token'), []);

      // The parts of a token that no other one has.
      const parts = tokens.flatMap((token) => token.split('.').slice(1));
      assert.ok(exchanges.every(({ answer }) => upstream.heard.includes(answer.access_token)));
      assert.deepEqual(
        parts.filter((part) => upstream.heard.includes(part)),
        [],
      );
      assert.ok(!upstream.heard.includes(secret));
      await gateway.readAdmin();
      await close(clients);
      await gateway.rest();
      assert.deepEqual(await gateway.where(parts), []);
      // The search finds what is there: who called.
      for (const person of people) assert.match((await gateway.where([`"${person}"`])).join(), /audit.*the output/);
    }));
}

test('each caller lists what is for it alone, and hears of its own changes', () => {
  const configure = ({ provider: { issuer } }) => ({
    ...asCallers({ provider: { issuer } }),
    credential: `{ exchange = { token_url = "${issuer}/token", ${AS_GATEWAY} } }`,
    wiki: 'act_as = "caller"\nlist_as = "caller"',
  });
  return stage({ Upstream: Personal, configure }, async ({ gateway, provider, upstream }) => {
    const people = ['ada', 'bob'];
    const tokens = await Promise.all(people.map((person) => callersToken(provider, person)));
    await gateway.serve();
    const clients = await Promise.all(tokens.map((token) => gateway.client(token)));
    const [ada, bob] = clients;
    const names = async (client) => (await client.listPrompts()).prompts.map(({ name }) => name);
    const expected = (person) => [`wiki__diary-of-${person}`, 'wiki__minutes', 'wiki__onboarding'];
    await gateway.until(async () => (await Promise.all(clients.map(names))).every(({ length }) => length === 3));
    assert.deepEqual(await Promise.all(clients.map(names)), people.map(expected));
    const diary = await ada.getPrompt({ name: 'wiki__diary-of-ada' });
    assert.equal(diary.messages[0].content.text, 'The diary of ada');
    await assert.rejects(bob.getPrompt({ name: 'wiki__diary-of-ada' }), { code: -32602 });

    const heard = clients.map(() => 0);
    clients.forEach((client, n) =>
      client.setNotificationHandler(PromptListChangedNotificationSchema, () => void heard[n]++),
    );
    upstream.servers.get('ada').registerPrompt('poem', {}, () => ({ messages: [] }));
    await gateway.until(() => heard[0] === 1);
    assert.deepEqual(await names(ada), [...expected('ada'), 'wiki__poem'].sort());
    assert.deepEqual(await names(bob), expected('bob'));
    assert.deepEqual(heard, [1, 0]);
    assert.deepEqual(provider.refused('token'), []);
    await close(clients);
  });
});

test('a token is exchanged again before its end, and no call fails meanwhile', () =>
  stage({ configure: asCallers, lifetime: 4 }, async ({ gateway, provider }) => {
    const { clients } = await signedIn({ gateway, provider }, 'ada', 'bob');
    await gateway.until(async () => {
      assert.deepEqual(await Promise.all(clients.map(reason)), [undefined, undefined]);
      return provider.granted('token', { grant_type: TOKEN_EXCHANGE }).length >= 4;
    });
    assert.deepEqual(provider.refused('token'), []);
    await close(clients);
  }));

test('a token that is revoked here is revoked at the provider', () => {
  const configure = (others) => ({ ...asCallers(others), admin: `write = true\ntoken = { value = "${ADMIN_TOKEN}" }` });
  return stage({ configure }, async ({ gateway, provider }) => {
    const { clients } = await signedIn({ gateway, provider }, 'ada', 'bob');
    assert.deepEqual(await Promise.all(clients.map(reason)), [undefined, undefined]);
    const [{ answer }] = provider
      .granted('token', { grant_type: TOKEN_EXCHANGE })
      .filter(({ params }) => subject(params.subject_token) === 'ada');
    assert.equal(await provider.isActive(answer.access_token), true);
    const { code, stdout, stderr } = await gateway.run('accounts', 'revoke', '--caller', 'ada');
    assert.equal(code, 0, stderr);
    assert.match(stdout, /^wiki +ada +token +\S+ +exchange +revoked$/m);
    assert.equal(await provider.isActive(answer.access_token), false);
    assert.deepEqual(await Promise.all(clients.map(reason)), [undefined, undefined]);
    assert.equal(provider.granted('token', { grant_type: TOKEN_EXCHANGE }).length, 3);
    await close(clients);
  });
});

test('a caller with an API key has nothing to exchange, and gets no credential of the gateway', () =>
  stage({ configure: asCallers }, async ({ gateway, provider, upstream }) => {
    await gateway.serve();
    const client = await ready(gateway, API_KEY);
    assert.equal(await reason(client), 'no_subject_token');
    assert.ok(!upstream.heard.includes('prompts/get'));
    assert.deepEqual(provider.granted('token', { grant_type: TOKEN_EXCHANGE }), []);
    await client.close();
  }));

test('a caller whose account the provider has removed is refused, and others are served', () =>
  stage({ configure: asCallers }, async ({ gateway, provider }) => {
    const { clients } = await signedIn({ gateway, provider }, 'ada', 'bob', 'eve');
    const [ada, bob, eve] = clients;
    assert.deepEqual(await Promise.all([ada, bob].map(reason)), [undefined, undefined]);
    // One who was served before, and one who was not.
    for (const person of ['ada', 'eve']) provider.forget(person);
    await provider.withdraw();
    assert.equal(await reason(ada), 'exchange_refused');
    assert.equal(await reason(eve), 'exchange_refused');
    assert.equal(await minutes(bob), 'Write the minutes for bob.');
    await close(clients);
  }));

test('while the provider cannot exchange, only callers whose tokens it has exchanged are served', () =>
  stage({ Upstream: FastMcp, configure: asCallers }, async ({ gateway, provider }) => {
    const { clients } = await signedIn({ gateway, provider }, 'ada', 'bob', 'eve');
    const [ada, bob, eve] = clients;
    assert.equal(await reason(ada), undefined);
    provider.isAway = true;
    assert.equal(await reason(bob), 'provider_unavailable');
    assert.equal(await minutes(ada), 'Write the minutes for ada.');
    provider.isAway = false;
    await gateway.until(async () => (await reason(bob)) === undefined);

    await provider.stop();
    assert.equal(await reason(eve), 'provider_unavailable');
    assert.equal(await minutes(ada), 'Write the minutes for ada.');
    await close(clients);
  }));

/** Runs a check with a provider whose assertions the authorization server of the upstream takes. */
async function asserted(check) {
  const own = await AuthorizationServer.start();
  const { client_id: id, client_secret: secret } = ASSERTING_CLIENT;
  const configure = () => ({
    ...asCallers({ provider: own }),
    credential: `{ oauth = { ${AS_GATEWAY}, scope = "${SCOPE}" }, id_jag = { \
provider = { token_url = "${own.issuer}/token", ${AS_GATEWAY}, scope = "${SCOPE}" }, \
server = { client_id = "${id}", client_secret = { value = "${secret}" } } } }`,
  });
  try {
    await stage({ configure, trusted: own.issuer }, (others) => check({ ...others, own }));
  } finally {
    await own.stop();
  }
}

test('an upstream lets in the callers whom their own provider asserts at its authorization server', () =>
  asserted(async ({ gateway, provider, upstream, own }) => {
    const { code, stdout, stderr } = await gateway.run('check', '--dial');
    assert.equal(code, 0, stdout + stderr);
    const { tokens, clients } = await signedIn({ gateway, provider: own }, 'ada', 'bob', 'eve');
    const [ada, bob, eve] = clients;
    const got = await Promise.all([ada, bob, ada, bob].map(minutes));
    assert.deepEqual(new Set(got), new Set(['ada', 'bob'].map((person) => `Write the minutes for ${person}.`)));
    provider.forget('eve');
    assert.equal(await reason(eve), 'exchange_refused');

    const assertions = own.granted('token', { grant_type: TOKEN_EXCHANGE, requested_token_type: ID_JAG });
    assert.equal(assertions.length, 3);
    for (const { params } of assertions) assert.equal(params.audience, provider.issuer);
    const taken = provider.granted('token', { grant_type: JWT_BEARER });
    assert.deepEqual(taken.map(({ params }) => subject(params.assertion)).sort(), ['ada', 'bob']);
    const parts = tokens.flatMap((token) => token.split('.').slice(1));
    const seen = upstream.heard + JSON.stringify(provider.requests);
    assert.ok(taken.every(({ answer }) => upstream.heard.includes(answer.access_token)));
    assert.deepEqual(parts.filter((part) => seen.includes(part)), []);
    await close(clients);
    await gateway.rest();
    assert.deepEqual(await gateway.where([...parts, ...assertions.map(({ answer }) => answer.access_token)]), []);
  }));

test('while the identity provider is down, only callers with a token are served, and afterwards the next one', () =>
  asserted(async ({ gateway, provider, own }) => {
    const { clients } = await signedIn({ gateway, provider: own }, 'ada', 'bob', 'eve', 'joe');
    const [ada, bob, eve, joe] = clients;
    assert.equal(await reason(ada), undefined);
    own.isAway = true;
    assert.equal(await reason(bob), 'provider_unavailable');
    assert.equal(await minutes(ada), 'Write the minutes for ada.');
    own.isAway = false;
    assert.equal(await minutes(eve), 'Write the minutes for eve.');
    // For the same caller the gateway asks again after a pause.
    await gateway.until(async () => (await reason(bob)) === undefined);

    await own.stop();
    assert.equal(await reason(joe), 'provider_unavailable');
    const served = await Promise.all([ada, bob, eve].map(reason));
    assert.deepEqual(served, [undefined, undefined, undefined]);
    assert.equal(provider.granted('token', { grant_type: JWT_BEARER }).length, 3);
    await close(clients);
  }));

/** Runs a check with an upstream that lets in the workload, whose tokens need a few renewals. */
async function workload(options, check) {
  const platform = await Platform.start();
  const configure = ({ provider: { issuer }, upstream }) => ({
    credential: `{ workload = { file = "${platform.file}", token_url = "${issuer}/token", \
client_id = "${WORKLOADS_CLIENT.client_id}", resource = "${upstream.url}", scope = "${SCOPE}" } }`,
  });
  try {
    await stage({ ...options, configure, workloadKey: platform.publicKey, lifetime: 4 }, async (others) => {
      const first = await platform.renew(others.provider);
      await others.gateway.serve();
      const client = await ready(others.gateway);
      assert.equal(await minutes(client), `Write the minutes for ${WORKLOADS_CLIENT.client_id}.`);
      await check({ ...others, platform, client, first });
      await client.close();
    });
  } finally {
    platform.stop();
  }
}

/** The assertions of the token requests that were granted, in order. */
const used = (provider) =>
  provider.granted('token', { grant_type: 'client_credentials' }).map(({ params }) => params.client_assertion);

for (const [kind, options] of Object.entries(KINDS)) {
  test(`a workload gets prompts of ${kind}, and each token request sends the assertion that the file has then`, () =>
    workload(options, async ({ gateway, provider, platform, client, first }) => {
      const second = await platform.renew(provider);
      await gateway.until(async () => {
        await minutes(client);
        return used(provider).length === 2;
      });
      assert.deepEqual(used(provider), [first, second]);
      assert.deepEqual(provider.refused('token'), []);
    }));
}

test('an assertion that the provider refuses to take twice is sent until the file has another', () =>
  workload({}, async ({ gateway, provider, platform, client, first }) => {
    const isServed = async () => (await reason(client)) === undefined;
    await gateway.until(async () => !(await isServed()) && provider.refused('token').length > 0);
    const [{ params, detail }] = provider.refused('token');
    assert.deepEqual([params.client_assertion, detail], [first, 'client assertion tokens must only be used once']);
    const second = await platform.renew(provider);
    await gateway.until(isServed);
    assert.deepEqual(used(provider), [first, second]);
  }));
