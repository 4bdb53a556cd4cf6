// A real OpenID provider for tests, driven by lines of JSON on standard input; each is answered by one line.
//
//   node provider.mjs CERTIFICATE KEY
//
//   {"do": "login", "user": NAME}   a user logs in with a browser's steps → {"idToken": TOKEN}
//   {"do": "rotate"}                a new key signs; the old one is still published → {}
//   {"do": "forget"}                only the key that signs now is published → {}
//   {"do": "fetches"}               → {"discovery": N, "keys": N}
//
// The first line it writes is {"issuer": URL}. It ends when standard input does.

import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer, request } from 'node:https';
import { createInterface } from 'node:readline';

import { Provider } from 'oidc-provider';

const [certificate, key] = process.argv.slice(2).map((file) => readFileSync(file));
const CLIENT = 'kubernetes';
const REDIRECT = 'https://client.test/callback';

let keys = [newKey()];
let current;
let issuer;
const fetches = { discovery: 0, keys: 0 };

function newKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid: randomBytes(8).toString('hex'), use: 'sig', alg: 'RS256' };
}

// Claims about each user, as a company's directory has them.
const account = (id) => ({
  accountId: id,
  claims: () => ({
    sub: id,
    email: `${id}@example.com`,
    email_verified: true,
    groups: ['developers', `team-${id}`],
  }),
});

function provider() {
  const made = new Provider(issuer, {
    jwks: { keys },
    clients: [{
      client_id: CLIENT,
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      redirect_uris: [REDIRECT],
      response_types: ['code'],
      grant_types: ['authorization_code'],
    }],
    cookies: { keys: ['only for tests'] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
    scopes: ['openid', 'email', 'groups'],
    conformIdTokenClaims: false,
    findAccount: (_, id) => account(id),
    ttl: { IdToken: 600, AccessToken: 600, Grant: 600, Session: 600, Interaction: 600 },
  });
  return made.callback();
}

const server = createServer({ cert: certificate, key }, (incoming, outgoing) => {
  if (incoming.url.startsWith('/.well-known/openid-configuration')) fetches.discovery += 1;
  if (incoming.url.startsWith('/jwks')) fetches.keys += 1;
  current(incoming, outgoing);
});

// One request as a browser makes it: with the cookies it was given, and without following redirects.
function browse(cookies, url, form) {
  const body = form && new URLSearchParams(form).toString();
  const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') };
  if (body) headers['content-type'] = 'application/x-www-form-urlencoded';
  return new Promise((resolve, reject) => {
    const sent = request(url, { method: body ? 'POST' : 'GET', headers, ca: certificate, rejectUnauthorized: false });
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

// The authorization code flow with PKCE: the login form, the consent form, the redirect to the client, the exchange.
async function login(user) {
  const cookies = new Map();
  const verifier = randomBytes(32).toString('base64url');
  const ask = new URL('/auth', issuer);
  ask.search = new URLSearchParams({
    client_id: CLIENT,
    response_type: 'code',
    redirect_uri: REDIRECT,
    scope: 'openid email groups',
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
  }).toString();
  let page = await browse(cookies, ask);
  for (let step = 0; step < 20; step += 1) {
    if (page.location?.startsWith(REDIRECT)) {
      const code = new URL(page.location).searchParams.get('code');
      const exchanged = await browse(cookies, new URL('/token', issuer), {
        grant_type: 'authorization_code', client_id: CLIENT, redirect_uri: REDIRECT, code, code_verifier: verifier,
      });
      return JSON.parse(exchanged.text).id_token;
    }
    if (page.location) {
      page = await browse(cookies, new URL(page.location, issuer));
      continue;
    }
    const action = /action="([^"]+)"/.exec(page.text)?.[1];
    if (!action) throw new Error(`no form in ${page.status} ${page.text}`);
    const form = page.text.includes('value="login"')
      ? { prompt: 'login', login: user, password: 'any' }
      : { prompt: 'consent' };
    page = await browse(cookies, new URL(action, issuer), form);
  }
  throw new Error('the login does not end');
}

const commands = {
  login: async ({ user }) => ({ idToken: await login(user) }),
  rotate: () => {
    keys = [newKey(), keys[0]];
    current = provider();
    return {};
  },
  forget: () => {
    keys = [keys[0]];
    current = provider();
    return {};
  },
  fetches: () => fetches,
};

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

server.listen(0, '127.0.0.1', async () => {
  issuer = `https://localhost:${server.address().port}`;
  current = provider();
  answer({ issuer });
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    try {
      answer(await commands[command.do](command));
    } catch (error) {
      answer({ error: String(error) });
    }
  }
  process.exit(0);
});
