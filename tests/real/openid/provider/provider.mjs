// A real OpenID provider for tests, driven by lines of JSON on standard input; each is answered by one line.
//
//   node provider.mjs CERTIFICATE KEY
//
//   {"do": "login", "user": NAME}   a user logs in with a browser's steps → {"idToken": TOKEN}
//   {"do": "rotate"}                a new key signs; the old ones are still published → {}
//   {"do": "forget"}                only the key that signs now is published → {}
//   {"do": "fetches"}               → {"discovery": N, "keys": N}
//   {"do": "grants"}                how many tokens were granted, by grant type → {TYPE: N}
//   {"do": "revoke"}                every refresh token is revoked → {}
//   {"do": "enter", "user": NAME, "code": CODE}   a user enters the code of the device flow → {}
//
// The first line it writes is {"issuer": URL}. It ends when standard input does.

import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import { createInterface } from 'node:readline';

import { Provider } from 'oidc-provider';

import { browse, visit } from './browser.mjs';

const [certificate, key] = process.argv.slice(2).map((file) => readFileSync(file));
const CLIENT = 'kubernetes';
const REDIRECT = 'https://client.test/callback';

// Standard output has answers alone; the provider gives its advice there, too.
console.info = console.error;

let keys = [newKey()];
let current;
let issuer;
const grants = {};
const refreshTokens = [];
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
      // RFC 8252: any port of the loopback address.
      redirect_uris: [REDIRECT, 'http://127.0.0.1/callback'],
      response_types: ['code'],
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    }, {
      client_id: 'page',
      token_endpoint_auth_method: 'none',
      redirect_uris: ['https://clusters.company.test/callback'],
      post_logout_redirect_uris: ['https://clusters.company.test/'],
      response_types: ['code'],
      grant_types: ['authorization_code'],
    }, {
      client_id: 'machine',
      client_secret: 'machine-secret',
      redirect_uris: [],
      response_types: [],
      grant_types: ['client_credentials'],
    }],
    // Most providers give a native client refresh tokens without asking its user each time.
    issueRefreshToken: async (context, client) => client.grantTypeAllowed('refresh_token'),
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      revocation: { enabled: true },
    },
    cookies: { keys: ['only for tests'] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
    scopes: ['openid', 'offline_access', 'email', 'groups'],
    conformIdTokenClaims: false,
    findAccount: (_, id) => account(id),
    ttl: { IdToken: 600, AccessToken: 600, Grant: 600, Session: 600, Interaction: 600, DeviceCode: 600, RefreshToken: 600 },
  });
  made.on('grant.success', (ctx) => {
    const type = ctx.oidc.params.grant_type;
    grants[type] = (grants[type] ?? 0) + 1;
  });
  made.on('refresh_token.saved', (token) => refreshTokens.push(token));
  return made.callback();
}

const server = createServer({ cert: certificate, key }, (incoming, outgoing) => {
  if (incoming.url.startsWith('/.well-known/openid-configuration')) fetches.discovery += 1;
  if (incoming.url.startsWith('/jwks')) fetches.keys += 1;
  current(incoming, outgoing);
});

// The authorization code flow with PKCE: the login form, the consent form, the redirect to the client, the exchange.
async function login(user) {
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
  const end = await visit(ask, user, (next) => next.href.startsWith(REDIRECT));
  const exchanged = await browse(new Map(), new URL('/token', issuer), {
    grant_type: 'authorization_code',
    client_id: CLIENT,
    redirect_uri: REDIRECT,
    code: end.searchParams.get('code'),
    code_verifier: verifier,
  });
  return JSON.parse(exchanged.text).id_token;
}

// Enters the code of the device flow.
async function enter(user, code) {
  const page = await visit(new URL('/device', issuer), user, () => false, { user_code: code, confirm: 'yes' });
  if (page.status !== 200) throw new Error(`${page.status} ${page.text}`);
}

const commands = {
  login: async ({ user }) => ({ idToken: await login(user) }),
  rotate: () => {
    keys = [newKey(), ...keys];
    current = provider();
    return {};
  },
  forget: () => {
    keys = [keys[0]];
    current = provider();
    return {};
  },
  fetches: () => fetches,
  grants: () => grants,
  revoke: async () => {
    await Promise.all(refreshTokens.splice(0).map((token) => token.destroy()));
    return {};
  },
  enter: async ({ user, code }) => {
    await enter(user, code);
    return {};
  },
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
