// What becomes of a login: it is shared, kept, ended, and replaced.
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { describe, test } from 'node:test';

import { walk } from './lib/person.mjs';
import { KINDS, signIn, stage } from './lib/stage.mjs';
import { FastMcp } from './lib/upstreams.mjs';

test('two gateways share a sign-in, and never send a refresh token twice', () =>
  stage({ lifetime: 3 }, async ({ gateway, provider }) => {
    await signIn(gateway);
    const twin = await gateway.twin();
    try {
      await twin.serve();
      const clients = await Promise.all([gateway.client(), twin.client()]);
      const get = (client) => client.getPrompt({ name: 'wiki__minutes' });
      await gateway.until(async () => {
        await Promise.all(clients.map(get));
        return provider.granted('token', { grant_type: 'refresh_token' }).length >= 3;
      });
      assert.deepEqual(provider.refused('token'), []);
      await Promise.all(clients.map((client) => client.close()));
      assert.deepEqual(await twin.where(provider.secrets), []);
    } finally {
      await twin.stop();
    }
  }));

test('a provider that is away does not end a sign-in', () =>
  stage({ Upstream: FastMcp, path: '/tenants/three', lifetime: 3 }, async ({ gateway, provider }) => {
    await signIn(gateway);
    const client = await gateway.client();
    const isServed = () =>
      client.getPrompt({ name: 'wiki__minutes' }).then(
        () => true,
        () => false,
      );
    provider.isAway = true;
    await gateway.until(async () => !(await isServed()));
    assert.equal((await gateway.storedLogin()).state, 'valid');
    provider.isAway = false;
    await gateway.until(isServed);
    assert.equal(provider.granted('token', { grant_type: 'authorization_code' }).length, 1);
    await client.close();
  }));

for (const [kind, options] of Object.entries(KINDS)) {
  test(`a logout from an upstream of ${kind} says that the provider has ended the sign-in`, () =>
    stage(options, async ({ gateway, provider }) => {
      await signIn(gateway);
      const { stdout } = await gateway.run('logout', 'wiki');
      assert.ok(!(await provider.isAlive(provider.refreshTokens()[0])));
      assert.match(stdout, /Its provider has ended the sign-in/);
    }),
  );
}

describe('while a gateway waits for a renewed token', () => {
  /** Signs in, runs a command during a renewal whose answer the provider keeps back, and then checks what is left. */
  const during = (command, check) =>
    stage({ lifetime: 3 }, async ({ gateway, provider }) => {
      await signIn(gateway);
      const client = await gateway.client();
      const first = await gateway.storedLogin();
      const renewals = () => provider.granted('token', { grant_type: 'refresh_token' }).length;

      const [earlier, release] = [renewals(), provider.delayRenewals()];
      const calls = [];
      await gateway.until(() => {
        calls.push(client.getPrompt({ name: 'wiki__minutes' }).catch(() => {}));
        return renewals() > earlier;
      });
      const ended = command(gateway);
      // A command that waits for the renewal ends after it.
      await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 2000))]);
      release();
      await Promise.all([ended, ...calls]);
      await check({ gateway, client, first });
      await client.close();
    });

  test('a caller who leaves does not end the sign-in', () =>
    stage({ lifetime: 3 }, async ({ gateway, provider }) => {
      await signIn(gateway);
      const client = await gateway.client();
      const renewals = () => provider.granted('token', { grant_type: 'refresh_token' }).length;
      const [earlier, release, leaving] = [renewals(), provider.delayRenewals(), new AbortController()];
      const calls = [];
      await gateway.until(() => {
        const call = client.getPrompt({ name: 'wiki__minutes' }, { signal: leaving.signal });
        calls.push(call.catch(() => {}));
        return renewals() > earlier;
      });
      leaving.abort();
      await Promise.all(calls);
      release();
      await gateway.until(async () => {
        await client.getPrompt({ name: 'wiki__minutes' });
        return renewals() > earlier + 1;
      });
      assert.deepEqual(provider.refused('token'), []);
      await client.close();
    }));

  test('a logout is the last word', () =>
    during(
      (gateway) => gateway.run('logout', 'wiki'),
      async ({ gateway }) => {
        assert.equal((await gateway.storedLogin()).state, 'needs a sign-in');
        assert.deepEqual(
          readdirSync(gateway.logins).filter((name) => !name.endsWith('.lock')),
          [],
        );
      },
    ),
  );

  test('a new sign-in is the last word', () =>
    during(
      async (gateway) => {
        const login = gateway.login();
        await fetch(await walk(await login.url()));
        assert.equal((await login.ended).code, 0);
      },
      async ({ gateway, client, first }) => {
        assert.notEqual((await gateway.storedLogin()).signedInAt, first.signedInAt);
        await client.getPrompt({ name: 'wiki__minutes' });
      },
    ),
  );
});

// pydantic, and with it each FastMCP server, writes an issuer that has no path with a slash at its end.
test('an upstream may name its authorization server with a slash more', () =>
  stage({ Upstream: FastMcp }, async ({ gateway }) => {
    await signIn(gateway);
  }),
);
