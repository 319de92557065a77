// A client of the MCP endpoint, as callers use it.

export class Caller {
  #url;
  #headers;
  #id = 0;

  /** `key` is the API key; without one the caller is anonymous. */
  constructor(url, key) {
    this.#url = url;
    this.#headers = {
      'Content-Type': 'application/json',
      Accept: 'application/json, text/event-stream',
      ...(key && { Authorization: `Bearer ${key}` }),
    };
  }

  /** The headers of a request in its session. */
  get headers() {
    return { ...this.#headers };
  }

  async connect() {
    const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'check', version: '1' } };
    const { headers } = await this.#post({ id: 0, method: 'initialize', params });
    this.#headers['Mcp-Session-Id'] = headers.get('mcp-session-id');
    this.#headers['MCP-Protocol-Version'] = '2025-11-25';
    await this.#post({ method: 'notifications/initialized' });
    return this;
  }

  /** Gets a prompt; returns the JSON-RPC message of the answer. */
  async get(name, given = {}) {
    const params = { name, arguments: given };
    const { body } = await this.#post({ id: ++this.#id, method: 'prompts/get', params });
    return body;
  }

  async #post(message) {
    const body = JSON.stringify({ jsonrpc: '2.0', ...message });
    const response = await fetch(this.#url, { method: 'POST', headers: this.#headers, body });
    const answer = await response.text();
    const data = answer.split('\n').findLast((line) => line.startsWith('data: {'));
    return { headers: response.headers, body: answer && JSON.parse(data ? data.slice(6) : answer) };
  }
}
