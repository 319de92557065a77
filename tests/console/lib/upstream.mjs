// A scripted upstream: an MCP server (Streamable HTTP, 2025-11-25) whose prompts and answers a check sets.
import { createServer } from 'node:http';

const REVISION = '2025-11-25';

/** What an upstream answers instead of a result. */
export class Refusal extends Error {
  constructor(message, code = -32602) {
    super(message);
    this.code = code;
  }
}

export const text = (value, role = 'user') => ({ role, content: { type: 'text', text: value } });

export class Upstream {
  /** What it lists. */
  prompts = [];
  /** The result of a get; may throw a Refusal or return a promise. */
  get = (name) => ({ messages: [text(`This is ${name}.`)] });
  /** The values of a completion. */
  complete = () => [];

  #port = 0;
  #server = null;
  #streams = new Set();

  get url() {
    return `http://127.0.0.1:${this.#port}/mcp`;
  }

  async start() {
    this.#server = createServer((request, response) => this.#answer(request, response));
    await new Promise((resolve) => this.#server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = this.#server.address().port;
    return this;
  }

  /** Goes away; `start` brings it back at the same address. */
  async stop() {
    this.#streams.clear();
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  /** Tells the gateway that the list is another one. */
  changed() {
    const message = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/prompts/list_changed' });
    for (const stream of this.#streams) stream.write(`data: ${message}\n\n`);
  }

  async #answer(request, response) {
    if (request.method === 'GET') return this.#stream(response);
    if (request.method !== 'POST') return response.writeHead(405).end();
    let body = '';
    for await (const part of request) body += part;
    const { id, method, params } = JSON.parse(body);
    if (id === undefined) return response.writeHead(202).end();
    const message = { jsonrpc: '2.0', id, ...(await this.#perform(method, params ?? {})) };
    response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(message));
  }

  #stream(response) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write(': open\n\n');
    this.#streams.add(response);
    response.on('close', () => this.#streams.delete(response));
  }

  async #perform(method, params) {
    try {
      return { result: await this.#result(method, params) };
    } catch (error) {
      return { error: { code: error.code ?? -32603, message: error.message } };
    }
  }

  #result(method, params) {
    switch (method) {
      case 'initialize':
        return {
          protocolVersion: REVISION,
          serverInfo: { name: 'scripted', version: '1' },
          capabilities: { prompts: { listChanged: true }, completions: {} },
        };
      case 'ping':
        return {};
      case 'prompts/list':
        return { prompts: this.prompts };
      case 'prompts/get':
        return this.get(params.name, params.arguments ?? {});
      case 'completion/complete':
        return { completion: { values: this.complete(params.ref.name, params.argument) } };
      default:
        throw new Refusal(`unknown method ${method}`, -32601);
    }
  }
}
