// The browser of a user who logs in: follows redirects, and fills in the provider's forms.
//
//   node browser.mjs USER URL     as a program that opens URLs; ends with the redirect to the listener of the login

import { get } from 'node:http';
import { request } from 'node:https';
import { fileURLToPath } from 'node:url';

// One request as a browser makes it: with the cookies it was given, and without following redirects.
export function browse(cookies, url, form) {
  const body = form && new URLSearchParams(form).toString();
  const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') };
  if (body) headers['content-type'] = 'application/x-www-form-urlencoded';
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: body ? 'POST' : 'GET', headers, rejectUnauthorized: false });
    sent.on('error', reject);
    sent.on('response', (response) => {
      for (const cookie of response.headers['set-cookie'] ?? []) {
        const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
        if (value) cookies.set(name, value); else cookies.delete(name);
      }
      let text = '';
      response.on('data', (part) => { text += part; });
      response.on('end', () => resolve({ status: response.statusCode, location: response.headers.location, text }));
    });
    sent.end(body);
  });
}

// Goes on from a URL until a redirect leads to where `ends` says, or until a page has no form.
export async function visit(start, user, ends, fields = {}) {
  const cookies = new Map();
  let here = new URL(start);
  let page = await browse(cookies, here);
  for (let step = 0; step < 20; step += 1) {
    if (page.location) {
      here = new URL(page.location, here);
      if (ends(here)) return here;
      page = await browse(cookies, here);
      continue;
    }
    const action = /action="([^"]+)"/.exec(page.text)?.[1];
    if (!action) return page;
    const form = { ...fields };
    for (const [input] of page.text.matchAll(/<input[^>]*>/g)) {
      const name = /name="([^"]+)"/.exec(input)?.[1];
      const value = /value="([^"]*)"/.exec(input)?.[1];
      if (name && value !== undefined && !(name in form)) form[name] = value;
    }
    if (form.prompt === 'login') Object.assign(form, { login: user, password: 'any' });
    page = await browse(cookies, new URL(action, here), form);
  }
  throw new Error('the login does not end');
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [user, url] = process.argv.slice(2);
  // The start address of the login, on the loopback interface, leads to the provider.
  const start = url.startsWith('http:')
    ? await new Promise((resolve) => get(url, (response) => { response.resume(); resolve(response.headers.location); }))
    : url;
  const callback = await visit(start, user, (next) => next.protocol === 'http:');
  get(callback, (response) => response.resume());
}
