// Chromium, with an eye on everything that a page must not do.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout } from 'node:timers/promises';

import { chromium } from 'playwright-core';

import { TOKEN } from './stage.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** What axe-core looks for. */
const AXE_OPTIONS = { resultTypes: ['violations'], preload: false };

export const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });

/**
 * Closes a browser, or a part of one. Chromium does not always answer: then it is killed when this process ends, which
 * `--test-force-exit` brings about.
 */
export const close = (closable) => Promise.race([closable?.close(), setTimeout(10_000)]);

/** Somebody before a browser. Everything that their pages say or want beyond the console is collected. */
export class Person {
  /** What no page may do: messages on the console, dialogs, violations of the policy, requests elsewhere. */
  faults = [];
  /** The statuses of errors that a check wants; Chromium reports each. */
  refusals = new Set();

  static async arrive(browser, stage, { script = true, theme = 'light', colors = 'none', width = 1440, cookies } = {}) {
    const person = new Person();
    person.stage = stage;
    person.context = await browser.newContext({
      baseURL: stage.admin,
      javaScriptEnabled: script,
      colorScheme: theme,
      forcedColors: colors,
      viewport: { width, height: 900 },
      storageState: cookies,
    });
    person.context.setDefaultTimeout(10_000);
    person.#watch();
    person.page = await person.context.newPage();
    return person;
  }

  #watch() {
    const { context, faults, stage } = this;
    context.on('console', (message) => {
      const fault = `console: ${message.text()} at ${message.page()?.url()}`;
      if (!this.#isExpected(fault)) faults.push(fault);
    });
    context.on('weberror', (error) => faults.push(`error: ${error.error()}`));
    context.on('dialog', (dialog) => {
      faults.push(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    context.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(`${stage.admin}/`) && !url.startsWith('data:')) faults.push(`request: ${url}`);
    });
    context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) => {
        console.error(`violation of ${event.violatedDirective}: ${event.blockedURI}`);
      });
    });
  }

  #isExpected(fault) {
    const [, status] = /the server responded with a status of (\d+)/.exec(fault) ?? [];
    return this.refusals.has(Number(status));
  }

  /** Signs in through the form; the page that was wanted is open then. */
  async signIn(wanted = '/') {
    await this.page.goto(wanted);
    await this.page.getByLabel('Admin token').fill(TOKEN);
    await this.page.getByRole('button', { name: 'Sign in' }).click();
    await this.page.waitForURL((url) => url.pathname !== '/login');
    return this;
  }

  /** Opens a page, and fails unless it is answered with this status. */
  async open(path, status = 200) {
    if (status >= 400) this.refusals.add(status);
    const response = await this.page.goto(path);
    assert.equal(response.status(), status, `${path}: status`);
    return response;
  }

  /** The visible text of the page, with single spaces. */
  async text(of = 'body') {
    return squeezed(await this.page.locator(of).innerText());
  }

  /** Fails if a page has done what it must not do. Ends the pages of this person. */
  async leave() {
    if (this.page.url().startsWith(this.stage.admin)) {
      assert.equal(await this.page.evaluate(() => window.__owned), undefined, 'a text was run as a script');
    }
    await close(this.context);
    this.check();
  }

  /** Fails if a page has said or wanted something since the last look. */
  check() {
    assert.deepEqual(this.faults.splice(0), []);
  }

  /** Serious and critical violations of accessibility on the open page. */
  async barriers() {
    await this.page.evaluate(AXE);
    const { violations } = await this.page.evaluate((options) => window.axe.run(document, options), AXE_OPTIONS);
    const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
    return grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.html}`).join(' | ')}`);
  }
}

export const squeezed = (value) => value.replace(/\s+/g, ' ').trim();
