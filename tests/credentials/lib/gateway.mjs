// The real binary, as an operator runs it: the commands that sign in and out, and the gateway that uses the sign-ins.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { end } from '../../console/lib/process.mjs';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));

/** The binary that is checked. */
export const BINARY = resolve(process.env.PROMPTGATE ?? join(ROOT, 'target/debug/promptgate'));

/** How long a step may take on a busy machine, in milliseconds. */
const PATIENCE = 20_000;

export class Gateway {
  folder = mkdtempSync(join(tmpdir(), 'credentials-'));
  sealKey = randomBytes(32).toString('base64');
  logins = this.path('logins');
  /** All that each process has written, on both streams. */
  output = '';

  #children = new Set();
  #serving = null;
  #upstream;

  /**
   * In TOML: `login` is the value of `credential.login`, `credential` that of a whole `credential`; `wiki` has further
   * keys of the upstream, `server` of `[server]`, `admin` of `[admin]`, and `tables` further tables.
   */
  static async prepare(upstream, options = {}) {
    const one = new this();
    await one.#configure(upstream, options);
    return one;
  }

  /** Another gateway, with the sign-ins of this one. */
  async twin() {
    const one = new Gateway();
    Object.assign(one, { sealKey: this.sealKey, logins: this.logins });
    await one.#configure(this.#upstream, {});
    return one;
  }

  async #configure(upstream, options) {
    this.#upstream = upstream;
    const port = await freePort();
    this.admin = `http://127.0.0.1:${port}`;
    this.configuration = config(this, port, upstream, options);
    writeFileSync(this.path('gateway.toml'), this.configuration);
  }

  path(name) {
    return join(this.folder, name);
  }

  /** Runs a command until it ends; returns `{ code, stdout, stderr }`. */
  run(...command) {
    return this.start(...command).ended;
  }

  /** Starts a command, which may ask or wait for something. */
  start(...command) {
    return new Command(this.#spawn(...command));
  }

  /** Starts `promptgate login wiki`, without a browser of its own unless another option is given. */
  login(option = '--no-browser') {
    return this.start('login', 'wiki', option);
  }

  async serve() {
    const command = this.start('serve');
    this.#serving = command;
    const [, url] = await command.line(/listens on (\S+)/);
    this.mcp = url;
  }

  /** Ends the gateway that serves. */
  async rest() {
    if (!this.#serving) return;
    await end(this.#serving.child);
    await this.#serving.ended;
    this.#serving = null;
  }

  async stop() {
    await this.rest();
    for (const child of this.#children) child.kill('SIGKILL');
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** The document of the admin API about the upstream. */
  async upstream() {
    const response = await fetch(`${this.admin}/api/v1/upstreams`, { headers: { Connection: 'close' } });
    const { upstreams } = await response.json();
    return upstreams.find(({ upstream }) => upstream === 'wiki');
  }

  /** Whether the gateway asks for a sign-in, and says with which command. */
  async wantsSignIn() {
    return JSON.stringify(await this.upstream()).includes('promptgate login wiki');
  }

  /** The entry of `promptgate logins --json` about the upstream. */
  async storedLogin() {
    const { code, stdout, stderr } = await this.run('logins', '--json');
    if (code !== 0) throw new Error(`logins ended with ${code}: ${stderr}`);
    return JSON.parse(stdout).find(({ upstream }) => upstream === 'wiki');
  }

  /** Adds the pages and documents of the admin API to the output. */
  async readAdmin() {
    const documents = ['upstreams', 'catalog', 'accounts'].map((name) => `/api/v1/${name}`);
    for (const path of [...documents, '/metrics', '/upstreams/wiki', '/configuration']) {
      const page = await fetch(this.admin + path, { headers: { Connection: 'close' } });
      if (page.status !== 200) throw new Error(`${path}: ${page.status}`);
      this.output += await page.text();
    }
  }

  /** A real client of the gateway, which brings this credential. */
  async client(bearer) {
    const client = new Client({ name: 'check', version: '1.0.0' });
    const requestInit = bearer && { headers: { Authorization: `Bearer ${bearer}` } };
    await client.connect(new StreamableHTTPClientTransport(new URL(this.mcp), { requestInit }));
    return client;
  }

  /** Waits until something is true, looking again and again. */
  async until(isTrue, patience = PATIENCE) {
    const end = Date.now() + patience;
    while (!(await isTrue())) {
      if (Date.now() > end) throw new Error(`not within ${patience} ms: ${isTrue}\n${this.output.slice(-4000)}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  /** The files in the folder, and the output, that contain one of the values, in plain or in base64. */
  async where(values) {
    const forms = [...values].flatMap((value) => [value, base64(value)]).map((form) => Buffer.from(form));
    const has = (bytes) => forms.some((form) => bytes.includes(form));
    const entries = readdirSync(this.folder, { recursive: true, withFileTypes: true });
    const files = entries
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath ?? entry.path, entry.name));
    const found = files.filter((file) => has(readFileSync(file)));
    if (has(Buffer.from(this.output))) found.push('the output');
    return found;
  }

  #spawn(...command) {
    const child = spawn(BINARY, [...command, '--config', this.path('gateway.toml')], {
      env: { ...process.env, BROWSER: this.path('browser'), PROMPTGATE_ADMIN_TOKEN: ADMIN_TOKEN },
    });
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (this.output += data));
    child.stdin.on('error', () => {}); // it may end before it reads
    this.#children.add(child);
    child.once('close', () => this.#children.delete(child));
    return child;
  }
}

/** A command that runs. */
export class Command {
  stdout = '';
  stderr = '';

  constructor(child) {
    this.child = child;
    child.stdout.on('data', (data) => (this.stdout += data));
    child.stderr.on('data', (data) => (this.stderr += data));
    this.ended = new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code) => resolve({ code, stdout: this.stdout, stderr: this.stderr }));
    });
  }

  /** Waits for a line on standard output, and returns the match. */
  line(pattern, patience) {
    return this.#read('stdout', pattern, patience);
  }

  /** Waits for a line on standard error, and returns the match. */
  says(pattern) {
    return this.#read('stderr', pattern);
  }

  #read(name, pattern, patience = PATIENCE) {
    const stream = this.child[name];
    return new Promise((resolve, reject) => {
      const fail = (why) => () => settle(reject, new Error(`${why} before ${pattern}: ${this.stdout}${this.stderr}`));
      const [late, ended] = [fail('too late'), fail('it ended')];
      const timer = setTimeout(late, patience);
      const look = () => {
        const lines = this[name].split('\n').slice(0, -1); // the last one is not complete
        const found = lines.map((line) => pattern.exec(line)).find(Boolean);
        if (found) settle(resolve, found);
      };
      const settle = (how, value) => {
        clearTimeout(timer);
        stream.off('data', look);
        this.child.off('close', ended);
        how(value);
      };
      stream.on('data', look);
      this.child.once('close', ended);
      look();
    });
  }

  /** The URL that stands alone on a line, which the browser is sent to. */
  async url() {
    const [found] = await this.line(/^https?:\/\/\S+$/);
    return new URL(found);
  }

  /** Writes a line to standard input. */
  type(line) {
    this.child.stdin.write(`${line}\n`);
  }
}

/** The `admin.token` of gateways that have one. */
export const ADMIN_TOKEN = 'the-operator-of-the-gateway';

function config({ sealKey, logins }, port, upstream, options) {
  const { login = '{}', credential = `{ login = ${login} }`, wiki = '', server = '', tables = '', admin = '' } = options;
  return `
[server]
listen = "127.0.0.1:0"
seal_key = { value = "${sealKey}" }
${server}
[server.limits]
pre_drain = "0s"
[admin]
listen = "127.0.0.1:${port}"
${admin}
[telemetry]
log = "debug" # which says most
[logins]
path = "${logins}"
[upstreams.wiki]
transport = "http"
url = "${upstream}"
credential = ${credential}
breaker = { failures = 2, open_min = "1s", open_max = "1s" }
${wiki}
${tables}
`;
}

/** The base64 of a text, as far as it does not depend on what follows. */
function base64(value) {
  return Buffer.from(value)
    .subarray(0, value.length - (value.length % 3))
    .toString('base64');
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
