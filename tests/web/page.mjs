#!/usr/bin/env node
// The web page of a node in a real headless browser, with the keyboard alone:
//
//   page.mjs [--programs DIR] [--chromium PATH] [--axe axe.min.js] [--pictures DIR] [--page URL]
//
// Two daemons serve the demo model on loopback, with a key. The page must say what it needs without JavaScript, refuse a
// wrong key in words, stream answers over several turns, stop, show the figures of `console status --json`, and survive
// the death of a node and of its own node without losing a word. Installs nothing: without a browser it prints SKIPPED.
// --axe also runs axe-core, --pictures keeps screenshots, --page opens the page at another address that leads to the node.
//
// cargo build --release --locked --workspace
import { execFile, spawn } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";

import { Browser, installed } from "./browser.mjs";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..", "..");
const KEY = "sk-page-0123456789";
const MODEL = "bard-q8_0.gguf";
const WIDTHS = [320, 360, 768, 1280];

const { values: options } = parseArgs({
  options: {
    programs: { type: "string", default: join(ROOT, "target", "release") },
    chromium: { type: "string", default: installed() },
    axe: { type: "string" },
    pictures: { type: "string" },
    page: { type: "string" },
  },
});

let failures = 0;

function check(what, isSo, detail = "") {
  console.log(`${isSo ? "ok  " : "FAIL"} ${what}${isSo || detail === "" ? "" : `: ${detail}`}`);
  if (!isSo) failures += 1;
}

// A daemon with a key for the API. It ends with this script, because its standard input is a pipe.
class Daemon {
  constructor(folder, name, host) {
    [this.name, this.host, this.state] = [name, host, join(folder, name)];
    this.config = `${this.state}.toml`;
    writeFileSync(this.config, `api_keys = ["${KEY}"]\n`);
    // Keys must not be in a file that everybody can read.
    chmodSync(this.config, 0o640);
    mkdirSync(this.state);
  }

  async start() {
    const log = openSync(`${this.state}.log`, "a");
    const models = join(ROOT, "packaging", "demo");
    const place = ["--listen", `${this.host}:9999`, "--name", this.name, "--exit-with-parent", "--config", this.config];
    const program = join(options.programs, "brambled");
    this.process = spawn(program, [...place, "--state", this.state, "--models", models], { stdio: ["pipe", log, log] });
    await until(`${this.name} listens`, () => fetch(`http://${this.host}:9980/health`));
  }

  async kill() {
    this.quicken();
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const ended = new Promise((done) => this.process.once("exit", done));
    this.process.kill("SIGKILL");
    await ended;
  }

  // Makes the daemon, and so the whole topology, slow enough to watch an answer grow.
  slow() {
    this.slowing = setInterval(async () => {
      this.process.kill("SIGSTOP");
      await sleep(90);
      this.process.kill("SIGCONT");
    }, 100);
  }

  quicken() {
    clearInterval(this.slowing);
    this.process.kill("SIGCONT");
  }
}

async function until(what, call) {
  const deadline = Date.now() + 60000;
  for (;;) {
    const found = await Promise.resolve().then(call).catch(() => null);
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not within 60 s: ${what}`);
    await sleep(50);
  }
}

// The first of two loopback addresses that nothing uses.
async function freeHosts() {
  for (let number = process.pid; number < process.pid + 500; number += 1) {
    const hosts = [1, 2].map((last) => `127.${64 + (number % 120)}.${1 + (number % 250)}.${last}`);
    const taken = await Promise.all(hosts.flatMap((host) => [9999, 9980].map((port) => isTaken(host, port))));
    if (!taken.includes(true)) return hosts;
  }
  throw new Error("no loopback network is free");
}

function isTaken(host, port) {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", () => done(true));
    server.listen(port, host, () => server.close(() => done(false)));
  });
}

async function consoleRun(...inputs) {
  const environment = { ...process.env, BRAMBLE_NODES: "" };
  delete environment.BRAMBLE_NODES;
  const run = promisify(execFile)(join(options.programs, "console"), inputs, { env: environment });
  // Exit code 3: a node does not answer, which the object says, too.
  const { stdout } = await run.catch((error) => error);
  return stdout;
}

// What the page shows, as text by id, and its nodes.
function shown() {
  const text = (id) => document.getElementById(id).textContent;
  const nodes = [...document.querySelectorAll("#nodes > li.card")].map((card) => ({
    name: card.dataset.node,
    state: card.querySelector(".state").textContent,
    figures: Object.fromEntries([...card.querySelectorAll("dl > div")].map((one) => [...one.children].map((part) => part.textContent))),
  }));
  const names = ["summary", "state", "requests", "tokens", "count", "straggler"];
  return { ...Object.fromEntries(names.map((name) => [name, text(name)])), nodes };
}

const GIB = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(count) {
  let [value, unit] = [count, 0];
  while (value >= 1024) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 ? count : value.toFixed(1)} ${GIB[unit]}`;
}

// What the page must show, from the console's object.
function expected({ nodes }) {
  const { topology, epoch } = nodes[0];
  const sum = (name) => nodes.reduce((all, node) => all + node[name], 0);
  return {
    summary: `${topology.layout}  epoch ${epoch}  ${topology.model}  ctx ${topology.context}`,
    state: sum("requests") > 0 ? "serving" : "ready",
    requests: `${sum("requests")} of 16`,
    tokens: String(sum("tokens")),
    count: `${nodes.length} of ${nodes.length}`,
    straggler: "No straggler.",
    nodes: nodes.map((node) => {
      const { temperature, clock, memory } = node.health;
      const figures = {
        rank: `${node.topology.rank} (${node.topology.layout})`,
        temp: temperature === null ? "–" : `${temperature.toFixed(1)} °C`,
        ...(clock && { GHz: `${(clock.current / 1e3).toFixed(1)}/${(clock.limit / 1e3).toFixed(1)}` }),
        "memory free": `${bytes(memory.available)} of ${bytes(memory.total)}`,
        shard: bytes(node.shard_bytes),
        resident: bytes(node.memory_resident),
        address: node.address,
      };
      return { name: node.name, state: node.state, figures };
    }),
  };
}

// The last turn of the conversation.
function lastTurn() {
  const all = [...document.querySelectorAll("#messages article")];
  const last = all.at(-1);
  const part = (name) => last?.querySelector(name)?.innerText ?? "";
  return { count: all.length, role: last?.className, text: part(".text, .words:not(.thinking *)"), foot: part(".foot") };
}

async function ask(page, text) {
  await page.run(() => document.getElementById("prompt").focus());
  await page.type(text);
  await page.press("Enter");
}

const completed = (page) => page.until("the answer is complete", () => {
  const foot = [...document.querySelectorAll("#messages .foot")].at(-1)?.innerText ?? "";
  return /tokens\/s/.test(foot) && document.getElementById("stop").hidden;
});

async function withoutScript(browser, url) {
  const page = await browser.page();
  await page.send("Emulation.setScriptExecutionDisabled", { value: true });
  await page.send("Page.navigate", { url });
  // Scripts of the protocol do not run either: the document is read by the protocol itself, once it is there.
  let outerHTML = "";
  for (let attempt = 0; attempt < 100 && outerHTML === ""; attempt += 1) {
    await sleep(100);
    try {
      const { root } = await page.send("DOM.getDocument", { depth: -1 });
      const { nodeId } = await page.send("DOM.querySelector", { nodeId: root.nodeId, selector: "noscript" });
      if (nodeId !== 0) ({ outerHTML } = await page.send("DOM.getOuterHTML", { nodeId }));
    } catch {
      // The document has just been replaced.
    }
  }
  check("without JavaScript the page says so and names console chat", /JavaScript/.test(outerHTML) && /console chat/.test(outerHTML), outerHTML);
  await takePicture(page, "noscript");
}

async function takePicture(page, name) {
  if (!options.pictures) return;
  mkdirSync(options.pictures, { recursive: true });
  await page.picture(join(options.pictures, `${name}.png`));
}

// Texts whose colour has a contrast of less than 4.5 on the ground behind them; axe does not judge what is scrolled away.
function faint() {
  const channels = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const [red, green, blue] = channels(colour).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    const isClear = (channels(colour)[3] ?? 1) === 0;
    return isClear && element.parentElement ? ground(element.parentElement) : colour;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (texts.currentNode.data.trim() === "" || element.offsetParent === null || element.closest("option")) continue;
    const [darker, lighter] = [light(getComputedStyle(element).color), light(ground(element))].sort((one, two) => one - two);
    const contrast = (lighter + 0.05) / (darker + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)} ${texts.currentNode.data.trim().slice(0, 30)}`);
  }
  return found;
}

// Screenshots, contrast and axe in all looks.
async function inspect(page, name) {
  for (const look of [{}, { dark: true }, { width: 360, height: 740 }, { width: 360, height: 740, dark: true }]) {
    await page.look(look);
    await sleep(150);
    await takePicture(page, `${name}-${look.width ?? 1280}-${look.dark ? "dark" : "light"}`);
    const pale = await page.run(faint);
    check(`contrast is at least 4.5: ${name} ${JSON.stringify(look)}`, pale.length === 0, pale.join("\n"));
    if (!options.axe) continue;
    await page.send("Runtime.evaluate", { expression: readFileSync(options.axe, "utf8") });
    const found = await page.run(async () => {
      const { violations } = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] });
      return violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`);
    });
    check(`axe finds nothing: ${name} ${JSON.stringify(look)}`, found.length === 0, found.join("\n"));
  }
  await page.look();
}

async function logIn(page) {
  await page.until("it asks for a key", () => document.activeElement.id === "key");
  await inspect(page, "login");
  await page.type("sk-wrong-0123456789");
  await page.press("Enter");
  const refused = await page.until("the key is refused", () => document.getElementById("login-error").textContent);
  check("a wrong key is refused in words", /does not accept this key/.test(refused), refused);
  await page.until("it asks again", () => document.activeElement.id === "key");
  await page.type(KEY);
  await page.press("Enter");
  await page.until("the chat is open", () => document.activeElement.id === "prompt");
  check("the right key opens the chat, with the focus on the message", true);
}

async function chat(page) {
  await page.type("Speak, Romeo.");
  await page.press("Enter", { shift: true });
  await page.type("Of Juliet.");
  const typed = await page.run(() => document.getElementById("prompt").value);
  check("Shift+Enter starts a line", typed === "Speak, Romeo.\nOf Juliet.", JSON.stringify(typed));
  // Set by a settings field, reached with the keyboard later.
  await page.run(() => (document.getElementById("max-tokens").value = "24"));
  await page.press("Enter");
  await completed(page);
  const first = await page.run(lastTurn);
  check("Enter streams an answer", first.role === "assistant" && first.text.length > 0 && /tokens\/s, TTFT/.test(first.foot), JSON.stringify(first));
  await ask(page, "And then?");
  await completed(page);
  const second = await page.run(lastTurn);
  check("a second turn follows", second.count === 4 && second.text.length > 0, JSON.stringify(second));
  const spoken = await page.run(() => document.getElementById("said").textContent);
  check("screen readers hear that the answer is complete", spoken === "The answer is complete.", spoken);
}

async function figures(page, nodes) {
  let [want, have] = ["", "x"];
  // The free memory changes all the time; two looks at the same moment show the same.
  for (let attempt = 0; attempt < 60 && want !== have; attempt += 1) {
    await sleep(250);
    want = JSON.stringify(expected(JSON.parse(await consoleRun("status", "--nodes", nodes, "--json"))));
    have = JSON.stringify(await page.run(shown));
  }
  check("the figures are those of console status --json", want === have, `\n${want}\n${have}`);
}

async function stops(page, slowed) {
  slowed.slow();
  await page.run(() => (document.getElementById("max-tokens").value = "400"));
  await ask(page, "Speak on.");
  await page.until("an answer grows", () => [...document.querySelectorAll("#messages .words")].at(-1)?.textContent.length > 5);
  await page.press("Escape");
  const turn = await page.until("it has stopped", () => {
    const foot = [...document.querySelectorAll("#messages .foot")].at(-1)?.innerText ?? "";
    return /stopped/.test(foot) && foot;
  });
  check("Esc stops, and what was said stays", /Send again/.test(turn) && (await page.run(lastTurn)).text.length > 5, turn);
  slowed.quicken();
}

async function survivesNode(page, other) {
  await other.kill();
  const state = await page.until("the lost node is shown", (name) => {
    const card = document.querySelector(`#nodes > li[data-node="${name}"]`);
    return card?.querySelector(".state").textContent === "unreachable" && card.innerText;
  }, other.name);
  check("a lost node is shown, with the age of its figures", /No answer for/.test(state), state);
  await inspect(page, "node-lost");
  await other.start();
  await page.until("it is back", () => document.getElementById("state").textContent === "ready");
  check("its return is shown", true);
}

async function survivesOwn(page, own, slowed) {
  slowed.slow();
  await ask(page, "Speak of the night.");
  await page.until("an answer grows", () => [...document.querySelectorAll("#messages .words")].at(-1)?.textContent.length > 5);
  await page.type("A thought that I had meanwhile");
  const before = await page.run(lastTurn);
  await own.kill();
  slowed.quicken();
  await page.until("the loss is shown", () => document.getElementById("state").textContent === "no answer");
  const turn = await page.run(lastTurn);
  const isKept = turn.text.startsWith(before.text.slice(0, 5)) && turn.count === before.count;
  check("the loss of the node is said, and the answer so far stays", isKept && /connection was lost/.test(turn.foot), JSON.stringify(turn));
  const draft = await page.run(() => document.getElementById("prompt").value);
  check("the text being typed stays", draft === "A thought that I had meanwhile", draft);
  await inspect(page, "own-lost");
  await own.start();
  await page.until("the page is connected again", () => document.getElementById("state").textContent === "ready");
  await page.run(() => [...document.querySelectorAll("#messages button")].find((one) => one.textContent === "Send again").focus());
  await page.press("Enter");
  await completed(page);
  const again = await page.run(lastTurn);
  check("Send again answers after the restart", again.count === before.count && again.text.length > 5, JSON.stringify(again));
  await page.send("Page.reload");
  await page.until("the page is loaded again", () => !document.getElementById("chat").hidden);
  const kept = await page.run(lastTurn);
  const typed = await page.run(() => document.getElementById("prompt").value);
  check("a reload keeps the key, the conversation and the text", kept.text === again.text && typed === draft, JSON.stringify([kept, typed]));
}

// Presses Tab through the page and collects what has the focus.
async function tabs(page) {
  await page.look();
  await page.run(() => {
    document.activeElement.blur();
    getSelection().removeAllRanges();
  });
  const seen = [];
  const hidden = [];
  for (let step = 0; step < 40; step += 1) {
    await page.press("Tab");
    seen.push(await page.run(() => document.activeElement.id || document.activeElement.textContent.slice(0, 12)));
    // Between the last and the first place the browser itself has the focus.
    const isVisible = await page.run(
      () => document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none",
    );
    if (!isVisible) hidden.push(seen.at(-1));
  }
  const wanted = ["clear", "log", "Copy", "prompt", "send", "forget"];
  // The focus was somewhere within the page; after its end the browser begins again.
  const round = seen.slice(seen.indexOf("Skip to the "));
  const places = wanted.map((name) => round.indexOf(name));
  check("the keyboard reaches everything, in the order of the page", !places.includes(-1) && places.every((place, index) => index === 0 || place > places[index - 1]), round.join(" "));
  check("the focus is visible", hidden.length === 0, hidden.join(" "));
}

async function fits(page) {
  const wide = [];
  for (const width of WIDTHS) {
    for (const view of ["#chat", "#cluster"]) {
      await page.look({ width, height: 740 });
      await page.run((hash) => (location.hash = hash), view);
      await sleep(150);
      if (await page.run(() => document.documentElement.scrollWidth > innerWidth)) wide.push(`${width} ${view}`);
      if (width === 360) await takePicture(page, `view-${view.slice(1)}-360`);
    }
  }
  check("nothing is wider than the screen, from 320 pixels on", wide.length === 0, wide.join(", "));
  await page.look({ calm: true });
  const moving = await page.run(() => document.getAnimations().length);
  check("nothing moves for those who want no motion", moving === 0);
  await page.look();
}

async function main() {
  for (const program of ["brambled", "console"]) {
    const path = join(options.programs, program);
    if (!existsSync(path)) throw new Error(`${path} is missing; build first: cargo build --release --locked --workspace`);
  }
  const folder = mkdtempSync(join(tmpdir(), "bramble-web-"));
  const hosts = await freeHosts();
  const [own, other] = hosts.map((host, index) => new Daemon(folder, `pi${index + 1}`, host));
  const nodes = hosts.map((host) => `${host}:9999`).join(",");
  const browser = new Browser(options.chromium);
  try {
    await Promise.all([own.start(), other.start()]);
    await consoleRun("generate", "--yes", "--nodes", nodes, "--topology", "tp2", "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "1");
    const url = options.page ?? `http://${own.host}:9980/`;
    await withoutScript(browser, url);
    const page = await browser.page();
    await page.look();
    await page.open(url);
    check("a browser that opens the address gets the page", (await page.run(() => location.pathname)) === "/ui/");
    await logIn(page);
    await chat(page);
    await figures(page, nodes);
    await inspect(page, "chat");
    await stops(page, other);
    await survivesNode(page, other);
    await survivesOwn(page, own, other);
    await tabs(page);
    await fits(page);
    check("the browser reports no error and no violation of the policy", page.problems().length === 0, page.problems().join("\n"));
  } finally {
    await browser.end();
    await Promise.all([own.kill(), other.kill()]);
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

if (!options.chromium) {
  console.log("SKIPPED: no browser (apt-get install chromium)");
} else {
  await main();
  process.exitCode = failures > 0 ? 1 : 0;
}
