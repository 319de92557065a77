// Texts of upstreams, callers and visitors that would be markup or script: pages show them as text.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';

import { Person, close, launch, squeezed } from './lib/browser.mjs';
import { HOSTILE, asImage, asMessages, isName } from './lib/payloads.mjs';
import { FORM, form, requester } from './lib/raw.mjs';
import { BINARY, HOSTILE_CALLERS, Stage, TOKEN } from './lib/stage.mjs';
import { Refusal } from './lib/upstream.mjs';

let stage, browser, person, page;

before(async () => {
  [stage, browser] = await Promise.all([Stage.start(), launch()]);
  person = await (await Person.arrive(browser, stage)).signIn();
  ({ page } = person);
});

after(async () => {
  await person?.leave();
  await close(browser);
  await stage?.stop();
});

/** Fails unless the page shows a text as text, at least so often, and nothing has come of it. */
async function shows(payload, times = 1) {
  const text = await person.text();
  const found = text.split(squeezed(payload)).length - 1;
  assert.ok(found >= times, `“${payload}” is shown ${found} times, not ${times}, on ${page.url()}`);
  await isHarmless();
}

async function isHarmless() {
  assert.equal(await page.evaluate(() => window.__owned), undefined);
  person.check();
}

test('there are enough of them', () => {
  assert.ok(HOSTILE.length >= 30 && HOSTILE_CALLERS.length >= 10);
});

test('names, titles and descriptions in lists', async () => {
  for (const path of ['/prompts?q=hostile', '/approvals', '/approvals?page=2', '/access?q=hostile', '/']) {
    await person.open(path);
    await isHarmless();
  }
  for (const payload of HOSTILE.filter(isName)) assert.ok(await linkTo(payload), payload);
});

const links = new Map(); // from the names of prompts to their addresses

/** The address of a prompt's page, as the lists of prompts have it. */
async function linkTo(payload) {
  for (let number = 1; links.size < HOSTILE.filter(isName).length; number++) {
    await person.open(`/prompts?upstream=hostile&page=${number}`);
    const found = page.getByRole('region', { name: 'Prompts', exact: true }).locator('th a');
    for (const [name, path] of await found.evaluateAll((all) => all.map((a) => [a.textContent, a.pathname]))) links.set(name, path);
    assert.ok(number < 9, 'there are not so many pages');
  }
  return links.get(`hostile__${payload}`);
}

test('a prompt, its trial and its approval', async () => {
  for (const payload of HOSTILE.filter(isName)) {
    await person.open(await linkTo(payload));
    assert.equal(squeezed(await page.locator('h1').innerText()), squeezed(`hostile__${payload}`));
    await shows(payload, 5);
    await page.getByRole('link', { name: 'Try', exact: true }).click();
    await page.locator('[data-complete]').waitFor();
    stage.hostile.get = () => ({ description: payload, messages: asMessages(payload) });
    await page.locator('[data-complete]').fill(payload);
    await tryIt();
    await shows(payload, 11);
    stage.hostile.get = () => ({ messages: asImage(payload) });
    await tryIt();
    await shows(payload, 6);
    assert.equal(await page.locator('[data-complete]').inputValue(), payload);
    await page.locator('a.state').first().click();
    await page.locator('.diff').waitFor({ state: 'attached' });
    await shows(payload, 3);
  }
});

async function tryIt() {
  await page.getByRole('button', { name: 'Get the prompt' }).click();
  await page.waitForURL('**/try#result');
  await page.locator('#result').waitFor();
}

test('changes of a text, and its versions', async () => {
  // Sequences of Jinja would be an error of the file.
  const lines = HOSTILE.filter((payload) => !/[{}]|^ /.test(payload));
  stage.edit('standup', lines.join('\n'));
  await stage.until(() => stage.isState('library__standup', 'changed'));
  await person.open('/approvals/library__standup');
  for (const line of lines) await shows(line);
  await stage.approvals('approve', 'library__standup', '--yes');
  await stage.until(() => stage.isState('library__standup', 'approved'));
  for (const path of ['/prompts/library__standup', '/prompts/library__standup/versions']) {
    await person.open(path);
    for (const line of lines) await shows(line);
  }
});

test('values of a completion, and errors of upstreams', async () => {
  stage.hostile.complete = () => HOSTILE;
  await person.open(`${await linkTo(HOSTILE[0])}/try`);
  await page.locator('[data-complete]').pressSequentially('x');
  const values = page.locator('.suggestions button');
  await values.first().waitFor();
  assert.deepEqual(await values.evaluateAll((all) => all.map((one) => one.textContent)), HOSTILE.slice(0, 8));
  for (const payload of batches(4)) {
    stage.hostile.get = () => Promise.reject(new Refusal(payload));
    await tryIt();
    await shows(payload);
  }
});

test('ids of callers', async () => {
  await person.open('/access?q=triage');
  for (const caller of HOSTILE_CALLERS) {
    await (await stage.caller(caller)).get('support__triage', { ticket: caller });
    await person.open(`/access?${form({ q: 'triage', who: caller })}`);
    await shows(caller);
  }
  for (const path of ['/prompts/support__triage/uses', '/usage?by=caller', '/audit?prompt=support__triage', '/configuration?q=auth']) {
    await person.open(path);
    await isHarmless();
    const text = await person.text();
    const shown = HOSTILE_CALLERS.filter((caller) => text.includes(caller));
    assert.ok(shown.length >= 10, `${path} shows ${shown.length} callers`);
  }
});

test('lines on standard error', async () => {
  await person.open('/upstreams/child');
  for (const line of HOSTILE.slice(-20)) await shows(line);
});

test('values of the configuration', async () => {
  await person.open('/configuration?q=instructions');
  await shows(HOSTILE[0]);
});

test('what a visitor types or is made to open', async () => {
  for (const payload of batches(6)) {
    await person.open(`/prompts?${form({ q: payload, tag: payload, upstream: payload, sort: payload })}`);
    assert.equal(await page.locator('main').getByRole('searchbox').inputValue(), payload);
    await isHarmless();
  }
  await person.open('/access');
  for (const payload of batches(6)) {
    await page.getByLabel('Rules, as they').fill(payload);
    await page.getByRole('button', { name: 'Compare' }).click();
    await page.locator('.attention .bad').first().waitFor();
    assert.equal(await page.getByLabel('Rules, as they').inputValue(), payload);
    await isHarmless();
  }
  person.refusals.add(404).add(400);
  for (const payload of batches(20)) {
    for (const path of ['/usage', '/audit', '/approvals', '/configuration', '/connect']) {
      const query = form({ q: payload, by: payload, span: payload, caller: payload, view: payload, page: payload });
      // The page of uses refuses values that it does not know.
      await person.open(`${path}?${query}`, path === '/usage' ? 400 : 200);
      await isHarmless();
    }
    for (const path of ['/upstreams/', '/prompts/', '/approvals/']) {
      await person.open(path + encodeURIComponent(payload), 404);
      await isHarmless();
    }
  }
});

/** All payloads, so many in one text. */
function batches(size) {
  const starts = HOSTILE.map((_, index) => index).filter((index) => index % size === 0);
  return starts.map((start) => HOSTILE.slice(start, start + size).join(' '));
}

test('where a sign-in leads to', async () => {
  const stranger = await Person.arrive(browser, stage);
  const raw = requester(stage.admin);
  const elsewhere = ['//evil.example', '/\\evil.example', 'https://evil.example/', 'javascript:alert(1)', '/%09/evil.example', '/%2F/evil.example', '%2F%2Fevil.example'];
  for (const to of [...elsewhere, ...HOSTILE]) {
    const answer = await raw('/login', { method: 'POST', headers: { ...FORM, Origin: stage.admin }, body: form({ token: TOKEN, to }) });
    assert.equal(answer.status, 303, to);
    const url = new URL(answer.headers.location, stage.admin);
    assert.equal(url.origin, stage.admin, to);
    await stranger.page.goto(`/login?${form({ to })}`);
    assert.equal(new URL(stranger.page.url()).origin, stage.admin);
  }
  await stranger.leave();
});

test('ids of upstreams cannot hold any', async () => {
  for (const [index, id] of HOSTILE.slice(0, 5).entries()) {
    const file = stage.path(`upstream-${index}.toml`);
    writeFileSync(file, `[upstreams.${JSON.stringify(id)}]\ntransport = "library"\npath = "library"\n`);
    await assert.rejects(promisify(execFile)(BINARY, ['check', '--config', file]), { code: 64 });
  }
});
