// Access tokens of custom grants of oidc-provider.

/** Issues an access token of an account for a resource server. */
export async function issue(ctx, { accountId, server, scopes, expiresIn, grantType }) {
  const { client, provider } = ctx.oidc;
  const grant = new provider.Grant({ accountId, clientId: client.clientId });
  grant.addResourceScope(server.identifier(), scopes);
  const token = new provider.AccessToken({
    accountId,
    client,
    grantId: await grant.save(),
    gty: grantType,
    expiresIn,
    resourceServer: server,
    scope: scopes,
  });
  ctx.oidc.entity('Grant', grant);
  ctx.oidc.entity('AccessToken', token);
  return {
    access_token: await token.save(),
    token_type: token.tokenType,
    expires_in: token.expiration,
    scope: scopes,
  };
}
