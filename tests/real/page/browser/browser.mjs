// Users of the page of the clusters in headless Chromium. Ends with 0 if every scene passes; failures are on standard error.
//
//   node browser.mjs '{"page": PORT, "api": PORT, "downloads": DIRECTORY, "pictures": DIRECTORY, "scenes": [NAME, …]}'

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import { chromium } from 'playwright-core';

const plan = JSON.parse(process.argv[2]);
const PAGE = 'https://clusters.company.test';
// A sibling of the page's host: SameSite does not tell them apart.
const API = 'https://prod.api.company.test';
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const browser = await chromium.launch({
  executablePath: plan.chromium,
  args: [
    '--no-sandbox',
    '--disable-dev-shm-usage',
    `--host-resolver-rules=MAP clusters.company.test:443 127.0.0.1:${plan.page}, MAP prod.api.company.test:443 127.0.0.1:${plan.api}`,
  ],
});

const desktop = { viewport: { width: 1100, height: 720 }, ignoreHTTPSErrors: true };

// A page of a user of its own, with what the browser complains about there. The provider's pages are not ours.
async function user(options = {}) {
  const context = await browser.newContext({ ...desktop, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const complaints = [];
  page.on('console', (message) => { if (message.type() === 'error' && page.url().startsWith(PAGE)) complaints.push(message.text()); });
  page.on('pageerror', (error) => complaints.push(String(error)));
  return { context, page, complaints };
}

// The provider's pages: name and password, then the consent.
async function logIn(page, name) {
  await page.locator('input[name=login]').fill(name);
  await page.locator('input[name=password]').fill('any');
  await page.locator('button[type=submit]').click();
  await consentAsked(page);
  await page.locator('form button[type=submit]').click();
  await page.waitForURL(`${PAGE}/`);
}

// The login has a button like that of the consent.
const consentAsked = (page) => page.locator('input[name=prompt][value=consent]').waitFor({ state: 'attached' });

async function signIn(page, name) {
  await page.goto(`${PAGE}/`);
  await page.getByRole('link', { name: 'Sign in' }).click();
  await logIn(page, name);
}

const rows = (page) => page.locator('tbody tr').evaluateAll((all) => all.map((row) => [
  row.querySelector('th').innerText.trim(),
  row.querySelector('.state').childNodes[1].textContent.trim(),
]));

// The clusters of alice. A busy API server may answer the page too late, and is then asked again.
async function clustersOfAlice(page) {
  const expected = [['prod', 'Ready'], ['staging', 'Ready'], ['away', 'Cannot be asked now']];
  for (const end = Date.now() + 60_000; !isDeepStrictEqual(await rows(page), expected) && Date.now() < end;) await page.reload();
  assert.deepEqual(await rows(page), expected);
}

async function accessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
  assert.deepEqual(violations.map((found) => `${found.id}: ${found.nodes.map((node) => node.html).join(' ')}`), [], what);
}

const picture = (page, directory, name) => page.screenshot({ path: join(directory, `${name}.png`), animations: 'disabled' });

const scenes = {
  // From a closed door to a kubeconfig, and out again.
  'sign in, clusters, kubeconfig, sign out': async () => {
    const { context, page, complaints } = await user();
    await page.goto(`${PAGE}/`);
    assert.match(await page.title(), /^Sign in · /);
    await accessible(page, 'before the login');
    await signIn(page, 'alice');
    assert.equal(await page.title(), 'Your clusters · Portcullis');
    await clustersOfAlice(page);
    assert.doesNotMatch(await page.content(), /vault/);
    assert.match(await page.locator('.user').innerText(), /alice@example\.com/);
    await accessible(page, 'the clusters');

    const cookies = await context.cookies(PAGE);
    assert.ok(cookies.length > 0);
    for (const cookie of cookies) {
      const { name, httpOnly, secure, sameSite, domain, path } = cookie;
      assert.deepEqual({ httpOnly, secure, sameSite, domain, path }, { httpOnly: true, secure: true, sameSite: 'Lax', domain: 'clusters.company.test', path: '/' }, name);
      assert.match(name, /^__Host-portcullis-session-/);
      assert.doesNotMatch(cookie.value, /^eyJ/);
    }
    for (const [name, link] of [['clusters', 'Kubeconfig of all clusters'], ['staging', 'Download the kubeconfig of staging']]) {
      const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: link }).click()]);
      assert.equal(download.suggestedFilename(), `${name}.kubeconfig`);
      await download.saveAs(join(plan.downloads, `${name}.kubeconfig`));
    }
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.waitForURL(`${PAGE}/signed-out`);
    assert.deepEqual(await context.cookies(PAGE), []);
    await accessible(page, 'signed out');
    await page.goBack();
    await page.reload();
    assert.match(await page.title(), /^Sign in · /);
    // The provider's own session: its page, and back.
    await page.goto(`${PAGE}/signed-out`);
    await page.getByRole('link', { name: 'Sign out at the login provider' }).click();
    await page.locator('button[name=logout], button[value=yes]').first().click();
    await page.waitForURL(`${PAGE}/`);
    await page.goto(`${PAGE}/absent`);
    assert.match(await page.locator('h1').innerText(), /Not found/);
    await accessible(page, 'a problem');
    const unexpected = complaints.filter((text) => !text.includes('status of 404'));
    assert.deepEqual(unexpected, []);
    await context.close();
  },

  'a user whom no cluster lets in': async () => {
    const { context, page } = await user();
    await signIn(page, 'bob');
    assert.equal(await page.locator('h2').first().innerText(), 'There are no clusters for you');
    assert.doesNotMatch(await page.content(), /prod|staging|vault|away/);
    await accessible(page, 'no clusters');
    await context.close();
  },

  'without scripts': async () => {
    const { context, page } = await user({ javaScriptEnabled: false });
    await page.goto(`${PAGE}/`);
    await page.locator('a[href="/sign-in"]').click();
    await logIn(page, 'alice');
    assert.equal(await page.locator('tbody tr').count(), 3);
    await page.locator('.user button').click();
    await page.waitForURL(`${PAGE}/signed-out`);
    await context.close();
  },

  'by the keyboard alone': async () => {
    const { context, page } = await user();
    const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
    const focused = () => page.evaluate(() => document.activeElement.innerText?.trim() ?? '');
    const tabTo = async (text) => {
      for (let step = 0; step < 20; step += 1) {
        await press('Tab');
        if ((await focused()).startsWith(text)) {
          const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
          assert.equal(outline, 'solid', `the focus on ${text} is visible`);
          return;
        }
      }
      assert.fail(`the keyboard does not reach ${text}`);
    };
    await page.goto(`${PAGE}/`);
    await press('Tab');
    assert.equal(await focused(), 'Skip to the content');
    await press('Enter', 'Tab');
    assert.equal(await focused(), 'Sign in');
    await press('Enter');
    await page.locator('input[name=login]').focus();
    await page.keyboard.type('alice');
    await press('Tab');
    await page.keyboard.type('any');
    await press('Enter');
    await consentAsked(page);
    await page.locator('form button[type=submit]').focus();
    await press('Enter');
    await page.waitForURL(`${PAGE}/`);
    await clustersOfAlice(page);
    await press('Tab', 'Enter');
    await tabTo('Kubeconfig of all clusters');
    const [download] = await Promise.all([page.waitForEvent('download'), press('Enter')]);
    assert.equal(download.suggestedFilename(), 'clusters.kubeconfig');
    await page.goto(`${PAGE}/`);
    await tabTo('Sign out');
    await press('Enter');
    await page.waitForURL(`${PAGE}/signed-out`);
    await context.close();
  },

  'a script of an application behind the API': async () => {
    const { context, page } = await user();
    await signIn(page, 'alice');
    const app = await context.newPage();
    await app.goto(`${API}/api`);
    assert.equal(await app.evaluate(() => location.origin), API);
    const stolen = await app.evaluate(async (target) => {
      const results = {};
      const attempt = async (name, action) => {
        try { results[name] = await action(); } catch (error) { results[name] = `refused: ${error.name}`; }
      };
      const frame = (tag, attribute) => new Promise((resolve) => {
        const element = document.createElement(tag);
        const done = () => { try { resolve(element.contentDocument?.body.innerText || 'nothing'); } catch (error) { resolve(`refused: ${error.name}`); } };
        element.onload = done;
        element.onerror = done;
        setTimeout(done, 3000);
        element[attribute] = target;
        document.body.append(element);
      });
      await attempt('fetch', async () => (await fetch(target, { credentials: 'include' })).text());
      await attempt('kubeconfig', async () => (await fetch(`${target}kubeconfig`, { credentials: 'include' })).text());
      await attempt('no-cors', async () => (await (await fetch(target, { credentials: 'include', mode: 'no-cors' })).text()) || 'nothing');
      await attempt('post', async () => (await fetch(`${target}sign-out`, { method: 'POST', credentials: 'include', mode: 'no-cors', body: new URLSearchParams({ form: 'x' }) })).type);
      await attempt('iframe', () => frame('iframe', 'src'));
      await attempt('object', () => frame('object', 'data'));
      await attempt('embed', () => frame('embed', 'src'));
      await attempt('script', () => new Promise((resolve) => {
        const script = document.createElement('script');
        script.onload = () => resolve('loaded');
        script.onerror = () => resolve('refused: error');
        script.src = `${target}style.css`;
        document.body.append(script);
      }));
      await attempt('cookies', async () => document.cookie || 'nothing');
      await attempt('planted', async () => {
        document.cookie = '__Host-portcullis-session-1=planted; Secure; Path=/; Domain=company.test';
        return document.cookie.includes('planted') ? 'planted' : 'nothing';
      });
      return results;
    }, `${PAGE}/`);
    for (const [name, result] of Object.entries(stolen)) {
      assert.match(result, /^(refused: .*|nothing|opaque)$/, `${name}: ${result}`);
    }
    // A window of the page has no way back to the one that opened it.
    const [opened] = await Promise.all([
      context.waitForEvent('page'),
      app.evaluate((target) => { globalThis.opened = open(target); }, `${PAGE}/`),
    ]);
    await opened.waitForURL(`${PAGE}/`);
    assert.equal(await opened.evaluate(() => opener), null);
    const seen = await app.evaluate(() => {
      if (globalThis.opened.closed) return 'cut off';
      try { return globalThis.opened.document.body.innerText; } catch (error) { return `refused: ${error.name}`; }
    });
    assert.match(seen, /^(cut off|refused: .*)$/);
    // A form that signs the user out: a navigation of a sibling host brings the cookies along.
    await app.evaluate((target) => {
      document.body.innerHTML = `<form method="post" action="${target}sign-out"><input name="form" value="x"></form>`;
      document.forms[0].submit();
    }, `${PAGE}/`);
    await app.waitForURL(`${PAGE}/sign-out`);
    await page.reload();
    assert.equal(await page.title(), 'Your clusters · Portcullis', 'still signed in');
    await context.close();
  },

  // Light and dark, wide and narrow.
  pictures: async () => {
    for (const colorScheme of ['light', 'dark']) {
      const { context, page } = await user({ colorScheme });
      await page.goto(`${PAGE}/`);
      await accessible(page, `${colorScheme}: before the login`);
      await picture(page, plan.downloads, `page-sign-in-${colorScheme}`);
      await signIn(page, 'alice');
      await accessible(page, `${colorScheme}: clusters`);
      await picture(page, plan.pictures, `page-clusters-${colorScheme}`);
      await page.setViewportSize({ width: 380, height: 780 });
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(overflow, 0, 'nothing is wider than a small screen');
      await accessible(page, `${colorScheme}: a small screen`);
      await picture(page, plan.pictures, `page-small-${colorScheme}`);
      await page.setViewportSize(desktop.viewport);
      await page.goto(`${PAGE}/callback?state=x`);
      await accessible(page, `${colorScheme}: a problem`);
      await picture(page, plan.downloads, `page-problem-${colorScheme}`);
      await context.close();
    }
  },
};

let failed = 0;
for (const name of plan.scenes ?? Object.keys(scenes)) {
  try {
    await scenes[name]();
    console.log(`${name}: ok`);
  } catch (error) {
    failed += 1;
    console.error(`${name}: ${error.stack}`);
  }
}
await browser.close();
process.exit(failed && 1);
