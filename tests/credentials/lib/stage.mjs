// A provider, an upstream and a gateway for one check.
import assert from 'node:assert/strict';

import { Gateway } from './gateway.mjs';
import { walk } from './person.mjs';
import { AuthorizationServer } from './provider.mjs';
import { FastMcp, TypeScript } from './upstreams.mjs';

/** Options of a stage for each kind of upstream. */
export const KINDS = {
  'the TypeScript SDK': { Upstream: TypeScript },
  FastMCP: { Upstream: FastMcp, path: '/tenants/two' },
};

/**
 * Runs a check before a gateway, a provider and an upstream of its own. `configure` returns the options of the gateway,
 * where they depend on the others.
 */
export async function stage({ login, configure = () => ({ login }), Upstream = TypeScript, ...options }, check) {
  const provider = await AuthorizationServer.start(options);
  const upstream = await Upstream.start(provider);
  const gateway = await Gateway.prepare(upstream.url, configure({ provider, upstream }));
  try {
    await check({ provider, upstream, gateway });
    const { true: configured = [], false: others = [] } = Object.groupBy(provider.secrets, (secret) =>
      gateway.configuration.includes(secret),
    );
    assert.deepEqual(await gateway.where(others), []);
    assert.deepEqual(await gateway.where(configured), configured.length ? [gateway.path('gateway.toml')] : []);
  } finally {
    await gateway.stop();
    await Promise.allSettled([upstream.stop(), provider.stop()]);
  }
}

/** Fails unless the command has signed in, and a gateway can use what it stored. */
export async function isSignedIn(login, gateway) {
  const { code, stdout, stderr } = await login.ended;
  assert.equal(code, 0, stderr);
  assert.match(stdout, /^Signed in to wiki/m);
  await gateway.serve();
  const client = await gateway.client();
  await gateway.until(async () => (await client.listPrompts()).prompts.length === 2);
  await client.close();
}

/** Signs in, and starts the gateway. */
export async function signIn(gateway) {
  const login = gateway.login();
  await fetch(await walk(await login.url()));
  await isSignedIn(login, gateway);
}
