// Every page, with and without script, in both themes, on a wide and on a narrow screen.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { Person, close, launch } from './lib/browser.mjs';
import { LOGIN, PAGES, TROUBLE } from './lib/pages.mjs';
import { Stage } from './lib/stage.mjs';

const THEMES = ['light', 'dark'];
const WIDTHS = [360, 768, 1280];

let stage, browser, cookies;

before(async () => {
  [stage, browser] = await Promise.all([Stage.start(), launch()]);
  const caller = await stage.caller('ci');
  await caller.get('library__review-code', { code: 'a patch' });
  const person = await (await Person.arrive(browser, stage)).signIn();
  cookies = await person.context.storageState();
  await person.leave();
});

after(async () => {
  await close(browser);
  await stage?.stop();
});

/** Opens a page and looks at its headers, its heading, its width, and for barriers where that is asked. */
async function look(person, { path, heading, status = 200 }, forBarriers) {
  const { page } = person;
  const headers = (await person.open(path, status)).headers();
  assert.match(headers['content-security-policy'], /default-src 'none'.*frame-ancestors 'none'/);
  assert.doesNotMatch(headers['content-security-policy'], /unsafe|\*|http:|https:/);
  assert.equal(headers['x-frame-options'], 'DENY');
  assert.equal(headers['x-content-type-options'], 'nosniff');
  assert.equal(await page.locator('h1').innerText(), heading);
  assert.equal(await page.locator('h1, main').count(), 2, 'one heading of the first rank and one main part');
  const { scrollWidth, innerWidth } = await page.evaluate(() => {
    return { scrollWidth: document.scrollingElement.scrollWidth, innerWidth };
  });
  assert.ok(scrollWidth <= innerWidth, `it is ${scrollWidth} px wide on a screen of ${innerWidth} px`);
  if (forBarriers) assert.deepEqual(await person.barriers(), []);
}

for (const script of [true, false]) {
  for (const theme of THEMES) {
    for (const width of WIDTHS) {
      describe(`${script ? 'with' : 'without'} script, ${theme}, ${width} px`, () => {
        let person;
        before(async () => {
          person = await Person.arrive(browser, stage, { script, theme, width, cookies });
        });
        after(() => person.leave());
        for (const shown of [...PAGES, TROUBLE, LOGIN]) {
          test(shown.name, async () => {
            // On a narrow screen the dark theme has nothing of its own.
            await look(person, shown, script && !(theme === 'dark' && width === 360) && width !== 768);
            person.check();
          });
        }
      });
    }
  }
}

test('every page is read in forced colours', async () => {
  const person = await Person.arrive(browser, stage, { colors: 'active', cookies });
  for (const shown of PAGES) await look(person, shown, true);
  await person.leave();
});

test('on a phone the menu opens the navigation', async () => {
  const person = await Person.arrive(browser, stage, { width: 390, script: false, cookies });
  await person.open('/');
  const link = person.page.locator('nav[aria-label=Console] a[href="/audit"]');
  assert.equal(await link.isVisible(), false);
  await person.page.getByRole('button', { name: 'Menu' }).click();
  await link.click();
  await person.page.waitForURL('**/audit');
  await person.leave();
});

test('on a phone no table is wider than the screen', async () => {
  const person = await Person.arrive(browser, stage, { width: 390, script: false, cookies });
  for (const { path } of PAGES) {
    await person.open(path);
    const wide = await person.page.locator('.scroll').evaluateAll((all) =>
      all.filter(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth).map(({ ariaLabel }) => ariaLabel),
    );
    assert.deepEqual(wide, [], path);
  }
  await person.leave();
});

test('at 1280 px the header and each number take one line, and a reading moves no plot', async () => {
  const person = await Person.arrive(browser, stage, { width: 1280, cookies });
  const { page } = person;
  await person.open('/usage');
  await page.locator('.brand a').evaluate((brand) => (brand.textContent = 'Acme prompts (staging)'));
  const lines = (all) => all.map((part) => part.offsetHeight);
  assert.deepEqual((await page.locator('header').evaluateAll(lines)).filter((height) => height > 60), []);
  const numbers = await page.locator('td.number').evaluateAll(lines);
  assert.ok(numbers.length > 0 && numbers.every((height) => height < 40), `${numbers}`);
  const top = () => page.locator('svg[data-plot]').first().evaluate((plot) => plot.getBoundingClientRect().top);
  const before = await top();
  await page.locator('.step').last().hover({ force: true });
  await page.locator('output', { hasText: ':' }).first().waitFor();
  assert.equal(await top(), before);
  await person.leave();
});

test('the navigation leads to each page', async () => {
  const person = await Person.arrive(browser, stage, { cookies });
  await person.open('/');
  const links = await person.page.locator('nav[aria-label=Console] a').evaluateAll((all) => all.map((a) => a.pathname));
  const paths = PAGES.map(({ path }) => path);
  assert.deepEqual(links.filter((link) => !paths.includes(link)), []);
  for (const { path, heading } of PAGES.filter(({ path }) => links.includes(path))) {
    await person.page.locator(`nav[aria-label=Console] a[href="${path}"]`).click();
    assert.equal(await person.page.locator('h1').innerText(), heading);
    assert.equal(await person.page.locator('[aria-current=page]').innerText(), heading);
  }
  await person.leave();
});
