// The console without a mouse.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Person, close, launch } from './lib/browser.mjs';
import { PAGES } from './lib/pages.mjs';
import { Stage, TOKEN } from './lib/stage.mjs';

let stage, browser, person, page, keyboard;

before(async () => {
  [stage, browser] = await Promise.all([Stage.start(), launch()]);
  person = await Person.arrive(browser, stage);
  ({ page } = person);
  ({ keyboard } = page);
});

after(async () => {
  await person?.leave();
  await close(browser);
  await stage?.stop();
});

/** What has the focus: its name, its place in the document, and whether a person sees that it has it. */
const focused = () =>
  page.evaluate(() => {
    const { activeElement: element } = document;
    const { outlineStyle, outlineWidth } = getComputedStyle(element);
    const { top, bottom, left, right } = element.getBoundingClientRect();
    const label = element.labels?.[0]?.firstChild?.textContent ?? element.getAttribute('aria-label') ?? element.textContent;
    return {
      name: label.trim(),
      tag: element.localName,
      index: [...document.querySelectorAll('*')].indexOf(element),
      // The browser itself outlines the parts of a date.
      isOutlined: element.type === 'datetime-local' || (outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2),
      isOnScreen: top < bottom && left < right && bottom > 0 && top < innerHeight && right > 0 && left < innerWidth,
    };
  });

/** Presses Tab until something with this name has the focus; fails if it is unreachable, unseen, or out of order. */
async function tabTo(name, from = -1) {
  for (let presses = 0, last = from; presses < 400; presses++) {
    await keyboard.press('Tab');
    const at = await focused();
    if (at.tag === 'body') break;
    assert.ok(at.index > last, `${at.name} is out of order`);
    assert.ok(at.isOutlined, `the focus on ${at.name} (${at.tag}) is not to be seen`);
    assert.ok(at.isOnScreen, `${at.name} (${at.tag}) has the focus off the screen`);
    if (at.name === name) return at.index;
    last = at.index;
  }
  assert.fail(`no way to ${name}`);
}

/** Presses Enter on what has the focus, and waits for the page that it leads to. */
async function enter(url) {
  // A form may lead back to its own page, whose address alone does not show that it was sent.
  const navigated = page.waitForEvent('framenavigated');
  await keyboard.press('Enter');
  await navigated;
  await page.waitForURL(url);
}

test('somebody signs in', async () => {
  await person.open('/prompts');
  assert.equal((await focused()).tag, 'input', 'the field of the token has the focus');
  await keyboard.type(TOKEN);
  await enter('**/prompts');
});

test('the first Tab leads past the navigation', async () => {
  await keyboard.press('Tab');
  const skip = await focused();
  assert.equal(skip.name, 'Skip to the content');
  assert.ok(skip.isOnScreen && skip.isOutlined, 'the link is to be seen');
  await enter('**/prompts#main');
  await tabTo('Search', skip.index);
});

test('a prompt is found', async () => {
  await keyboard.type('greet');
  await page.waitForURL('**/prompts?q=greet');
  await page.getByRole('row').nth(1).getByRole('link', { name: 'scripted__greet' }).waitFor();
  await tabTo('scripted__greet');
  await enter('**/prompts/scripted__greet');
  await tabTo('Try');
  await enter('**/prompts/scripted__greet/try');
});

test('it is tried', async () => {
  await tabTo('city (required)');
  await keyboard.type('Cardiff');
  await tabTo('Get the prompt');
  await enter('**/prompts/scripted__greet/try#result');
  await page.locator('#result').waitFor();
  assert.match(await person.text('#result'), /Greet Cardiff for no reason\./);
});

test('a prompt is decided on', async () => {
  stage.edit('standup', 'Be brief.');
  await stage.until(() => stage.isState('library__standup', 'changed'));
  await person.open('/');
  await tabTo('Approvals');
  await enter('**/approvals');
  await tabTo('Search');
  await keyboard.type('standup');
  await page.waitForURL('**/approvals?q=standup');
  await tabTo('library__standup');
  await enter('**/approvals/library__standup');
  await tabTo('Reason');
  await keyboard.type('without a mouse');
  await tabTo('Approve what is offered');
  await enter((url) => url.searchParams.get('after') === 'library__standup');
  await stage.until(() => stage.isState('library__standup', 'approved'));
});

test('keys lead through what waits, and to the search', async () => {
  await page.evaluate(() => document.activeElement.blur());
  await person.open('/approvals?state=waiting');
  const [first, second] = await page.locator('tbody th a').evaluateAll((all) => all.map((a) => a.pathname));
  await person.open(first);
  await keyboard.press('j');
  await page.waitForURL(`**${second}`);
  await keyboard.press('k');
  await page.waitForURL(`**${first}`);
  await keyboard.press('a');
  assert.equal((await focused()).name, 'Approve what is offered');
  await keyboard.press('r');
  assert.equal((await focused()).name, 'Reject it');
  await keyboard.press('/');
  await keyboard.type('greet');
  await enter('**/search?q=greet');
  assert.match(await person.text('main'), /scripted__greet/);
});

test('the values of a plot are read', async () => {
  await person.open('/usage');
  const plot = page.locator('[data-plot]').first();
  await plot.focus();
  const values = page.locator('figure.plot output').first();
  await keyboard.press('End');
  const last = await values.textContent();
  assert.match(last, /^\d\d:\d\d: uses: \d+, failures: \d+, refused by limits: \d+$/);
  await keyboard.press('ArrowLeft');
  assert.notEqual(await values.textContent(), last);
  await page.locator('[data-plot] .step').nth(3).hover();
  assert.match(await values.textContent(), /: uses: no data,/, 'of the time before the gateway began');
});

test('no page holds the focus', async () => {
  for (const { path } of PAGES) {
    await person.open(path);
    const reachable = await page.evaluate(() => {
      const all = document.querySelectorAll('a[href], button:enabled, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]');
      return [...all].filter((element) => element.checkVisibility()).length;
    });
    let presses = 0;
    for (let last = -1; ; presses++) {
      await keyboard.press('Tab');
      const at = await focused();
      if (at.tag === 'body' || at.index < last) break; // out of the page, or round
      assert.ok(presses < 3 * reachable + 20, `${path}: the focus does not leave ${at.name}`);
      assert.ok(at.isOutlined && at.isOnScreen, `${path}: the focus on ${at.name} (${at.tag}) is not to be seen`);
      last = at.index;
    }
    assert.ok(presses >= reachable, `${path}: ${presses} of ${reachable} are reached`);
  }
});
