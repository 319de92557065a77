// The other ways to sign in: the command's own browser, a pasted address, a device, a client that was registered by hand.
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';

import { arrive, close, launch, refuseDevice, signInDevice, walk } from './lib/person.mjs';
import { OPERATORS_CLIENT, SCOPE } from './lib/provider.mjs';
import { KINDS, isSignedIn, signIn, stage } from './lib/stage.mjs';

const { client_id: id, client_secret: secret } = OPERATORS_CLIENT;
const BY_HAND = `client_id = "${id}", client_secret = { value = "${secret}" }`;

test('the command opens the browser that BROWSER names, with the address that it prints', () =>
  stage({}, async ({ gateway }) => {
    const opened = gateway.path('opened');
    writeFileSync(
      gateway.path('browser'),
      `#!/bin/sh\nprintf '%s' "$1" >"${opened}.part" && mv "${opened}.part" "${opened}"\n`,
      { mode: 0o755 },
    );
    const login = gateway.start('login', 'wiki');
    const url = await login.url();
    await gateway.until(() => existsSync(opened));
    assert.equal(readFileSync(opened, 'utf8'), url.href);
    await fetch(await walk(url));
    await isSignedIn(login, gateway);
  }));

test('the address that the browser was sent to can be pasted', () =>
  stage({}, async ({ gateway }) => {
    const login = gateway.login();
    login.type((await walk(await login.url())).href);
    await isSignedIn(login, gateway);
  }));

test('a client that was registered by hand is used as it is, with its secret', () =>
  stage({ login: `{ ${BY_HAND} }` }, async ({ gateway, provider }) => {
    const login = gateway.login();
    const url = await login.url();
    assert.equal(url.searchParams.get('client_id'), id);
    await fetch(await walk(url));
    await isSignedIn(login, gateway);
    assert.deepEqual([...provider.granted('registration'), ...provider.refused('token')], []);
  }));

test('at a provider without public clients, the gateway registers as one with a secret', () =>
  stage({ authMethods: ['client_secret_basic'] }, async ({ gateway }) => {
    await signIn(gateway);
  }),
);

test('a configured scope is asked for, with the one that refresh tokens need', () =>
  stage({ login: `{ scope = "openid ${SCOPE}" }` }, async ({ gateway }) => {
    const login = gateway.login();
    const url = await login.url();
    assert.equal(url.searchParams.get('scope'), `openid ${SCOPE} offline_access`);
    await fetch(await walk(url));
    await isSignedIn(login, gateway);
  }));

describe('on a device without a browser', { concurrency: true }, () => {
  let browser;
  before(async () => (browser = await launch()));
  after(() => close(browser));

  /** Starts the command; returns the page and the code that it prints. */
  async function begin(gateway) {
    const login = gateway.login('--device');
    const [verification] = await login.line(/http:\/\/\S+\/device\b/);
    const [userCode] = await login.line(/\b[A-Z]{4}-[A-Z]{4}\b/);
    return { login, verification, userCode };
  }

  for (const [kind, options] of Object.entries(KINDS)) {
    test(`a person signs in for an upstream of ${kind} elsewhere, with a code`, () =>
      stage(options, async ({ gateway, provider, upstream }) => {
        const { login, verification, userCode } = await begin(gateway);
        await signInDevice(await arrive(browser), verification, userCode);
        await isSignedIn(login, gateway);
        const [{ params }] = provider.granted('device_authorization');
        assert.equal(params.resource, upstream.url);
        // RFC 8628, section 3.5: five seconds between polls, where the provider says nothing else.
        const polls = provider.requests.filter(({ route, params }) => route === 'token' && params.device_code);
        assert.ok(polls.length <= 4, `${polls.length} polls`);
      }));
  }

  test('a person who says no ends the command with an error', () =>
    stage({}, async ({ gateway }) => {
      const { login, verification, userCode } = await begin(gateway);
      await refuseDevice(await arrive(browser), verification, userCode);
      const { code, stderr } = await login.ended;
      assert.equal(code, 1);
      assert.match(stderr, /access was denied|access_denied/);
      assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
    }));
});
