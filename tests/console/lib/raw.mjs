// Requests that no browser would send.
import { request } from 'node:http';

export const form = (fields) => new URLSearchParams(fields).toString();
export const FORM = { 'Content-Type': 'application/x-www-form-urlencoded' };

/** Returns a function that sends a request with any path, method and headers; it follows no redirect. */
export function requester(site) {
  const { hostname, port, host } = new URL(site);
  return (path, { method = 'GET', headers = {}, body } = {}) =>
    new Promise((resolve, reject) => {
      const given = { hostname, port, path, method, headers: { Host: host, ...headers }, agent: false };
      const sent = request(given, async (answer) => {
        const parts = [];
        for await (const part of answer) parts.push(part);
        resolve({ status: answer.statusCode, headers: answer.headers, body: Buffer.concat(parts) });
      });
      sent.on('error', reject);
      sent.end(body);
    });
}
