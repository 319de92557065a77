// Identity assertions (draft-ietf-oauth-identity-assertion-authz-grant): one server issues them, another takes them.
import { randomUUID } from 'node:crypto';

import { SignJWT, createRemoteJWKSet, jwtVerify } from 'jose';
import { errors } from 'oidc-provider';

import { issue } from './issue.mjs';

export const ID_JAG = 'urn:ietf:params:oauth:token-type:id-jag';
export const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
export const GRANT_PROFILE = 'urn:ietf:params:oauth:grant-profile:id-jag';

/** The gateway as a client of the server that takes assertions. */
export const ASSERTING_CLIENT = { client_id: 'gateway-elsewhere', client_secret: 'secret-of-the-gateway-elsewhere' };

const TYPE = 'oauth-id-jag+jwt';

/** The answer to an exchange with an assertion about the account. */
export async function assertion({ oidc: { params, provider } }, accountId, key) {
  const { audience, resource, scope } = params;
  if (!audience) throw new errors.InvalidTarget('no audience');
  const token = await new SignJWT({ client_id: ASSERTING_CLIENT.client_id, resource, scope })
    .setProtectedHeader({ alg: 'RS256', typ: TYPE })
    .setIssuer(provider.issuer)
    .setSubject(accountId)
    .setAudience(audience)
    .setJti(randomUUID())
    .setIssuedAt()
    .setExpirationTime('1m')
    .sign(key);
  return { access_token: token, issued_token_type: ID_JAG, token_type: 'N_A', expires_in: 60, scope };
}

/** The handler of the grant: assertions of the issuer `trusted` are taken, each for the client that it names. */
export function take(trusted, { account, resource }) {
  const keys = createRemoteJWKSet(new URL(`${trusted}/jwks`));
  return async (ctx) => {
    const { client, params, provider } = ctx.oidc;
    const wanted = { issuer: trusted, audience: provider.issuer, typ: TYPE, requiredClaims: ['sub', 'exp', 'jti'] };
    const { payload } = await jwtVerify(params.assertion ?? '', keys, wanted).catch((cause) => {
      throw new errors.InvalidGrant('the assertion is not valid', undefined, { cause });
    });
    const { accountId } = account(payload.sub) ?? {};
    if (!accountId || payload.client_id !== client.clientId) throw new errors.InvalidGrant('another subject or client');
    const server = new provider.ResourceServer(payload.resource, resource(payload.resource));
    const scopes = [...new Set(payload.scope?.split(' ')).intersection(server.scopes)].join(' ');
    const expiresIn = server.accessTokenTTL;
    ctx.body = await issue(ctx, { accountId, server, scopes, expiresIn, grantType: JWT_BEARER });
  };
}
