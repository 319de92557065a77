// Prompt servers of the official TypeScript SDK and of FastMCP, which let in whom the authorization server has signed in.
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { InvalidTokenError } from '@modelcontextprotocol/sdk/server/auth/errors.js';
import { requireBearerAuth } from '@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js';
import {
  getOAuthProtectedResourceMetadataUrl,
  mcpAuthMetadataRouter,
} from '@modelcontextprotocol/sdk/server/auth/router.js';
import { createMcpExpressApp } from '@modelcontextprotocol/sdk/server/express.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { isInitializeRequest } from '@modelcontextprotocol/sdk/types.js';

import { end } from '../../console/lib/process.mjs';
import { RESOURCE_SERVER, SCOPE } from './provider.mjs';

/** The Python that has the clients and servers of other projects. */
export const PYTHON = fileURLToPath(new URL('../../interop/.venv/bin/python', import.meta.url));

/** The TypeScript SDK with its middleware; it asks the authorization server about each token. */
export class TypeScript {
  /** All that was sent to it. */
  heard = '';

  #sessions = new Map();

  static async start(provider) {
    const one = new this();
    one.app = createMcpExpressApp();
    one.http = one.app.listen(0, '127.0.0.1');
    await new Promise((resolve) => one.http.once('listening', resolve));
    one.url = `http://127.0.0.1:${one.http.address().port}/mcp`;
    provider.protect(one.url, 'opaque');
    await one.#serve(provider);
    return one;
  }

  async stop() {
    const closed = new Promise((resolve) => this.http.close(resolve));
    this.http.closeAllConnections();
    await closed;
  }

  async #serve({ issuer }) {
    const resource = new URL(this.url);
    const found = await fetch(`${issuer}/.well-known/oauth-authorization-server`);
    const documents = { oauthMetadata: await found.json(), resourceServerUrl: resource, scopesSupported: [SCOPE] };
    this.app.use(({ url, headers, body }, _, next) => {
      this.heard += JSON.stringify([url, headers, body]);
      next();
    });
    this.app.use(mcpAuthMetadataRouter(documents));
    const guard = requireBearerAuth({
      verifier: { verifyAccessToken: (token) => introspect(issuer, token) },
      requiredScopes: [SCOPE],
      resourceMetadataUrl: getOAuthProtectedResourceMetadataUrl(resource),
      expectedResource: resource,
    });
    this.app.all('/mcp', guard, (request, response) => this.#answer(request, response));
  }

  async #answer(request, response) {
    const { subject } = request.auth.extra;
    let { transport, owner } = this.#sessions.get(request.get('mcp-session-id')) ?? {};
    if (transport && owner !== subject) return response.status(403).end(); // a session is of one subject
    if (!transport && isInitializeRequest(request.body)) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => this.#sessions.set(id, { transport, owner: subject }),
        onsessionclosed: (id) => this.#sessions.delete(id),
      });
      await this.prompts(subject).connect(transport);
    }
    if (!transport) return response.status(404).end();
    await transport.handleRequest(request, response, request.body);
  }

  /** The prompts of a session. */
  prompts() {
    const server = new McpServer({ name: 'wiki', version: '1.0.0' });
    server.registerPrompt('onboarding', { description: 'For the first day' }, () => text('Explain how we work.'));
    server.registerPrompt('minutes', { description: 'Of a meeting' }, ({ authInfo }) =>
      text(`Write the minutes for ${authInfo.extra.subject}.`),
    );
    return server;
  }
}

/** The same with a prompt that is listed for one subject only, and with the server of each subject's session. */
export class Personal extends TypeScript {
  servers = new Map();

  prompts(subject) {
    const server = super.prompts(subject);
    server.registerPrompt(`diary-of-${subject}`, {}, ({ authInfo }) => text(`The diary of ${authInfo.extra.subject}`));
    this.servers.set(subject, server);
    return server;
  }
}

/** RFC 7662. */
async function introspect(issuer, token) {
  const { client_id: id, client_secret: secret } = RESOURCE_SERVER;
  const headers = { Authorization: `Basic ${btoa(`${id}:${secret}`)}` };
  const body = new URLSearchParams({ token });
  const answer = await fetch(`${issuer}/token/introspection`, { method: 'POST', headers, body });
  const { active, client_id: clientId, sub: subject = clientId, scope, exp, aud } = await answer.json();
  if (!active) throw new InvalidTokenError('the token is not active');
  const scopes = scope?.split(' ') ?? [];
  return { token, clientId, scopes, expiresAt: exp, resource: new URL(aud), extra: { subject } };
}

const text = (value) => ({ messages: [{ role: 'user', content: { type: 'text', text: value } }] });

/** FastMCP, which checks signed tokens with the keys of the authorization server and asks nobody. */
export class FastMcp {
  /** All that was sent to it. */
  heard = '';

  static async start(provider) {
    const one = new this();
    const program = fileURLToPath(new URL('fastmcp_server.py', import.meta.url));
    one.process = spawn(PYTHON, [program, provider.issuer, SCOPE], { stdio: ['ignore', 'pipe', 'pipe'] });
    let errors = '';
    one.process.stderr.on('data', (data) => (errors += data));
    const lines = createInterface({ input: one.process.stdout });
    await new Promise((resolve, reject) => {
      lines.on('line', (line) => {
        const [, name, value] = /^(\w+): (.*)$/.exec(line);
        if (name === 'listening') resolve((one.url = value));
        else one.heard += value;
      });
      lines.once('close', () => reject(new Error(`FastMCP ended before it listened: ${errors}`)));
    });
    provider.protect(one.url, 'jwt');
    return one;
  }

  stop() {
    return end(this.process);
  }
}
