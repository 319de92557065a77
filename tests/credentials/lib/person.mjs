// Somebody who signs in at the provider's pages: in Chromium, or with bare requests where the pages are not the point.
import { createHash, randomBytes } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';

import { chromium } from 'playwright-core';

import { CALLERS_CLIENT, GATEWAY, SCOPE } from './provider.mjs';

export const launch = () =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });

/** Closes the browser. One that does not answer is killed when this process ends. */
export const close = (browser) => Promise.race([browser?.close(), setTimeout(10_000)]);

/** A fresh browser session; its pages reach nothing but this machine. */
export async function arrive(browser) {
  const context = await browser.newContext();
  context.setDefaultTimeout(15_000);
  await context.route(
    (url) => url.hostname !== '127.0.0.1',
    (route) => route.abort(),
  );
  return context.newPage();
}

/** Opens the authorization URL, signs in and consents; the page that the redirect leads to is open then. */
export async function signIn(page, url) {
  await page.goto(url.href);
  await consent(page);
  await page.waitForURL((now) => now.href.startsWith(url.searchParams.get('redirect_uri')));
}

/** Opens the page of the device flow, enters the code, confirms it, signs in and consents. */
export async function signInDevice(page, verification, userCode) {
  await enter(page, verification, userCode);
  await page.getByRole('button', { name: 'Continue' }).click();
  await consent(page);
  await page.getByRole('heading', { name: 'Sign-in Success' }).waitFor();
}

/** Opens the page of the device flow, enters the code, and says that the device is unknown. */
export async function refuseDevice(page, verification, userCode) {
  await enter(page, verification, userCode);
  await page.getByRole('button', { name: 'Abort' }).click();
  await page.getByText('interrupted').waitFor();
}

async function enter(page, verification, userCode) {
  await page.goto(verification);
  await page.locator('input[name=user_code]').fill(userCode);
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByRole('heading', { name: 'Confirm Device' }).waitFor();
}

async function consent(page) {
  await page.getByPlaceholder('Enter any login').fill('an-operator');
  await page.getByPlaceholder('and password').fill('a-password');
  await page.getByRole('button', { name: 'Sign-in' }).click();
  await page.getByRole('heading', { name: 'Authorize' }).waitFor();
  await page.getByRole('button', { name: 'Continue' }).click();
}

/** Opens the authorization URL and answers no to the first question. */
export async function refuse(page, url) {
  await page.goto(url.href);
  await page.getByRole('link', { name: 'Cancel' }).click();
  await page.waitForURL((now) => now.href.startsWith(url.searchParams.get('redirect_uri')));
}

/**
 * Signs in and consents with bare requests. Returns the address that the provider sends the browser to at the end, which is
 * not visited.
 */
export async function walk(url, login = 'an-operator') {
  const { origin } = url;
  const cookies = new Map();
  let [at, body] = [url];
  for (let step = 0; step < 12; step++) {
    const headers = { Cookie: [...cookies].map((pair) => pair.join('=')).join('; ') };
    const answer = await fetch(at, { method: body ? 'POST' : 'GET', headers, body, redirect: 'manual' });
    for (const cookie of answer.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
      cookies.set(name, value);
    }
    const text = await answer.text();
    const next = answer.headers.get('location');
    if (next) {
      [at, body] = [new URL(next, at)];
      if (at.origin !== origin) return at;
    } else if (answer.ok) {
      const asksWho = /name="login"/.test(text);
      body = new URLSearchParams(asksWho ? { prompt: 'login', login, password: 'a-password' } : { prompt: 'consent' });
    } else {
      throw new Error(`${at}: ${answer.status} ${text}`);
    }
  }
  throw new Error(`no end of redirects: ${at}`);
}

/** Signs somebody in with a client of callers; returns an access token for the gateway. */
export async function callersToken({ issuer }, login) {
  const verifier = randomBytes(32).toString('base64url');
  const url = new URL(`${issuer}/auth`);
  url.search = new URLSearchParams({
    client_id: CALLERS_CLIENT.client_id,
    redirect_uri: CALLERS_CLIENT.redirect_uris[0],
    response_type: 'code',
    scope: SCOPE,
    resource: GATEWAY,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
  });
  const back = await walk(url, login);
  const body = new URLSearchParams({
    grant_type: 'authorization_code',
    client_id: CALLERS_CLIENT.client_id,
    redirect_uri: CALLERS_CLIENT.redirect_uris[0],
    code: back.searchParams.get('code'),
    code_verifier: verifier,
    resource: GATEWAY,
  });
  const answer = await fetch(`${issuer}/token`, { method: 'POST', body });
  const { access_token: token, ...rest } = await answer.json();
  if (!token) throw new Error(JSON.stringify(rest));
  return token;
}
