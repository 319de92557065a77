// A gateway as a company may have it, with calls of a working day: for pictures, and for measurements.
import { cpSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT, Stage, TOKEN, keyOf, sha256 } from './stage.mjs';
import { Refusal, text } from './upstream.mjs';

const CALLERS = {
  'ada@example.com': ['engineering'],
  'claude-desktop': ['engineering'],
  'ci-reviews': ['automation'],
  'helpdesk-bot': ['support'],
  'joe@example.com': ['support', 'legal'],
};

/** What is called, by whom, and how often among a hundred calls. */
const HABITS = [
  [30, 'ci-reviews', 'library__review-code', { code: 'a patch', focus: 'security' }],
  [14, 'ada@example.com', 'library__review-code', { code: 'a patch' }],
  [12, 'helpdesk-bot', 'support__triage', { ticket: 'It does not start.' }],
  [10, 'helpdesk-bot', 'support__reply', { message: 'It does not start.', language: 'Welsh', outcome: 'We look into it.' }],
  [9, 'claude-desktop', 'research__summarise-paper', { paper: 'arXiv:1706.03762' }],
  [7, 'claude-desktop', 'library__commit-message', { diff: 'a patch' }],
  [7, 'ada@example.com', 'research__compare-vendors', { vendors: 'one and two' }],
  [5, 'joe@example.com', 'legal__review-contract', { contract: 'a contract' }],
  [4, 'joe@example.com', 'support__summarize', { conversation: 'It does not start.' }],
  [2, 'helpdesk-bot', 'library__review-code', { code: 'a patch' }],
];

const argument = (name, description, required = true) => ({ name, description, required });

const RESEARCH = [
  { name: 'summarise-paper', title: 'Summarise a paper', description: 'Claims, method and limits of a paper, on one page.', arguments: [argument('paper', 'DOI, arXiv id or URL')] },
  { name: 'compare-vendors', title: 'Compare vendors', description: 'A table of vendors by price, terms and risk.', arguments: [argument('vendors', 'Names, separated by commas')] },
  { name: 'interview-guide', title: 'Interview guide', description: 'Open questions for a user interview.', arguments: [argument('topic', 'What it is about'), argument('minutes', 'How long it may take', false)] },
  { name: 'weekly-digest', title: 'Weekly digest', description: 'What was published this week in our field.' },
];
const LEGAL = [
  { name: 'review-contract', title: 'Review a contract', description: 'Clauses that need a lawyer, with the reason.', arguments: [argument('contract', 'Its text')] },
  { name: 'answer-dpa', title: 'Answer a data processing questionnaire', description: 'Answers from our records of processing.', arguments: [argument('question', 'The question')] },
];

export class Showcase extends Stage {
  fill() {
    for (const library of ['library', 'support']) {
      cpSync(join(ROOT, 'examples', library), this.path(library), { recursive: true });
    }
    const late = (result, ms) => new Promise((resolve) => setTimeout(resolve, ms * (0.5 + Math.random()), result));
    const answer = (name, given) => ({ description: name, messages: [text(`Work on ${Object.values(given).join(', ')}.`)] });
    Object.assign(this.scripted, { prompts: RESEARCH, get: (name, given) => late(answer(name, given), 40) });
    const refuse = () => Promise.reject(new Refusal('The contract is longer than this server takes.'));
    Object.assign(this.hostile, { prompts: LEGAL, get: (...given) => (Math.random() < 0.3 ? refuse() : late(answer(...given), 15)) });
  }

  config(port) {
    const key = ([id, groups]) =>
      `[[auth.api_keys]]\nid = "${id}"\nhash = "${sha256(keyOf(id))}"\ngroups = ${JSON.stringify(groups)}\n`;
    return `
[server]
listen = "127.0.0.1:0"
[server.limits]
pre_drain = "0s"
[admin]
listen = "127.0.0.1:${port}"
token = { value = "${TOKEN}" }
write = true
try_as = true
[telemetry]
log = "error"
[upstreams.library]
transport = "library"
path = "library"
approval = "enforce"
[upstreams.support]
transport = "library"
path = "support"
[upstreams.research]
transport = "http"
url = "${this.scripted.url}"
revision = "2025-11-25"
approval = "warn"
[upstreams.legal]
transport = "http"
url = "${this.hostile.url}"
revision = "2025-11-25"
[upstreams.crm]
transport = "http"
url = "http://127.0.0.1:9/mcp"
[views.desk]
upstreams = ["support"]
[[overlays]]
upstream = "library"
prompt = "review-*"
tags = ["review"]
[[overlays]]
upstream = "support"
prompt = "reply"
title = "Reply to a ticket"
arguments.language = { default = "English" }
after = { role = "assistant", text = "Understood." }
[[limits]]
name = "reviews of the pipeline"
callers = ["ci-reviews"]
methods = ["prompts/get"]
rate = "90/m"
burst = 20
[[access.rules]]
groups = ["engineering"]
allow = ["list", "get", "complete"]
[[access.rules]]
groups = ["automation"]
allow = ["list", "get"]
upstreams = ["library"]
[[access.rules]]
groups = ["support"]
allow = ["list", "get", "complete"]
upstreams = ["support"]
[[access.rules]]
groups = ["legal"]
allow = ["list", "get", "complete"]
upstreams = ["legal", "research"]
[[access.rules]]
callers = ["console", "promptgate"]
allow = ["list", "get", "complete"]
${Object.entries(CALLERS).map(key).join('')}`;
  }

  /** Calls as people do, more and less over minutes, until `until` is settled. */
  async work(until) {
    const callers = new Map();
    for (const id of Object.keys(CALLERS)) callers.set(id, await this.caller(id));
    const ticks = setInterval(() => {
      const minutes = Date.now() / 60_000;
      const share = 0.45 + 0.3 * Math.sin(minutes) + 0.15 * Math.sin(3.7 * minutes);
      if (Math.random() > share) return;
      const [, id, name, given] = habit();
      callers.get(id).get(name, given).catch(() => {});
    }, 80);
    await until.finally(() => clearInterval(ticks));
  }
}

function habit() {
  let number = Math.random() * 100;
  return HABITS.find(([weight]) => (number -= weight) < 0) ?? HABITS[0];
}
