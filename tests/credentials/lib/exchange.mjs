// Token exchange (RFC 8693) as a custom grant of oidc-provider, which has none of its own.
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { errors } from 'oidc-provider';

import { ID_JAG, assertion } from './id_jag.mjs';
import { issue } from './issue.mjs';

export const TOKEN_EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';

export const PARAMETERS = [
  'subject_token',
  'subject_token_type',
  'requested_token_type',
  'audience',
  'resource',
  'scope',
];

const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';

/**
 * The handler of the grant, for tokens of callers that are for `gateway`. `account` and `resource` return what is known
 * of a person, and of what a token is asked for; `key` signs assertions. The provider has authenticated the client, and
 * has checked that it may use this grant.
 */
export function exchange(gateway, { account, resource, key }) {
  return async (ctx) => {
    const { params, provider } = ctx.oidc;
    for (const name of ['subject_token', 'subject_token_type']) {
      if (!params[name]) throw new errors.InvalidRequest(`missing required parameter: ${name}`);
    }
    const requested = params.requested_token_type ?? ACCESS_TOKEN;
    for (const type of [params.subject_token_type, requested === ID_JAG ? ACCESS_TOKEN : requested]) {
      if (type !== ACCESS_TOKEN) throw new errors.InvalidRequest(`no such type of tokens here: ${type}`);
    }
    const { sub, scope = '', exp } = await verified(provider, params.subject_token, gateway);
    // Section 2.2.2: a subject that is not acceptable is an invalid request, too.
    const { accountId } = account(sub) ?? {};
    if (!accountId) throw new errors.InvalidRequest('the subject is unknown');
    if (requested === ID_JAG) {
      ctx.body = await assertion(ctx, accountId, key);
      return;
    }

    const target = params.resource ?? params.audience;
    if (!target) throw new errors.InvalidTarget('neither a resource nor an audience');
    const server = new provider.ResourceServer(target, resource(target));
    // No more than the caller's token allows, and no longer.
    const allowed = new Set(scope.split(' ')).intersection(server.scopes);
    const asked = params.scope ? new Set(params.scope.split(' ')) : allowed;
    if (!asked.isSubsetOf(allowed)) throw new errors.InvalidScope('more than the subject token has', params.scope);
    const scopes = [...asked].join(' ');
    const left = exp - Math.floor(Date.now() / 1000);

    const expiresIn = Math.min(left, server.accessTokenTTL);
    const issued = await issue(ctx, { accountId, server, scopes, expiresIn, grantType: TOKEN_EXCHANGE });
    ctx.body = { ...issued, issued_token_type: ACCESS_TOKEN };
  };
}

/** The claims of an access token that this provider has issued for the audience. */
async function verified({ issuer }, token, audience) {
  const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`));
  try {
    const wanted = { issuer, audience, typ: 'at+jwt', requiredClaims: ['sub', 'exp'] };
    return (await jwtVerify(token, keys, wanted)).payload;
  } catch (cause) {
    throw new errors.InvalidRequest('the subject token is not valid', undefined, { cause });
  }
}
