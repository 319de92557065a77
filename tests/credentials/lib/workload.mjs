// The platform of a workload, which signs assertions of its identity and keeps the file up to date.
import { randomUUID } from 'node:crypto';
import { mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { SignJWT, exportJWK, generateKeyPair } from 'jose';

import { WORKLOADS_CLIENT } from './provider.mjs';

export class Platform {
  /** Not that of the gateway, whose files have no secret. */
  #folder = mkdtempSync(join(tmpdir(), 'workload-'));
  #key;
  file = join(this.#folder, 'assertion');

  static async start() {
    const one = new this();
    const { privateKey, publicKey } = await generateKeyPair('ES256');
    one.#key = privateKey;
    one.publicKey = { ...(await exportJWK(publicKey)), alg: 'ES256', use: 'sig' };
    return one;
  }

  /** Replaces the assertion in the file by a new one (RFC 7523, section 3), and returns that. */
  async renew({ issuer }) {
    const { client_id: id } = WORKLOADS_CLIENT;
    const assertion = await new SignJWT({ jti: randomUUID() })
      .setProtectedHeader({ alg: 'ES256' })
      .setIssuer(id)
      .setSubject(id)
      .setAudience(issuer)
      .setIssuedAt()
      .setExpirationTime('10m')
      .sign(this.#key);
    writeFileSync(`${this.file}.part`, `${assertion}\n`);
    renameSync(`${this.file}.part`, this.file);
    return assertion;
  }

  stop() {
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
