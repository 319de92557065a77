// The real binary with a configuration of its own, before libraries, a real server, and scripted upstreams.
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { Caller } from './caller.mjs';
import { HOSTILE, asPrompt, isName } from './payloads.mjs';
import { end } from './process.mjs';
import { Upstream, text } from './upstream.mjs';

const HERE = fileURLToPath(new URL('.', import.meta.url));
export const ROOT = resolve(HERE, '../../..');
const EVERYTHING = join(ROOT, 'tests/interop/node_modules/@modelcontextprotocol/server-everything/dist/index.js');

/** The binary that is checked. */
export const BINARY = resolve(process.env.PROMPTGATE ?? join(ROOT, 'target/debug/promptgate'));

export const TOKEN = 'an-admin-token-for-checks';

/** Callers with a key each, and their groups. */
const CALLERS = { ci: ['engineering'], helpdesk: ['support'], intern: [], hasty: [] };

/** Ids of callers that try to be markup: ids have no white space. A dozen; each is a column or a row of many pages. */
export const HOSTILE_CALLERS = HOSTILE.filter((payload) => !/\s/u.test(payload)).slice(0, 12);

export const sha256 = (value) => `sha256:${createHash('sha256').update(value).digest('hex')}`;
export const keyOf = (caller) => `key-of-${sha256(caller)}`;
const toml = JSON.stringify; // of strings, and of lists of them

export class Stage {
  folder = mkdtempSync(join(tmpdir(), 'console-'));
  /** Prompts that are harmless, and slow or failing ones. */
  scripted = new Upstream();
  /** Prompts of somebody who means harm. */
  hostile = new Upstream();

  static async start() {
    const stage = new this();
    try {
      await stage.set();
    } catch (error) {
      await stage.stop();
      throw error;
    }
    return stage;
  }

  async set() {
    this.fill();
    await Promise.all([this.scripted.start(), this.hostile.start()]);
    const port = await freePort();
    this.admin = `http://127.0.0.1:${port}`;
    writeFileSync(this.path('gateway.toml'), this.config(port));
    await this.#serve();
    await this.until(async () => (await this.api('/api/v1/upstreams')).upstreams.every(isSettled));
    await this.approvals('approve', '--upstream', 'library', '--yes', '--why', 'first review');
    await this.until(() => this.isState('library__review-code', 'approved'));
  }

  /** What the upstreams offer. */
  fill() {
    for (const library of ['library', 'support']) {
      cpSync(join(ROOT, 'examples', library), this.path(library), { recursive: true });
    }
    Object.assign(this.scripted, script());
    Object.assign(this.hostile, harm());
  }

  async #serve() {
    this.process = spawn(BINARY, ['serve', '--config', this.path('gateway.toml')]);
    this.errors = '';
    this.process.stderr.on('data', (data) => (this.errors += data));
    const lines = createInterface({ input: this.process.stdout });
    for await (const line of lines) {
      this.mcp = /listens on (\S+)/.exec(line)?.[1];
      if (this.mcp) break;
    }
    if (!this.mcp) throw new Error(`the gateway ended before it listened: ${this.errors}`);
    this.process.stdout.resume(); // the end of the loop pauses it, and the gateway would block on a full pipe
  }

  async stop() {
    if (this.process) await end(this.process);
    await Promise.allSettled([this.scripted.stop(), this.hostile.stop()]);
    rmSync(this.folder, { recursive: true, force: true });
  }

  path(name) {
    return join(this.folder, name);
  }

  /** A document of the admin API. */
  async api(path) {
    const response = await fetch(this.admin + path, {
      headers: { Authorization: `Bearer ${TOKEN}`, Connection: 'close' },
    });
    return response.json();
  }

  /** The command `promptgate approvals`, as a person at a terminal would run it. */
  approvals(...command) {
    return promisify(execFile)(BINARY, ['approvals', ...command, '--config', this.path('gateway.toml')]);
  }

  async approvalOf(name) {
    const { prompts } = await this.api('/api/v1/approvals');
    return prompts.find((approval) => approval.name === name);
  }

  async isState(name, state) {
    return (await this.approvalOf(name))?.state === state;
  }

  /** Changes the text of a prompt of a library, as a new line at its end. */
  edit(prompt, line) {
    const file = this.path(`library/${prompt}.md`);
    writeFileSync(file, `${readFileSync(file, 'utf8')}\n${line}\n`);
  }

  /** The records of the audit log, as text. */
  audit() {
    const files = readdirSync(this.path('audit')).filter((name) => name.endsWith('.jsonl'));
    return files.map((name) => readFileSync(join(this.path('audit'), name), 'utf8')).join('');
  }

  caller(id) {
    return new Caller(this.mcp, id && keyOf(id)).connect();
  }

  /** Waits until something is true, looking again and again. */
  async until(isTrue, patience = 20_000) {
    const end = Date.now() + patience;
    while (!(await isTrue())) {
      if (Date.now() > end) throw new Error(`not within ${patience} ms: ${isTrue}\n${this.errors}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  config(port) {
    const keys = [...Object.entries(CALLERS), ...HOSTILE_CALLERS.map((id) => [id, []])];
    const key = ([id, groups]) =>
      `[[auth.api_keys]]\nid = ${toml(id)}\nhash = "${sha256(keyOf(id))}"\ngroups = ${toml(groups)}\n`;
    return `
[server]
listen = "127.0.0.1:0"
instructions = ${toml(HOSTILE[0])}
[server.limits]
pre_drain = "0s"
[admin]
listen = "127.0.0.1:${port}"
token = { value = "${TOKEN}" }
write = true
try_as = true
render_timeout = "10s"  # an unoptimised binary on a busy machine
[telemetry]
log = "error"
[naming]
max_length = 128
[approvals]
mode = "off"
[upstreams.library]
transport = "library"
path = "library"
approval = "enforce"
[upstreams.support]
transport = "library"
path = "support"
[upstreams.everything]
transport = "stdio"
command = ${toml([process.execPath, EVERYTHING, 'stdio'])}
[upstreams.child]
transport = "stdio"
command = ${toml([process.execPath, join(HERE, 'child.mjs'), ...HOSTILE])}
[upstreams.scripted]
transport = "http"
url = "${this.scripted.url}"
revision = "2025-11-25"
breaker = { failures = 2, open_min = "1s", open_max = "1s" }
[upstreams.hostile]
transport = "http"
url = "${this.hostile.url}"
revision = "2025-11-25"
approval = "warn"
[views.team]
upstreams = ["support", "scripted"]
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
name = "tries of the hasty"
callers = ["hasty"]
methods = ["prompts/get"]
rate = "1/h"
[[access.rules]]
groups = ["engineering"]
allow = ["list", "get", "complete"]
[[access.rules]]
callers = ["anonymous", "console", "promptgate", ${HOSTILE_CALLERS.map(toml)}]
allow = ["list", "get", "complete"]
[[access.rules]]
groups = ["support"]
allow = ["list", "get", "complete"]
upstreams = ["support"]
[[access.rules]]
callers = ["intern", "hasty"]
allow = ["list", "get"]
upstreams = ["scripted"]
${keys.map(key).join('')}`;
  }
}

/** Whether an upstream has a list, or has failed. */
const isSettled = ({ prompts, error }) => prompts !== undefined || error !== undefined;

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** A picture of one pixel, and a sound of no length. */
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const SILENCE = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=';

const argument = (name, required, description) => ({ name, required, description });

/** The harmless upstream: 60 prompts on two pages, and one prompt for each kind of answer. */
function script() {
  const of = (type, fields) => ({ role: 'user', content: { type, ...fields } });
  const answers = {
    contents: () => ({
      description: 'Every type of content',
      messages: [
        text('A text.', 'assistant'),
        of('image', { mimeType: 'image/png', data: PIXEL }),
        of('audio', { mimeType: 'audio/wav', data: SILENCE }),
        of('resource', { resource: { uri: 'note://one', mimeType: 'text/plain', text: 'A note.' } }),
        of('resource', { resource: { uri: 'note://two', mimeType: 'application/pdf', blob: PIXEL } }),
        of('resource_link', { uri: 'note://three', name: 'three', description: 'A note elsewhere.' }),
      ],
    }),
    hidden: () => ({ messages: [text('Plain\u202e and \u200bhidden\u{e0041}.')] }),
    greet: (given) => ({ messages: [text(`Greet ${given.city} for ${given.reason ?? 'no reason'}.`)] }),
    broken: () => Promise.reject(new Error('The database of prompts is on fire.')),
  };
  const number = (_, index) => `many-${String(index + 1).padStart(2, '0')}`;
  const many = Array.from({ length: 60 }, number).map((name) => ({ name, title: `One of many`, description: name }));
  return {
    prompts: [
      { name: 'contents', description: 'Answers with every type of content.' },
      { name: 'hidden', description: 'Answers with hidden characters.' },
      {
        name: 'greet',
        title: 'Greet a city',
        description: 'Greets a city.',
        arguments: [argument('city', true, 'Where'), argument('reason', false, 'Why')],
      },
      { name: 'broken', description: 'Fails.' },
      { name: 'left\u200bout', description: 'Has a hidden character in its name.' },
      ...many,
    ],
    get: (name, given) => answers[name]?.(given) ?? { messages: [text(`This is ${name}.`)] },
    complete: (_, { value }) => ['Cardiff', 'Caernarfon', 'Swansea'].filter((city) => city.startsWith(value)),
  };
}

/** The hostile upstream: a prompt for each payload, which is in each of its parts. */
function harm() {
  const prompts = HOSTILE.map((payload, index) => asPrompt(payload, isName(payload) ? payload : `payload-${index}`));
  return { prompts };
}
