// What somebody may send to the redirect that a sign-in waits for.
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { after, afterEach, before, test } from 'node:test';

import { Gateway } from './lib/gateway.mjs';
import { arrive, close, launch, refuse, walk } from './lib/person.mjs';
import { AuthorizationServer, OPERATORS_CLIENT } from './lib/provider.mjs';
import { TypeScript } from './lib/upstreams.mjs';

const { client_id: id, client_secret: secret } = OPERATORS_CLIENT;

let provider, upstream, gateway, browser;

before(async () => {
  [provider, browser] = await Promise.all([AuthorizationServer.start(), launch()]);
  upstream = await TypeScript.start(provider);
  // One client for all sign-ins: nothing but the checks of the flow tells them apart.
  gateway = await Gateway.prepare(upstream.url, {
    login: `{ client_id = "${id}", client_secret = { value = "${secret}" } }`,
  });
});

after(async () => {
  await gateway?.stop();
  await Promise.allSettled([close(browser), upstream?.stop(), provider?.stop()]);
});

afterEach(async () => {
  await gateway.run('logout', 'wiki'); // which fails if nobody is signed in
  provider.requests.length = 0;
});

/** The redirect of this sign-in with these parameters. */
function redirect(url, params) {
  const back = new URL(url.searchParams.get('redirect_uri'));
  back.search = new URLSearchParams(params);
  return back;
}

/** Fails unless the command ended with an error that says this, and nobody is signed in. */
async function isRefused(login, reason) {
  const { code, stdout, stderr } = await login.ended;
  assert.equal(code, 1, stdout + stderr);
  assert.match(stderr, reason);
  assert.doesNotMatch(stdout, /Signed in/);
  assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
}

/** Requests of the code flow to the token endpoint. */
const redeemed = () =>
  provider.requests.filter(({ route, params }) => route === 'token' && params.grant_type === 'authorization_code');

const OTHER_ISSUER = {
  'of another issuer': ({ state }) => ({ state, iss: 'https://elsewhere.example' }),
  'whose issuer has a slash more': ({ state, iss }) => ({ state, iss: `${iss}/` }),
  'without the issuer that the provider promises': ({ state }) => ({ state }),
};

for (const [name, forge] of Object.entries(OTHER_ISSUER)) {
  test(`a redirect ${name} ends the command, and its code is not sent to the provider`, async () => {
    const login = gateway.login();
    const url = await login.url();
    const { code, ...rest } = Object.fromEntries((await walk(url)).searchParams);
    const answer = await fetch(redirect(url, { code, ...forge(rest) }));
    assert.equal(answer.status, 400);
    assert.doesNotMatch(await answer.text(), /Signed in/);
    await isRefused(login, /another authorization server/);
    assert.deepEqual(redeemed(), []);
  });
}

const OTHER_REQUEST = {
  'with another state': ({ code, iss }) => ({ code, state: 'another-state', iss }),
  'without a state': ({ code, iss }) => ({ code, iss }),
  'that says no, with another state': ({ iss }) => ({ error: 'access_denied', state: 'another-state', iss }),
};

for (const [name, forge] of Object.entries(OTHER_REQUEST)) {
  test(`a redirect ${name} is refused, and does not disturb the sign-in that waits`, async () => {
    const login = gateway.login();
    const url = await login.url();
    const back = await walk(url);
    const answer = await fetch(redirect(url, forge(Object.fromEntries(back.searchParams))));
    assert.equal(answer.status, 400);
    assert.doesNotMatch(await answer.text(), /Signed in/);
    assert.deepEqual(redeemed(), []);
    assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');

    await fetch(back);
    assert.equal((await login.ended).code, 0);
  });
}

test('a person who says no ends the command with an error', async () => {
  const login = gateway.login();
  const page = await arrive(browser);
  await refuse(page, await login.url());
  assert.doesNotMatch(await page.locator('h1').innerText(), /Signed in/);
  await isRefused(login, /access was denied/);
  assert.deepEqual(redeemed(), []);
});

test('the text of an error cannot be markup, nor control the terminal', async () => {
  const login = gateway.login();
  const url = await login.url();
  const hostile = '<script>alert(1)</script>\u001b[2J\u202e';
  const state = url.searchParams.get('state');
  const answer = await fetch(
    redirect(url, { error: hostile, error_description: hostile, state, iss: provider.issuer }),
  );
  assert.ok(!(await answer.text()).includes('<script>alert'));
  await isRefused(login, /refused/);
  assert.doesNotMatch((await login.ended).stderr, /[\u001b\u202e]/);
});

test('a redirect that comes twice is redeemed once', async () => {
  const login = gateway.login();
  const back = await walk(await login.url());
  const read = async () => (await fetch(back)).text();
  const pages = await Promise.allSettled([read(), read(), read()]);
  const welcomes = pages.filter(({ value }) => /Signed in/.test(value ?? ''));
  assert.equal((await login.ended).code, 0);
  assert.equal(welcomes.length, 1);
  assert.equal(redeemed().length, 1);
  await assert.rejects(fetch(back), 'nobody listens any more');
});

test('the redirect of an earlier sign-in is refused by a later one', async () => {
  const first = gateway.login();
  const back = await walk(await first.url());
  await fetch(back);
  assert.equal((await first.ended).code, 0);
  await gateway.run('logout', 'wiki');

  const second = gateway.login();
  await second.url();
  second.type(back.href);
  await second.says(/answer was refused.*another request/);
  assert.equal(redeemed().length, 1);
  assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
  second.child.kill('SIGTERM');
  await second.ended;
});

test('a code of another session is refused by the provider: its verifier is another one', async () => {
  const login = gateway.login();
  const url = await login.url();
  // The attacker's own session: the same client and the same redirect, but the verifier is the attacker's.
  const own = new URL(url);
  const verifier = randomBytes(32).toString('base64url');
  own.searchParams.set('code_challenge', createHash('sha256').update(verifier).digest('base64url'));
  own.searchParams.set('state', 'of-the-attacker');
  const code = (await walk(own)).searchParams.get('code');

  const answer = await fetch(redirect(url, { code, state: url.searchParams.get('state'), iss: provider.issuer }));
  assert.doesNotMatch(await answer.text(), /Signed in/);
  await isRefused(login, /invalid_grant/);
  assert.deepEqual(
    redeemed().map(({ status, detail }) => [status, detail]),
    [[400, 'code_verifier does not match code_challenge']],
  );
});

test('other requests do not end a sign-in', async () => {
  const login = gateway.login();
  const url = await login.url();
  for (const path of ['/', '/favicon.ico', '/callback/', '/callbacks?code=1']) {
    assert.equal((await fetch(new URL(path, url.searchParams.get('redirect_uri')))).status, 404, path);
  }
  await fetch(await walk(url));
  assert.equal((await login.ended).code, 0);
});

test('no code, token or secret is in a file or in the output', async () => {
  const known = new Set(provider.secrets);
  known.delete(secret); // is in the configuration
  assert.ok(known.size > 5, `${known.size} secrets`);
  assert.deepEqual(await gateway.where(known), []);
  assert.deepEqual(await gateway.where([secret]), [gateway.path('gateway.toml')]);
});
