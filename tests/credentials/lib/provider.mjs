// An authorization server that nobody here wrote: oidc-provider, with its own pages for signing in.
import { EventEmitter } from 'node:events';
import { createServer } from 'node:http';

import { exportJWK, generateKeyPair } from 'jose';
import OidcProvider, { errors } from 'oidc-provider';

import { PARAMETERS, TOKEN_EXCHANGE, exchange } from './exchange.mjs';
import { ASSERTING_CLIENT, GRANT_PROFILE, JWT_BEARER, take } from './id_jag.mjs';

// Its notices say that this is no production.
for (const level of ['info', 'warn']) {
  const write = console[level];
  console[level] = (...parts) => String(parts[0]).startsWith('oidc-provider ') || write(...parts);
}

/** The scope of prompts, at every resource. */
export const SCOPE = 'prompts:read';

/** The resource servers ask about opaque tokens as this client. */
export const RESOURCE_SERVER = { client_id: 'resource-server', client_secret: 'secret-of-the-resource-server' };

/** A client that an operator registered by hand. */
export const OPERATORS_CLIENT = { client_id: 'by-hand', client_secret: 'secret-of-the-client-by-hand' };

/** The resource that is the gateway itself: callers have tokens for it. */
export const GATEWAY = 'https://prompts.example.com/mcp';

/** The gateway as a client, which acts as itself and exchanges the tokens of callers. */
export const GATEWAYS_CLIENT = { client_id: 'gateway', client_secret: 'secret-of-the-gateway-as-a-client' };

/** The client that callers sign in with. */
export const CALLERS_CLIENT = { client_id: 'assistant', redirect_uris: ['http://127.0.0.1/callback'] };

/** The client of a workload, which has a key in place of a secret. */
export const WORKLOADS_CLIENT = { client_id: 'workload' };

const DEVICE_CODE = 'urn:ietf:params:oauth:grant-type:device_code';

/** What no log, file or page may have: of answers, and of what is sent. */
const SECRET_FIELDS = [
  'access_token',
  'refresh_token',
  'id_token',
  'client_secret',
  'registration_access_token',
  'device_code',
];
const SECRET_PARAMETERS = ['code', 'code_verifier', 'device_code', 'subject_token', 'assertion', 'client_assertion'];

export class AuthorizationServer {
  /** What was asked, in order: `{ route, params, status, answer, detail }`. */
  requests = [];
  /** Everything secret that was issued or sent. */
  secrets = new Set([OPERATORS_CLIENT, GATEWAYS_CLIENT, ASSERTING_CLIENT].map((client) => client.client_secret));

  /** Whether every request is answered with 503. */
  isAway = false;

  #resources = new Map([[GATEWAY, 'jwt']]);
  #grants = new Set();
  #unknown = new Set();
  #heard = new EventEmitter();
  #renewals = null;

  /**
   * `lifetime` is that of access tokens for upstreams, in seconds; `path` is that of the issuer, as of one tenant of
   * many; with `authMethods`, clients authenticate by no other methods; `workloadKey` is the public key (JWK) of the
   * workload; identity assertions of the issuer `trusted` are taken.
   */
  static async start({ lifetime = 3600, path = '', authMethods, workloadKey, trusted } = {}) {
    const one = new this();
    one.http = createServer();
    await new Promise((resolve) => one.http.listen(0, '127.0.0.1', resolve));
    one.issuer = `http://127.0.0.1:${one.http.address().port}${path}`;
    const { privateKey: key } = await generateKeyPair('RS256', { extractable: true });
    one.provider = new OidcProvider(one.issuer, {
      ...one.#configuration(lifetime, authMethods, workloadKey, trusted),
      jwks: { keys: [await exportJWK(key)] },
    });
    const account = (id) => one.#account(id);
    const known = { account, resource: (resource) => one.#resource(resource, lifetime), key };
    one.provider.registerGrantType(TOKEN_EXCHANGE, exchange(GATEWAY, known), PARAMETERS);
    if (trusted) one.provider.registerGrantType(JWT_BEARER, take(trusted, known), ['assertion']);
    one.#watch();
    const answer = below(path, one.provider.callback());
    one.http.on('request', (request, response) =>
      one.isAway ? response.writeHead(503).end() : answer(request, response),
    );
    return one;
  }

  async stop() {
    const closed = new Promise((resolve) => this.http.close(resolve));
    this.http.closeAllConnections();
    await closed;
  }

  /** Issues tokens for the resource from now on, in this format: `opaque` or `jwt`. */
  protect(resource, format) {
    this.#resources.set(resource, format);
  }

  /** The requests to a route that were answered with success; `wanted` are parameters that they must have. */
  granted(route, wanted = {}) {
    return this.#asked(route, wanted).filter(({ status }) => status < 400);
  }

  /** The requests to a route that were refused. */
  refused(route, wanted = {}) {
    return this.#asked(route, wanted).filter(({ status }) => status >= 400);
  }

  /** Whether an opaque access token is still accepted. */
  async isActive(token) {
    const found = await this.provider.AccessToken.find(token);
    return Boolean(found?.isValid);
  }

  /** Waits for the request that makes this true. */
  async until(isTrue, patience = 30_000) {
    const end = AbortSignal.timeout(patience);
    while (!isTrue()) {
      await new Promise((resolve, reject) => {
        const late = () => reject(new Error(`not within ${patience} ms: ${isTrue}`));
        if (end.aborted) return late();
        end.addEventListener('abort', late, { once: true });
        this.#heard.once('request', () => {
          end.removeEventListener('abort', late);
          resolve();
        });
      });
    }
  }

  /** Keeps back the answers to renewals from now on, until the returned function is called. */
  delayRenewals() {
    let release;
    this.#renewals = new Promise((resolve) => (release = resolve));
    return release;
  }

  /** Withdraws all that was granted, as the person can do at the provider. */
  async withdraw() {
    const { AccessToken, RefreshToken, AuthorizationCode, DeviceCode, Grant } = this.provider;
    for (const id of this.#grants) {
      await Promise.all(
        [AccessToken, RefreshToken, AuthorizationCode, DeviceCode].map((model) => model.revokeByGrantId(id)),
      );
      await Grant.adapter.destroy(id);
    }
    this.#grants.clear();
  }

  /** Removes the account of a person. */
  forget(person) {
    this.#unknown.add(person);
  }

  /** Whether a refresh token could still be used. */
  async isAlive(refreshToken) {
    const found = await this.provider.RefreshToken.find(refreshToken);
    return found !== undefined && !found.consumed;
  }

  /** The refresh tokens that were issued, oldest first. */
  refreshTokens() {
    return this.granted('token')
      .map(({ answer }) => answer.refresh_token)
      .filter(Boolean);
  }

  #asked(route, wanted) {
    const fits = ({ params }) => Object.entries(wanted).every(([name, value]) => params[name] === value);
    return this.requests.filter((request) => request.route === route && fits(request));
  }

  #watch() {
    this.provider.on('grant.success', ({ oidc: { entities } }) => {
      if (entities.Grant) this.#grants.add(entities.Grant.jti); // a client that acts as itself has none
    });
    this.provider.on('grant.error', (ctx, error) => (ctx.state.detail = error.error_detail));
    this.provider.on('server_error', (_, error) => console.error(error));
    this.provider.use(async (ctx, next) => {
      await next();
      if (ctx.oidc?.route === undefined) return;
      const { route, params, body } = ctx.oidc;
      const given = { ...params, ...body };
      const answer = typeof ctx.body === 'object' ? { ...ctx.body } : {};
      const redirect = Object.fromEntries(URL.parse(ctx.response.get('location'))?.searchParams ?? []);
      this.#keep(SECRET_FIELDS, answer);
      this.#keep(SECRET_PARAMETERS, redirect);
      if (route === 'token') this.#keep(SECRET_PARAMETERS, given);
      this.requests.push({ route, params: given, status: ctx.status, answer, detail: ctx.state.detail });
      this.#heard.emit('request');
      if (given.grant_type === 'refresh_token') await this.#renewals;
    });
  }

  #keep(names, values) {
    for (const name of names) if (values[name]) this.secrets.add(values[name]);
  }

  #configuration(lifetime, authMethods, workloadKey, trusted) {
    const client = (fields) => ({ redirect_uris: [], response_types: [], grant_types: [], ...fields });
    const byHand = {
      application_type: 'native', // of which the port of a loopback redirect may vary (RFC 8252, section 7.3)
      redirect_uris: ['http://127.0.0.1/callback'],
      response_types: ['code'],
      grant_types: ['authorization_code', 'refresh_token', DEVICE_CODE],
    };
    const ofCallers = {
      application_type: 'native',
      response_types: ['code'],
      grant_types: ['authorization_code'],
      token_endpoint_auth_method: 'none',
    };
    const ofWorkload = {
      grant_types: ['client_credentials'],
      token_endpoint_auth_method: 'private_key_jwt',
      jwks: { keys: [workloadKey] },
    };
    const clients = [
      client(RESOURCE_SERVER),
      client({ ...OPERATORS_CLIENT, ...byHand }),
      client({ ...GATEWAYS_CLIENT, grant_types: ['client_credentials', TOKEN_EXCHANGE] }),
    ];
    if (!authMethods) clients.push(client({ ...CALLERS_CLIENT, ...ofCallers }));
    if (workloadKey) clients.push(client({ ...WORKLOADS_CLIENT, ...ofWorkload }));
    if (trusted) clients.push(client({ ...ASSERTING_CLIENT, grant_types: [JWT_BEARER] }));
    return {
      clients,
      ...(trusted && { discovery: { authorization_grant_profiles_supported: [GRANT_PROFILE] } }),
      ...(authMethods && { clientAuthMethods: authMethods }),
      clockTolerance: 0,
      cookies: { keys: ['a key for cookies'] },
      features: {
        clientCredentials: { enabled: true },
        deviceFlow: { enabled: true },
        introspection: { enabled: true, allowedPolicy: (_, { clientId }) => clientId === RESOURCE_SERVER.client_id },
        registration: { enabled: true },
        resourceIndicators: {
          enabled: true,
          getResourceServerInfo: (_, resource) => this.#resource(resource, lifetime),
        },
        revocation: { enabled: true },
      },
      findAccount: (_, id) => this.#account(id),
      pkce: { required: () => true },
      rotateRefreshToken: true,
      ttl: { Grant: 3600, Interaction: 600, Session: 3600 },
    };
  }

  #account(id) {
    return this.#unknown.has(id) ? undefined : { accountId: id, claims: () => ({ sub: id }) };
  }

  #resource(resource, lifetime) {
    const format = this.#resources.get(resource);
    if (!format) throw new errors.InvalidTarget(`no such resource: ${resource}`);
    // The token of a caller outlives those that it is exchanged for.
    const accessTokenTTL = resource === GATEWAY ? 3600 : lifetime;
    return { scope: SCOPE, audience: resource, accessTokenTTL, accessTokenFormat: format };
  }
}

/** Answers below a path; its well-known documents are where RFC 8414 puts them, too (section 3.1). */
function below(path, answer) {
  return (request, response) => {
    const [, wellKnown = request.url] = /^(\/\.well-known\/[^/]+)\/./.exec(request.url) ?? [];
    request.originalUrl = wellKnown === request.url ? request.url : `${path}${wellKnown}`;
    if (!request.originalUrl.startsWith(`${path}/`)) return response.writeHead(404).end();
    request.url = request.originalUrl.slice(path.length);
    answer(request, response);
  };
}
