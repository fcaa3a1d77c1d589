// What tries pages for browsers share: a headless Chromium, tabs whose errors fail the run, axe-core and screenshots.
// `.ci/deps page` installs Chromium, axe-core and puppeteer-core; CHROMIUM=PROGRAM takes a browser that is not in the PATH.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');

const ROOT = path.resolve(__dirname, '../..');
const installed = createRequire(path.join(ROOT, 'target/tools/page/package.json'));
const puppeteer = installed('puppeteer-core');
const AXE = fs.readFileSync(installed.resolve('axe-core/axe.min.js'), 'utf8');
const PATIENCE_MS = 30000;

const DESKTOP = { width: 1280, height: 900 };
const PHONE = { width: 360, height: 780, isMobile: true, hasTouch: true };

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(what, done) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const result = await done();
    if (result) return result;
    if (Date.now() > end) throw new Error(`never: ${what}`);
    await sleep(50);
  }
}

/** The first browser of the PATH. */
function foundBrowser() {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const folders = (process.env.PATH || '').split(path.delimiter).filter(Boolean);
  const found = names.flatMap((name) => folders.map((folder) => path.join(folder, name))).find((file) => fs.existsSync(file));
  assert.ok(found, `none of ${names.join(', ')} is in the PATH: CHROMIUM=PROGRAM names another`);
  return found;
}

/** A tab whose errors fail the run: exceptions of the page, and what its headers forbid. */
async function tab(browser, viewport = DESKTOP, scheme = 'light') {
  const page = await browser.newPage();
  await page.setViewport(viewport);
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
  page.faults = [];
  page.on('pageerror', (error) => page.faults.push(String(error)));
  page.on('console', (message) => {
    // A daemon that has ended, or a refused token, is an error of the network.
    if (message.type() === 'error' && !message.text().includes('Failed to load resource')) page.faults.push(message.text());
  });
  return page;
}

const text = (page, selector) => page.$eval(selector, (node) => node.innerText);

async function has(page, selector, part) {
  const isThere = async () => (await text(page, selector)).includes(part);
  await until(`${selector} has "${part}"`, isThere).catch(async (error) => {
    throw new Error(`${error.message}, but "${await text(page, selector)}"`);
  });
}

async function replaceText(page, selector, value) {
  await page.$eval(selector, (input) => { input.value = ''; });
  await page.type(selector, value);
}

/** The screenshots of a run, in a folder that it empties. */
class Shots {
  constructor(folder) {
    this.folder = path.join(ROOT, folder);
    fs.rmSync(this.folder, { recursive: true, force: true });
    fs.mkdirSync(this.folder, { recursive: true });
  }

  take(page, name) {
    return page.screenshot({ path: path.join(this.folder, `${name}.png`), fullPage: true });
  }

  /** Takes one of a page that has no fault: none that axe-core finds, no scrolling to the side, no wrong words, no error. */
  async check(page, name) {
    await page.evaluate(AXE);
    const found = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
    const violations = found.violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).join(' ')}`);
    assert.deepEqual(violations, [], `${name}: axe-core`);
    const content = await page.evaluate(() => document.documentElement.scrollWidth);
    const { width } = page.viewport();
    assert.ok(content <= width, `${name}: ${content} pixels wide in a window of ${width}`);
    const words = await text(page, 'body');
    for (const wrong of ['NaN', 'undefined', '[object', 'Infinity']) assert.ok(!words.includes(wrong), `${name} shows ${wrong}`);
    assert.deepEqual(page.faults, [], name);
    await this.take(page, name);
  }
}

/** Runs the steps whose names have one of these parts, or all; the process fails with the first that does. */
async function run(steps, chosen, shots, cleanUp) {
  const root = process.getuid() === 0;
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM || foundBrowser(),
    // Its sandbox needs another user than root; the only pages are those of this script.
    args: [...(root ? ['--no-sandbox'] : []), '--disable-dev-shm-usage', '--disable-gpu'],
  });
  try {
    for (const [name, step] of Object.entries(steps)) {
      if (chosen.length > 0 && !chosen.some((part) => name.includes(part))) continue;
      const began = Date.now();
      await step(browser);
      console.log(`ok: ${name}, ${((Date.now() - began) / 1000).toFixed(1)} s`);
    }
  } finally {
    // What a step that has failed has left.
    await cleanUp();
    await browser.close();
  }
  console.log(`screenshots: ${path.relative(process.cwd(), shots.folder)}`);
}

function runSteps(...of) {
  run(...of).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { DESKTOP, PHONE, ROOT, Shots, has, replaceText, runSteps, sleep, tab, text, until };
