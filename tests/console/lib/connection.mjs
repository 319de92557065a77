// A connection that sends one prepared request over and over: cheap enough to load a gateway from the same machine.
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';

const HEAD_END = Buffer.from('\r\n\r\n');
const CHUNKS_END = Buffer.from('0\r\n\r\n');

export class Connection {
  /** The request without an answer: when it was due, and what its answer resolves. */
  #open;
  #received = Buffer.alloc(0);
  #socket;
  #request;
  /** Milliseconds from each request to the end of its answer. */
  times = [];
  failures = 0;

  /** `headers` and `message` are those of the request. */
  static open(url, headers, message) {
    const { hostname, port, host, pathname } = new URL(url);
    const body = JSON.stringify(message);
    const fields = { Host: host, ...headers, 'Content-Length': Buffer.byteLength(body) };
    const head = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
    const connection = new Connection();
    connection.#request = Buffer.from(`POST ${pathname} HTTP/1.1\r\n${head.join('')}\r\n${body}`);
    return new Promise((resolve, reject) => {
      const socket = connect({ host: hostname, port: Number(port), noDelay: true }, () => resolve(connection));
      socket.on('error', reject);
      socket.on('close', () => connection.#end(false));
      socket.on('data', (data) => connection.#receive(data));
      connection.#socket = socket;
    });
  }

  /**
   * Resolves once the answer is here, or the connection is closed. `due` is when the request should have been sent:
   * waiting for a connection is part of its time.
   */
  send(due) {
    return new Promise((resolve) => {
      this.#open = { due, resolve };
      this.#socket.write(this.#request);
    });
  }

  close() {
    this.#socket.destroy();
  }

  #receive(data) {
    this.#received = this.#received.length ? Buffer.concat([this.#received, data]) : data;
    const end = this.#received.indexOf(HEAD_END);
    if (end < 0) return;
    const head = this.#received.subarray(0, end).toString('latin1').toLowerCase();
    const length = /content-length: (\d+)/.exec(head)?.[1];
    const isWhole = length
      ? this.#received.length >= end + 4 + Number(length)
      : this.#received.indexOf(CHUNKS_END, end) > 0;
    if (!isWhole) return;
    const isResult = head.startsWith('http/1.1 200') && !this.#received.includes('"error"');
    this.#received = Buffer.alloc(0);
    this.#end(isResult);
  }

  #end(isResult) {
    if (!this.#open) return;
    const { due, resolve } = this.#open;
    this.#open = undefined;
    if (!isResult) this.failures++;
    this.times.push(performance.now() - due);
    resolve();
  }
}
