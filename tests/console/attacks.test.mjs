// What other sites and strangers try against the console and who looks at it.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { gunzipSync } from 'node:zlib';

import { Person, close, launch } from './lib/browser.mjs';
import { FORM, form, requester } from './lib/raw.mjs';
import { Stage, TOKEN } from './lib/stage.mjs';

const asBearer = { Authorization: `Bearer ${TOKEN}` };

let stage, browser, person, page, raw;

before(async () => {
  [stage, browser] = await Promise.all([Stage.start(), launch()]);
  person = await (await Person.arrive(browser, stage)).signIn();
  ({ page } = person);
  raw = requester(stage.admin);
});

after(async () => {
  await close(browser);
  await stage?.stop();
});

describe('other sites', () => {
  let elsewhere; // a server whose pages the checks write
  let content = '';
  let tab;

  before(async () => {
    elsewhere = createServer((_, response) => response.writeHead(200, { 'Content-Type': 'text/html' }).end(content));
    await new Promise((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
  });
  after(() => {
    elsewhere.closeAllConnections();
    elsewhere.close();
  });

  /** Opens a page of another origin: of the same site (another port), or of another one (another name). */
  async function visit(host, html) {
    content = html;
    // One tab for all visits: Chromium was seen not to answer when it should close a tab.
    tab ??= await person.context.newPage();
    await tab.goto(`http://${host}:${elsewhere.address().port}/`);
  }

  const FORMS = [
    ['/logout', {}],
    ['/approvals/decide', { action: 'reject', prompt: 'library__review-code' }],
    ['/prompts/library__standup/try', {}],
    ['/access', { rules: '' }],
    ['/login', { token: TOKEN, to: '/' }],
  ];

  for (const host of ['127.0.0.1', 'localhost']) {
    test(`forms of ${host} on another port are refused`, async () => {
      for (const [path, fields] of FORMS) {
        const inputs = Object.entries(fields).map(([name, value]) => `<input name="${name}" value='${value}'>`);
        await visit(host, `<form method="post" action="${stage.admin}${path}">${inputs.join('')}<button>Win</button></form>`);
        const answer = tab.waitForResponse((response) => response.url() === stage.admin + path && response.request().method() === 'POST');
        await Promise.all([tab.waitForEvent('load'), tab.getByRole('button').click()]);
        const status = (await answer).status();
        assert.ok([303, 403].includes(status), `${path}: ${status}`);
        if (status === 303) assert.match((await answer).headers().location, /^\/login\?/, path);
      }
      await isUnchanged();
    });

    test(`requests of scripts of ${host} on another port are refused`, async () => {
      await visit(host, '<p>Hello');
      for (const [path, fields] of FORMS) {
        const answer = await tab.evaluate(
          ([url, body]) => fetch(url, { method: 'POST', credentials: 'include', body: new URLSearchParams(body) }).then((r) => r.status, () => 'unread'),
          [stage.admin + path, fields],
        );
        assert.equal(answer, 'unread', path);
      }
      await isUnchanged();
    });

    test(`no page is shown in a frame of ${host}`, async () => {
      for (const path of ['/', '/login', '/approvals/library__review-code']) {
        await visit(host, `<iframe src="${stage.admin}${path}" width="900" height="600"></iframe>`);
        const frame = tab.frames().find((frame) => frame !== tab.mainFrame());
        assert.equal(await frame.locator('main, form').count(), 0, path);
        assert.match(frame.url(), /^chrome-error:/, path);
      }
    });
  }

  /** Nobody was signed out, and nothing was decided. The other pages themselves are not to be judged. */
  async function isUnchanged() {
    person.faults.length = 0;
    await person.open('/');
    assert.equal(await page.locator('h1').innerText(), 'Overview');
    assert.ok(await stage.isState('library__review-code', 'approved'));
  }

  test('forms without a token of the session, or with another one, are refused', async () => {
    const [cookie] = await person.context.cookies();
    const headers = { ...FORM, Cookie: `${cookie.name}=${cookie.value}`, Origin: stage.admin };
    const stranger = await (await Person.arrive(browser, stage)).signIn();
    const foreign = await stranger.page.locator('[name=csrf]').first().inputValue();
    await stranger.leave();
    for (const [path, fields] of FORMS.filter(([path]) => path !== '/login')) {
      for (const csrf of [undefined, '', 'x', foreign]) {
        const body = form({ ...fields, ...(csrf !== undefined && { csrf }) });
        assert.equal((await raw(path, { method: 'POST', headers, body })).status, 403, `${path} with ${csrf}`);
      }
      const sent = { ...headers, 'Content-Type': 'text/plain' };
      assert.equal((await raw(path, { method: 'POST', headers: sent, body: form(fields) })).status, 415, path);
    }
    await isUnchanged();
  });

  test('a sign-in that no page of the console sends is refused', async () => {
    const send = (headers) => raw('/login', { method: 'POST', headers: { ...FORM, ...headers }, body: form({ token: TOKEN }) });
    const refused = [{}, { Origin: 'https://evil.example' }, { Origin: 'null' }, { Origin: stage.admin, 'Sec-Fetch-Site': 'cross-site' }, { Origin: stage.admin, 'Sec-Fetch-Site': 'same-site' }];
    for (const headers of refused) {
      const { status, headers: answered } = await send(headers);
      assert.equal(status, 403, JSON.stringify(headers));
      assert.equal(answered['set-cookie'], undefined);
    }
    assert.equal((await send({ Origin: stage.admin })).status, 303);
  });

  test('a name that leads to this address is no host', async () => {
    for (const host of ['evil.example', 'evil.example:80', '127.0.0.1.evil.example', 'localhost.evil.example', 'evil.example#127.0.0.1']) {
      for (const path of ['/', '/login', '/livez', '/api/v1/status', '/metrics']) {
        const { status, body } = await raw(path, { headers: { Host: host, ...asBearer } });
        assert.ok([400, 403].includes(status), `${host}${path}: ${status}`);
        assert.doesNotMatch(body.toString(), /<html/);
      }
    }
  });

  test('the cookie is for this site and for no script', async () => {
    const [cookie, ...more] = await person.context.cookies();
    assert.deepEqual(more, []);
    assert.equal(cookie.httpOnly, true);
    assert.equal(cookie.sameSite, 'Strict');
    assert.equal(cookie.path, '/');
    assert.equal(await page.evaluate(() => document.cookie), '');
  });
});

describe('requests', () => {
  test('tricks with paths lead nowhere', async () => {
    const paths = [
      '/..%2f', '/%2e%2e/', '/../', '/..', '/prompts/..', '/prompts/%2e%2e/%2e%2e/etc/passwd', '/assets/../gateway.toml', '/assets/..%2f..%2fgateway.toml',
      '/assets/', '/assets/style.css', '/%00', '/prompts/%00', '/prompts/%ff', '/prompts/%', '/prompts/%zz', '/prompts/%c0%af', '/prompts/library__standup%2ftry',
      '/prompts/library__standup%2f..', '/upstreams/..%5c..', '/audit/-1', '/audit/1e9', '/audit/99999999999999999999', `/prompts/${'a'.repeat(4000)}`,
      `/${'a/'.repeat(2000)}`, '/prompts//etc/passwd', '/login/..', '/api/v1/../../gateway.toml', '/api/v1/audit/..%2f..%2faudit.key',
    ];
    for (const path of paths) {
      const { status, body } = await raw(path, { headers: asBearer });
      assert.ok([400, 404, 414].includes(status), `${path}: ${status}`);
      assert.doesNotMatch(body.toString(), /\[admin\]|root:|panicked/);
    }
    // Empty segments change nothing; the second slash begins no host.
    for (const path of ['//', '//evil.example', '///prompts']) {
      const { status, headers } = await raw(path, { headers: asBearer });
      assert.ok([200, 400, 404].includes(status), `${path}: ${status}`);
      assert.equal(headers.location, undefined);
    }
    for (const path of ['//evil.example', '//evil.example/%2f..', '/%5cevil.example']) {
      const { headers } = await raw(path);
      assert.match(headers.location ?? '/login?', /^\/login\?/, path);
      assert.doesNotMatch(decodeURIComponent(headers.location ?? ''), /to=(\/\/|\/\\)/, path);
    }
    const { status } = await raw(`/${'a'.repeat(70_000)}`, { headers: asBearer });
    assert.ok([414, 431].includes(status), `${status}`);
  });

  test('an encoded slash belongs to the name', async () => {
    const { status, body } = await raw(`/prompts/${encodeURIComponent('hostile__//evil.example/x')}`, { headers: asBearer });
    assert.equal(status, 200);
    assert.match(body.toString(), /<h1>hostile__\/\/evil.example\/x/);
  });

  test('only what is known is answered', async () => {
    const headers = asBearer;
    for (const method of ['PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'BREW']) {
      for (const path of ['/', '/approvals/decide', '/api/v1/status', '/livez']) {
        const { status } = await raw(path, { method, headers });
        assert.ok([400, 403, 405, 501].includes(status), `${method} ${path}: ${status}`);
      }
    }
    const head = await raw('/', { method: 'HEAD', headers });
    assert.equal(head.status, 200);
    assert.equal(head.body.length, 0);
    for (const path of ['/', '/prompts', '/audit', '/approvals/x', '/usage?format=csv']) {
      const { status, headers: answered } = await raw(path);
      assert.equal(status, 303, path);
      assert.equal(answered.location, `/login?${form({ to: path })}`);
    }
    for (const path of ['/api/v1/status', '/metrics', '/api/v1/approvals/approve']) assert.equal((await raw(path)).status, 401, path);
  });

  test('pages are compressed, and not sent twice', async () => {
    const packed = await raw('/configuration', { headers: { ...asBearer, 'Accept-Encoding': 'gzip' } });
    assert.equal(packed.headers['content-encoding'], 'gzip');
    const plain = await raw('/configuration', { headers: asBearer });
    assert.equal(plain.headers['content-encoding'], undefined);
    assert.match(gunzipSync(packed.body).toString(), /^<!doctype html>.*<\/html>\s*$/is);
    for (const value of ['gzip;q=0', 'identity', 'br']) {
      const { headers } = await raw('/configuration', { headers: { ...asBearer, 'Accept-Encoding': value } });
      assert.equal(headers['content-encoding'], undefined, value);
    }
    // A page says times such as "2 min ago": its text may change once between two requests.
    let known = packed.headers.etag;
    let again;
    for (let attempt = 0; attempt < 3 && again?.status !== 304; attempt++) {
      again = await raw('/configuration', { headers: { ...asBearer, 'If-None-Match': known } });
      known = again.headers.etag;
    }
    assert.equal(again.status, 304);
    assert.equal(again.body.length, 0);
    const page = plain.body.toString();
    for (const [asset] of page.matchAll(/\/assets\/[\w.]+/g)) {
      const { status, headers } = await raw(asset);
      assert.equal(status, 200);
      assert.match(headers['cache-control'], /immutable/);
      assert.equal((await raw(asset, { headers: { 'If-None-Match': headers.etag } })).status, 304);
    }
  });

  test('the first page has at most 60 KB, with everything', async () => {
    const first = await raw('/', { headers: asBearer });
    const assets = [...first.body.toString().matchAll(/\/assets\/[\w.]+/g)].map(([asset]) => asset);
    const sizes = await Promise.all([...new Set(assets)].map(async (asset) => (await raw(asset)).body.length));
    const total = sizes.reduce((sum, size) => sum + size, first.body.length);
    assert.ok(sizes.length === 3 && total <= 60_000, `${total} bytes without compression`);
  });
});

// Last: after it, nobody can sign in for a while.
test('guesses at the token are limited, and sessions are not', async () => {
  const guess = (token) => raw('/login', { method: 'POST', headers: { ...FORM, Origin: stage.admin }, body: form({ token }) });
  for (let go = 0; go < 5; go++) assert.equal((await guess(`wrong-${go}`)).status, 401);
  for (const token of ['wrong', TOKEN]) {
    const { status, headers } = await guess(token);
    assert.equal(status, 429, 'the right token is not looked at either');
    assert.ok(Number(headers['retry-after']) >= 1 && Number(headers['retry-after']) <= 30);
    assert.equal(headers['set-cookie'], undefined);
  }
  await person.open('/');
  assert.equal((await raw('/api/v1/status', { headers: asBearer })).status, 200);
  assert.equal(stage.audit().match(/"event":"admin_login_failed"/g).length, 5);
  await person.leave();
});
