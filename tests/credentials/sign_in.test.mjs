// An operator signs in once; from then on the gateway has a token, until somebody takes the login away.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';

import { Gateway } from './lib/gateway.mjs';
import { arrive, close, launch, signIn, walk } from './lib/person.mjs';
import { AuthorizationServer, SCOPE } from './lib/provider.mjs';
import { FastMcp, TypeScript } from './lib/upstreams.mjs';

/** Seconds that an access token is valid: a few renewals fit into a test. */
const LIFETIME = 4;

const text = ({ messages }) => messages.map(({ content }) => content.text).join('\n');

describe('a sign-in', { concurrency: true }, () => {
  describe('for an upstream of the TypeScript SDK', { concurrency: false }, () => story(TypeScript));
  const options = { path: '/tenants/one' };
  describe('for an upstream of FastMCP, at one tenant of a provider', { concurrency: false }, () =>
    story(FastMcp, options),
  );
});

/** `path` is that of the issuer. */
function story(Upstream, { path } = {}) {
  let provider, upstream, gateway, browser, client;

  before(async () => {
    [provider, browser] = await Promise.all([AuthorizationServer.start({ lifetime: LIFETIME, path }), launch()]);
    upstream = await Upstream.start(provider);
    gateway = await Gateway.prepare(upstream.url);
    await gateway.serve();
  });

  after(async () => {
    await client?.close();
    await gateway?.stop();
    await Promise.allSettled([close(browser), upstream?.stop(), provider?.stop()]);
  });

  const get = async () => text(await client.getPrompt({ name: 'wiki__onboarding' }));
  const isServed = () =>
    get().then(
      (found) => found === 'Explain how we work.',
      () => false,
    );

  test('status, the admin API and check --dial name the command while nobody is signed in', async () => {
    await gateway.until(() => gateway.wantsSignIn());
    for (const command of [['status'], ['check', '--dial']]) {
      const { stdout, stderr } = await gateway.run(...command);
      assert.match(stdout + stderr, /promptgate login wiki/, command.join(' '));
    }
    assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
    assert.equal(provider.granted('registration').length, 0, 'only the command registers');
  });

  test('a person signs in and consents in a browser', async () => {
    const login = gateway.login();
    const url = await login.url();
    const { redirect_uri, state, code_challenge, ...asked } = Object.fromEntries(url.searchParams);
    assert.match(redirect_uri, /^http:\/\/127\.0\.0\.1:\d+\/callback$/);
    assert.ok(state.length >= 22, 'the state has 128 bits');
    assert.match(code_challenge, /^[\w-]{43}$/);
    assert.equal(asked.code_challenge_method, 'S256');
    assert.equal(asked.response_type, 'code');
    assert.equal(asked.resource, upstream.url);
    assert.ok(asked.scope.split(' ').includes(SCOPE), asked.scope);

    const page = await arrive(browser);
    await signIn(page, url);
    assert.match(`${await page.title()} ${await page.locator('h1').innerText()}`, /Signed in/);
    const { code, stdout } = await login.ended;
    assert.equal(code, 0);
    assert.match(stdout, /^Signed in to wiki/m);
    const { issuer, state: now } = await gateway.storedLogin();
    assert.deepEqual([issuer, now], [provider.issuer, 'valid']);
  });

  test('the gateway that runs serves the prompts to a client', async () => {
    client = await gateway.client();
    await gateway.until(isServed);
    const { prompts } = await client.listPrompts();
    assert.deepEqual(prompts.map(({ name }) => name).sort(), ['wiki__minutes', 'wiki__onboarding']);
    assert.ok(!(await gateway.wantsSignIn()));
  });

  test('the token is renewed ahead of its end, with rotation, and no call fails meanwhile', async () => {
    const renewals = () => provider.granted('token', { grant_type: 'refresh_token' });
    const earlier = renewals().length;
    await gateway.until(async () => {
      assert.equal(await get(), 'Explain how we work.');
      return renewals().length >= earlier + 3;
    });
    assert.deepEqual(provider.refused('token'), []);
    const issued = provider.refreshTokens();
    const sent = renewals().map(({ params }) => params.refresh_token);
    assert.deepEqual(sent, issued.slice(0, sent.length), 'each refresh token is used once, in order');
    for (const { params } of renewals()) assert.ok([undefined, upstream.url].includes(params.resource));
  });

  test('a gateway that starts again uses the stored login', async () => {
    await client.close();
    await gateway.rest();
    await gateway.serve();
    client = await gateway.client();
    await gateway.until(isServed);
    assert.equal(provider.granted('token', { grant_type: 'authorization_code' }).length, 1);
    assert.deepEqual(provider.refused('token'), []);
  });

  test('a login that was withdrawn ends the service, and its list names the command', async () => {
    await provider.withdraw();
    await gateway.until(async () => !(await isServed()));
    const { state, repair } = await gateway.storedLogin();
    assert.deepEqual([state, repair], ['ended by the provider', 'promptgate login wiki']);
  });

  test('status and the admin API name the command again', async () => {
    await gateway.until(() => gateway.wantsSignIn(), 5000);
    assert.match((await gateway.run('status')).stdout, /promptgate login wiki/);
  });

  test('a new sign-in repairs it without a restart', async () => {
    const login = gateway.login();
    const back = await walk(await login.url());
    assert.match(await (await fetch(back)).text(), /Signed in/);
    assert.equal((await login.ended).code, 0);
    await gateway.until(async () => (await isServed()) && !(await gateway.wantsSignIn()));
    assert.equal((await gateway.storedLogin()).state, 'valid');
  });

  test('logout revokes at the provider, deletes the login, and stops the gateway that runs', async () => {
    const { code } = await gateway.run('logout', 'wiki');
    assert.equal(code, 0);
    assert.ok(provider.granted('revocation').length > 0);
    for (const token of provider.refreshTokens()) assert.ok(!(await provider.isAlive(token)));
    assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
    await gateway.until(async () => !(await isServed()) && (await gateway.wantsSignIn()));
  });

  test('no secret is in a file, in the output, in the audit log, or in the admin API', async () => {
    await gateway.readAdmin();
    assert.ok(provider.secrets.size > 10, `${provider.secrets.size} secrets`);
    assert.deepEqual(await gateway.where(provider.secrets), []);
    // The search finds what is there.
    const found = await gateway.where([upstream.url, gateway.mcp]);
    assert.ok(found.includes(gateway.path('gateway.toml')) && found.includes('the output'), found.join());
    assert.ok(readdirSync(gateway.path('audit')).some((name) => name.endsWith('.jsonl')));
  });
}
