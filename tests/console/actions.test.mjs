// What people do on the console, with and without script.
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';

import { Person, close, launch } from './lib/browser.mjs';
import { Stage } from './lib/stage.mjs';

let stage, browser;

before(async () => {
  [stage, browser] = await Promise.all([Stage.start(), launch()]);
});

after(async () => {
  await close(browser);
  await stage?.stop();
});

/** The query of an address without the fields that were left empty. */
function withoutEmpty(url) {
  const query = new URLSearchParams([...url.searchParams].filter(([, value]) => value));
  return query.size ? `?${query}` : '';
}

for (const script of [true, false]) {
  describe(script ? 'with script' : 'without script', () => {
    let person, page;
    const number = script ? 1 : 2; // each round has words of its own

    before(async () => {
      person = await Person.arrive(browser, stage, { script });
      page = person.page;
    });
    after(() => person.leave());

    const button = (name) => page.getByRole('button', { name, exact: true });
    /** Presses a button that sends its form, and waits for the page that answers: no later step meets its arrival. */
    const press = (name) => Promise.all([page.waitForEvent('load'), button(name).click()]);
    const heading = () => page.locator('h1').innerText();
    const says = async (...words) => {
      const said = await person.text('main');
      for (const word of words) assert.ok(said.includes(word), `the page does not say “${word}”: ${said.slice(0, 1500)}`);
    };
    const rows = (of = 'main') => page.locator(`${of} tbody`).first().locator('tr');
    const names = (of) => rows(of).locator('th').allInnerTexts();

    const box = (name) => page.getByRole('textbox', { name, exact: true });
    const search = (name = 'Search') => page.getByRole('searchbox', { name, exact: true });
    const choice = (name) => page.getByRole('combobox', { name, exact: true });

    /** Sends a form of filters: as one types where there is a script, else with the button. */
    async function filter(fill, query) {
      await fill();
      if (!script) await page.locator('form.filter button').click();
      await page.waitForURL((url) => withoutEmpty(url) === query);
      await page.waitForFunction(() => !document.querySelector('.busy'));
    }

    test('a wrong token is refused, the right one leads to the page that was wanted', async () => {
      person.refusals.add(401);
      await page.goto('/upstreams?from=here');
      assert.equal(new URL(page.url()).pathname, '/login');
      await page.getByLabel('Admin token').fill('wrong');
      await press('Sign in');
      await page.getByRole('alert').waitFor();
      await says('This token is not the value of admin.token');
      await person.signIn('/upstreams?from=here');
      assert.equal(page.url(), `${stage.admin}/upstreams?from=here`);
      assert.equal(await heading(), 'Upstreams');
    });

    test('prompts are searched for', async () => {
      await person.open('/prompts');
      let loads = 0;
      page.on('load', () => loads++);
      await filter(() => search().pressSequentially('greet'), '?q=greet');
      assert.deepEqual(await rows().locator('th a').allInnerTexts(), ['scripted__greet']);
      if (script) assert.equal(loads, 0, 'the page was not loaded again');
      await filter(() => search().fill('xyzzy'), '?q=xyzzy');
      await says('No prompt matches.');
    });

    test('prompts are filtered, sorted and paged', async () => {
      await person.open('/prompts');
      await follow('Upstream', 'scripted', '?upstream=scripted');
      assert.equal(await rows().count(), 50);
      await page.getByRole('link', { name: 'Next page' }).first().click();
      await page.waitForURL(/page=2/);
      assert.equal(await rows().count(), 14);
      await page.getByRole('link', { name: 'Previous page' }).first().click();
      await page.waitForURL(/page=1/);
      await person.open('/prompts?upstream=scripted&page=2');
      await Promise.all([page.waitForURL(/sort=-name/), page.getByRole('columnheader', { name: 'Prompt' }).getByRole('link').click()]);
      assert.equal(page.url(), `${stage.admin}/prompts?upstream=scripted&sort=-name`, 'from the first page');
      assert.match((await names())[0], /^scripted__many-60\b/);
      assert.equal(await page.locator('[aria-sort]').getAttribute('aria-sort'), 'descending');
      await person.open('/prompts');
      await filter(() => box('Tag').fill('review'), '?tag=review');
      assert.deepEqual(await links(), ['library__review-architecture', 'library__review-code']);
      await person.open('/prompts');
      await filter(() => choice('View').selectOption('team'), '?view=team');
      assert.ok((await names()).every((name) => /^(support|scripted)__/.test(name)));
      await person.open('/prompts');
      await follow('State', /^pending \d+$/, '?state=pending');
      assert.ok((await names()).every((name) => name.startsWith('hostile__')));
      await filter(() => search().fill('payload-1'), '?q=payload-1&state=pending');
      assert.ok((await links()).every((name) => name.startsWith('hostile__')), 'a search keeps what links have chosen');
    });

    /** The names of prompts alone. */
    const links = () => rows().locator('th a').allInnerTexts();

    /** Follows a link of a row of filters. */
    async function follow(label, name, query) {
      await page.getByRole('list', { name: label }).getByRole('link', { name, exact: true }).click();
      await page.waitForURL((url) => url.search === query);
      assert.equal(await page.getByRole('list', { name: label }).locator('[aria-current]').count(), 1);
    }

    test('prompts have their uses of the week', async () => {
      const caller = await stage.caller('ci');
      await caller.get('library__standup', {}).catch(() => {});
      await person.open('/prompts?q=standup');
      const row = page.getByRole('row', { name: 'library__standup' });
      await stage.until(async () => {
        await person.open('/prompts?q=standup');
        return /[1-9]\d* uses? this week/.test(await row.textContent());
      });
      assert.equal(await row.locator('svg[aria-hidden=true] path').count(), 1);
    });

    test('the first steps are done, and changes lead to their records', async () => {
      await person.open('/');
      assert.equal(await page.getByRole('heading', { name: 'First steps' }).count(), 0);
      await stage.until(async () => {
        await person.open('/');
        return /signed in to the console/.test(await person.text('main'));
      });
      await page.locator('.news li', { hasText: 'signed in to the console' }).first().getByRole('link').first().click();
      await page.waitForURL('**/audit/*');
      await says('admin_login');
      await person.open('/');
      await page.locator('.tiles').getByRole('link', { name: /upstreams up/ }).click();
      assert.equal(await heading(), 'Upstreams');
    });

    test('a prompt that is left out stands with its hidden character', async () => {
      await person.open('/prompts?q=out&upstream=scripted');
      await says('leftU+200Bout', 'scripted');
    });

    test('a prompt is tried with arguments', async () => {
      await person.open('/prompts/scripted__greet/try');
      await button('Get the prompt').click();
      assert.equal(await heading(), 'scripted__greet');
      assert.equal(await page.getByRole('region', { name: 'Result' }).count(), 0, 'an argument is required');
      if (script) await completes();
      await page.getByLabel('city (required)', { exact: true }).fill('Cardiff');
      await page.getByLabel('reason', { exact: true }).fill('Because <it> rains & shines');
      await press('Get the prompt');
      await page.locator('#result').waitFor();
      await says('ok as console', 'Greet Cardiff for Because <it> rains & shines.');
      assert.equal(await page.getByLabel('city (required)', { exact: true }).inputValue(), 'Cardiff');
    });

    /** What the upstream suggests stands below the field as one types. */
    async function completes() {
      await page.getByLabel('city (required)', { exact: true }).pressSequentially('Ca');
      const list = page.getByRole('group', { name: 'Suggestions for city' }).getByRole('button');
      await list.first().waitFor();
      assert.deepEqual(await list.allInnerTexts(), ['Cardiff', 'Caernarfon']);
      await list.last().click();
      assert.equal(await page.getByLabel('city (required)', { exact: true }).inputValue(), 'Caernarfon');
    }

    test('choices of an argument are offered', async () => {
      await person.open('/prompts/library__review-code/try');
      assert.ok((await choice('focus').locator('option').allInnerTexts()).includes('security'));
    });

    test('a trial keeps the lines of a text, and has its record', async () => {
      await person.open('/prompts/scripted__greet/try');
      await page.getByLabel('city (required)', { exact: true }).fill('one\ntwo');
      if (script) await page.keyboard.press('Control+Enter');
      else await button('Get the prompt').click();
      await page.locator('#result').waitFor();
      assert.ok((await page.locator('#result .text').innerText()).includes('Greet one\ntwo'));
      assert.equal(await page.getByLabel('city (required)', { exact: true }).inputValue(), 'one\ntwo');
      await page.getByRole('link', { name: /^record \d+$/ }).click();
      await says('scripted__greet', 'console');
    });

    test('every type of content is shown', async () => {
      await person.open('/prompts/scripted__contents/try');
      await press('Get the prompt');
      await page.locator('#result').waitFor();
      await says('Every type of content', 'A text.', 'assistant');
      await says('note://one', 'A note.', 'note://two', 'application/pdf', 'Link to three', 'A note elsewhere.');
      const image = page.getByAltText('Image of the prompt');
      assert.equal(await image.evaluate((img) => img.decode().then(() => img.naturalWidth)), 1);
      assert.equal(await page.locator('audio').evaluate((audio) => audio.error), null);
      assert.equal(await page.locator('#result article a').count(), 0, 'no address of a result can be followed');
    });

    test('hidden characters are counted and marked', async () => {
      await person.open('/prompts/scripted__hidden/try');
      await press('Get the prompt');
      await page.locator('#result').waitFor();
      await says('3 hidden characters', 'PlainU+202E and U+200BhiddenU+E0041.');
    });

    test('a prompt that fails says why', async () => {
      await person.open('/prompts/scripted__broken/try');
      await press('Get the prompt');
      await page.locator('#result').waitFor();
      await says('The database of prompts is on fire.');
      assert.equal(await page.locator('#result .state-failed').count(), 1);
    });

    test('a prompt is tried with the rights of somebody else', async () => {
      await person.open('/prompts/support__reply/try');
      const tryAs = async (who, outcome) => {
        await choice('With the rights of').selectOption(who);
        for (const field of await page.locator('form.fields textarea[required]').all()) await field.fill('x');
        await press('Get the prompt');
        await page.locator('#result').waitFor();
        await says(`${outcome} as`);
      };
      await tryAs('helpdesk', 'ok');
      await tryAs('group support', 'ok');
      await tryAs('intern', 'unknown_prompt');
      assert.match(stage.audit(), /"tried_by":"token"/);
    });

    test('a limit holds for trials, too', async () => {
      await person.open('/prompts/scripted__many-01/try');
      for (let go = 0; go < 2; go++) {
        await choice('With the rights of').selectOption('hasty');
        await press('Get the prompt');
        await page.locator('#result').waitFor();
      }
      await says('rate_limited');
    });

    test('prompts that changed are approved, rejected and rolled back', async () => {
      const [why, name] = [`a reason of round ${number}`, 'library__standup'];
      const open = () => person.open(`/approvals/${name}`);
      const decide = async (action, state, event) => {
        await open();
        if (event === 'prompt_rolled_back') await page.getByText('Take back').click();
        const form = page.locator('form', { has: page.getByRole('button', { name: action }) });
        await form.getByLabel('Reason').fill(`${action}: ${why}`);
        // The form leads to the next prompt that waits, or back to its own page.
        const navigated = page.waitForEvent('framenavigated');
        await press(action);
        await navigated;
        await page.waitForURL((url) => url.searchParams.get('after') === name);
        await stage.until(() => stage.isState(name, state));
        await stage.until(() => stage.audit().split('\n').some((line) => line.includes(event) && line.includes(`${action}: ${why}`)));
      };
      stage.edit('standup', `Round ${number}: be brief.`);
      await stage.until(() => stage.isState(name, 'changed'));
      await open();
      await says('changed', `Round ${number}: be brief.`);
      assert.ok((await page.locator('.diff .add').allTextContents()).some((line) => line.includes(`Round ${number}: be brief.`)));
      await decide('Reject it', 'rejected', 'prompt_rejected');
      await decide('Approve what is offered', 'approved', 'prompt_approved');
      await open();
      await says(why);
      await decide('Go back to the version before', 'changed', 'prompt_rolled_back');
      await decide('Approve what is offered', 'approved', 'prompt_approved');
    });

    test('a decision on an old page is on what the page shows', async () => {
      const name = 'library__write-tests';
      stage.edit('write-tests', `Round ${number}.`);
      await stage.until(() => stage.isState(name, 'changed'));
      await person.open(`/approvals/${name}`);
      const { source } = (await stage.approvalOf(name)).offered;
      stage.edit('write-tests', 'Nobody has seen this line.');
      await stage.until(async () => (await stage.approvalOf(name)).offered.source !== source);
      await press('Approve what is offered');
      await page.waitForURL((url) => url.searchParams.get('after') === name);
      await stage.until(async () => (await stage.approvalOf(name)).approved?.source === source);
      assert.ok(await stage.isState(name, 'changed'));
      await stage.approvals('approve', name, '--yes');
      await stage.until(() => stage.isState(name, 'approved'));
    });

    test('approvals are searched for', async () => {
      await person.open('/approvals');
      await page.getByRole('link', { name: /^approved \d/ }).click();
      await page.waitForURL('**/approvals?state=approved');
      assert.ok((await names()).every((name) => name.startsWith('library__')));
      await filter(() => search().fill('standup'), '?q=standup&state=approved');
      assert.deepEqual(await names(), ['library__standup']);
    });

    test('the access matrix is searched, and other rules are compared', async () => {
      await person.open('/access');
      await filter(async () => {
        await search('Prompts').fill('triage');
        await search('Callers and groups').fill('helpdesk');
      }, '?q=triage&who=helpdesk');
      await says('support__triage', 'everything');
      const compare = async (rules) => {
        await page.getByLabel('Rules, as they').fill(rules);
        await press('Compare');
        await page.waitForURL('**/access#what-if');
      };
      const rule = '[[access.rules]]\ncallers = ["helpdesk"]\nallow = ["list"]\n';
      await compare(rule);
      await says('helpdesk loses rights to 1 prompt', '1 right would change');
      await page.getByText('1 right would change').click();
      assert.deepEqual(await rows('[aria-label=Changes]').allInnerTexts(), [
        'helpdesk\tsupport__triage\teverything\tlist\taccess.rules.1',
      ]);
      await person.open('/access');
      await page.getByRole('list', { name: 'Columns' }).getByRole('link', { name: /^Groups and \d+ callers$/ }).click();
      await page.waitForURL('**/access?callers=1');
      assert.equal(await page.getByRole('columnheader').count(), 13, 'the name, and as many columns as fit');
      await person.open('/access?q=triage&who=helpdesk');
      await compare('[[access.rules]]\nallow = ["dance"]\n');
      assert.ok((await page.locator('.attention .bad').count()) > 0, 'mistakes are named');
      await compare('[[access.rules]]\ncallers = ["helpdesk"]\nallow = ["list", "get", "complete"]\n');
      await says('These rules change nothing');
    });

    test('the configuration is searched, and a reload with a mistake is shown', async () => {
      await person.open('/configuration');
      await filter(() => search().fill('try_as'), '?q=try_as');
      assert.deepEqual(await names(), ['admin.try_as']);
      const file = stage.path('gateway.toml');
      const right = readFileSync(file, 'utf8');
      writeFileSync(file, `${right}\n[no-such-table]\n`);
      stage.process.kill('SIGHUP');
      await stage.until(async () => /Mistakes in the file/.test(await (await page.request.get('/configuration')).text()));
      await person.open('/configuration');
      await says('Mistakes in the file', 'no-such-table');
      await person.open('/');
      await says('The configuration file is rejected');
      writeFileSync(file, right);
      stage.process.kill('SIGHUP');
      await stage.until(async () => !/Mistakes in the file/.test(await (await page.request.get('/configuration')).text()));
    });

    test('the entry of each host names the endpoint of the view that is chosen', async () => {
      await person.open('/connect');
      await page.getByRole('link', { name: 'team', exact: true }).click();
      await page.waitForURL('**/connect?host=claude-code&view=team');
      await says(`claude mcp add --transport http prompts ${stage.mcp}/team`);
      const hosts = page.getByRole('navigation', { name: 'Hosts' }).getByRole('link');
      assert.ok((await hosts.count()) > 5);
      await hosts.filter({ hasText: 'Cursor' }).click();
      await page.waitForURL('**/connect?host=cursor&view=team');
      await says(`"url": "${stage.mcp}/team"`);
      const link = await page.getByRole('link', { name: 'Add to Cursor' }).getAttribute('href');
      const config = new URL(link).searchParams.get('config');
      assert.equal(JSON.parse(Buffer.from(config, 'base64')).url, `${stage.mcp}/team`);
    });

    test('a page that follows shows an upstream that goes down', async () => {
      await person.open('/upstreams');
      const row = page.getByRole('row', { name: 'scripted' });
      assert.match(await row.innerText(), /\bup\b/);
      await stage.scripted.stop();
      const caller = await stage.caller('ci');
      await stage.until(async () => {
        await caller.get('scripted__contents');
        return (await stateOf('scripted')) === 'down';
      });
      if (!script) await person.open('/upstreams');
      await row.getByText('down').waitFor({ timeout: 15_000 });
      await stage.scripted.start();
      await stage.until(async () => (await stateOf('scripted')) === 'up', 60_000);
      if (!script) await person.open('/upstreams');
      await row.getByText('up', { exact: true }).waitFor({ timeout: 15_000 });
    });

    const stateOf = async (id) => {
      const { upstreams } = await stage.api('/api/v1/upstreams');
      return upstreams.find(({ upstream }) => upstream === id).state;
    };

    test('usage is filtered, and downloaded as a table', async () => {
      await person.open('/usage');
      await filter(() => choice('Prompt').fill('scripted__contents'), '?by=prompt&span=24h&sort=uses&prompt=scripted__contents');
      assert.deepEqual(await names('#usage > .scroll'), ['scripted__contents']);
      const download = page.waitForEvent('download');
      await page.getByRole('link', { name: 'Download as CSV' }).click();
      const table = readFileSync(await (await download).path(), 'utf8').split('\r\n');
      assert.match(table[0], /^key,upstream,uses,/);
      assert.match(table[1], /^scripted__contents,scripted,\d+,/);
      await person.open('/usage');
      await filter(() => choice('By').selectOption('caller'), '?by=caller&span=24h&sort=uses');
      assert.ok((await names('#usage > .scroll')).includes('console'));
      await filter(() => choice('Span').selectOption('7d'), '?by=caller&span=7d&sort=uses');
      await says('By caller, last 7 days');
    });

    test('records are searched, and one is read', async () => {
      await person.open('/audit');
      await page.getByRole('link', { name: 'Decisions', exact: true }).click();
      await page.waitForURL('**/audit?event=decisions');
      await says('token rejected standup of library');
      await page.getByText('Search', { exact: true }).first().click();
      await filter(() => box('Event').fill('prompt_rejected'), '?event=prompt_rejected');
      await says('token rejected standup of library');
      await rows().first().getByRole('rowheader').getByRole('link').click();
      assert.match(await heading(), /^Record \d+$/);
      await says('prompt_rejected', 'standup', 'library', 'token');
      await person.open('/audit/999999999', 404);
      await person.open('/audit?caller=nobody-of-this-name');
      assert.match(await person.text('main'), /Nothing was found in [\d,]+ records since/);
      await person.open('/audit');
      await page.getByText('Search', { exact: true }).first().click();
      await filter(() => page.getByLabel('From (UTC)').fill('2001-01-01T00:00'), '?from=2001-01-01T00%3A00');
      await page.getByRole('link', { name: 'Older records' }).click();
      await page.waitForURL(/before=/);
      assert.ok((await rows().count()) > 0);
    });

    test('records are followed as they are written', async () => {
      const name = `support__${script ? 'triage' : 'summarize'}`;
      await person.open('/audit?caller=helpdesk&prompt=' + name);
      await (await stage.caller('helpdesk')).get(name, { ticket: 'x', thread: 'x' });
      if (!script) await page.reload();
      await page.getByRole('row', { name }).first().waitFor();
    });

    test('an address without a page leads to the overview', async () => {
      for (const path of ['/nowhere', '/prompts/nowhere', '/upstreams/nowhere', '/approvals/nowhere', '/prompts/a/b/c']) {
        await person.open(path, 404);
        await page.getByRole('link', { name: 'Go to the overview' }).click();
        assert.equal(await heading(), 'Overview');
      }
    });

    test('an action can be read again as a page', async () => {
      for (const path of ['/prompts/scripted__contents/try', '/approvals/decide', '/logout']) await person.open(path);
    });

    test('a sign-out ends the session in each tab', async () => {
      const other = await person.context.newPage();
      await other.goto('/');
      await person.open('/');
      await press('Sign out');
      await page.waitForURL('**/login');
      await other.reload();
      assert.equal(new URL(other.url()).pathname, '/login');
      await close(other);
      assert.match(stage.audit(), /"event":"admin_logout"/);
    });
  });
}

test('the script follows a session that ends to the sign-in', async () => {
  const person = await (await Person.arrive(browser, stage)).signIn('/upstreams');
  await person.context.clearCookies();
  await person.page.waitForURL('**/login?to=%2Fupstreams', { timeout: 15_000 });
  await person.leave();
});
