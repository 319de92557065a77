// Pictures of every page, for the eye: node pictures.mjs [MINUTES of calls before them] [best: those of the documents alone]
import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';

import { Person, close, launch } from './lib/browser.mjs';
import { LOGIN, PAGES, TROUBLE } from './lib/pages.mjs';
import { Showcase } from './lib/showcase.mjs';

const minutes = Number(process.argv[2] ?? 1);
const folder = process.env.PICTURES ?? mkdtempSync(join(tmpdir(), 'pictures-'));
const shown = PAGES.map((page) => (page.name === 'upstream' ? { ...page, path: '/upstreams/legal' } : page));

/** Pictures of the documents: the beginning of a page, in a theme. */
const BEST = [
  { name: 'overview', path: '/', theme: 'light', height: 700 },
  { name: 'prompts', path: '/prompts', theme: 'light', height: 620 },
  { name: 'text', path: '/prompts/library__review-code', theme: 'light', height: 700 },
  { name: 'prompt', path: '/prompts/support__reply/try', theme: 'dark', height: 820 },
  { name: 'approval', path: '/approvals/library__review-code', theme: 'light', height: 860 },
  { name: 'access', path: '/access', theme: 'light', height: 620 },
  { name: 'audit', path: '/audit', theme: 'light', height: 620 },
  { name: 'usage', path: '/usage', theme: 'dark', height: 700 },
];

async function main() {
  mkdirSync(folder, { recursive: true });
  const [stage, browser] = await Promise.all([Showcase.start(), launch()]);
  try {
    // The calls go on while the pictures are taken, so that plots do not end in silence.
    await stage.work(setTimeout(minutes * 60_000).then(() => takeAll(browser, stage)));
  } finally {
    await close(browser);
    await stage.stop();
  }
  console.log(folder);
}

async function takeAll(browser, stage) {
  stage.edit('review-code', 'End with the one finding that matters most.');
  stage.edit('standup', 'No more than five lines.');
  await stage.until(() => stage.isState('library__review-code', 'changed'));
  for (const best of BEST) await frame(browser, stage, best);
  if (process.argv[3] === 'best') return;
  for (const theme of ['light', 'dark']) for (const width of [1440, 360]) await take(browser, stage, theme, width);
}

async function take(browser, stage, theme, width) {
  const person = await Person.arrive(browser, stage, { theme, width });
  const { page } = person;
  const picture = (name) => page.screenshot({ path: join(folder, `${name}-${theme}-${width}.png`), fullPage: true });
  await page.goto(LOGIN.path);
  await picture(LOGIN.name);
  await person.signIn();
  for (const { name, path, status } of [...shown, TROUBLE]) {
    await person.open(path, status);
    await picture(name);
  }
  await tryReply(person);
  await picture('trial');
  await person.open('/access');
  await page.getByLabel('Rules, as they').fill('[[access.rules]]\ngroups = ["support"]\nallow = ["list"]\n');
  await page.getByRole('button', { name: 'Compare' }).click();
  await page.getByText(/rights? would change/).click();
  await page.getByRole('region', { name: 'Changes' }).waitFor();
  await picture('what-if');
  await person.leave();
}

async function tryReply(person) {
  const { page } = person;
  await person.open('/prompts/support__reply/try');
  await page.getByLabel('message (required)').fill('The export has been stuck since Monday.');
  await page.getByRole('button', { name: 'Get the prompt' }).click();
  await page.locator('#result').waitFor();
}

async function frame(browser, stage, { name, path, theme, height }) {
  const person = await (await Person.arrive(browser, stage, { theme, width: 1280 })).signIn(path);
  await person.page.setViewportSize({ width: 1280, height });
  if (name === 'prompt') await tryReply(person);
  await person.page.evaluate(() => scrollTo(0, 0));
  await person.page.screenshot({ path: join(folder, `console-${name}.png`) });
  await person.leave();
}

await main();
