// A headless Chromium over the pipe of its debugging protocol: without a package, a port or a WebSocket.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"];
const KEYS = {
  Enter: { key: "Enter", code: "Enter", windowsVirtualKeyCode: 13, text: "\r" },
  Tab: { key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 },
  Escape: { key: "Escape", code: "Escape", windowsVirtualKeyCode: 27 },
  Space: { key: " ", code: "Space", windowsVirtualKeyCode: 32, text: " " },
};
const SHIFT = 8;

// The path of an installed browser, or undefined.
export function installed() {
  const folders = (process.env.PATH ?? "").split(delimiter);
  return NAMES.flatMap((name) => folders.map((folder) => join(folder, name))).find((path) => existsSync(path));
}

export class Browser {
  #answers = new Map();
  #last = 0;
  #rest = "";

  constructor(path) {
    this.profile = mkdtempSync(join(tmpdir(), "bramble-page-"));
    const options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
    const stdio = ["ignore", "ignore", "ignore", "pipe", "pipe"];
    const all = [...options, "--remote-debugging-pipe", `--user-data-dir=${this.profile}`, "about:blank"];
    this.process = spawn(path, all, { stdio, detached: true });
    this.process.stdio[4].setEncoding("utf8").on("data", (part) => this.#take(part));
    this.process.stdio[3].on("error", () => {});
    this.process.once("exit", () => {
      for (const answer of this.#answers.values()) answer.reject(new Error("the browser has ended"));
      this.#answers.clear();
    });
    this.events = [];
  }

  #take(part) {
    const messages = (this.#rest + part).split("\0");
    this.#rest = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
      const answer = this.#answers.get(message.id);
      this.#answers.delete(message.id);
      if (!answer) this.events.push(message);
      else if (message.error) answer.reject(new Error(message.error.message));
      else answer.resolve(message.result);
    }
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#answers.set(id, { resolve, reject });
      this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  async page() {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.send(`${domain}.enable`);
    return page;
  }

  async end() {
    const ended = new Promise((done) => this.process.once("exit", done));
    try {
      // Its child processes are in its group.
      process.kill(-this.process.pid, "SIGKILL");
      await ended;
    } catch {
      // It has ended already.
    }
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

export class Page {
  constructor(browser, session) {
    this.browser = browser;
    this.session = session;
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.session);
  }

  async open(url) {
    const { errorText } = await this.send("Page.navigate", { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    await this.until("the page is loaded", () => document.readyState === "complete");
  }

  // The result of a function in the page.
  async run(call, ...inputs) {
    const expression = `(${call})(${inputs.map((input) => JSON.stringify(input)).join(", ")})`;
    const answer = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (answer.exceptionDetails) {
      throw new Error(answer.exceptionDetails.exception?.description ?? answer.exceptionDetails.text);
    }
    return answer.result.value;
  }

  // Waits until a function in the page returns something true, and returns it.
  async until(what, call, ...inputs) {
    const deadline = Date.now() + 60000;
    for (;;) {
      const found = await this.run(call, ...inputs).catch(() => null);
      if (found) return found;
      if (Date.now() > deadline) throw new Error(`not within 60 s: ${what}\n${await this.text().catch(() => "")}`);
      await sleep(30);
    }
  }

  text() {
    return this.run(() => document.body.innerText);
  }

  async press(name, { shift = false } = {}) {
    const key = { ...KEYS[name], modifiers: shift ? SHIFT : 0 };
    await this.send("Input.dispatchKeyEvent", { type: key.text ? "keyDown" : "rawKeyDown", ...key });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...key, text: undefined });
  }

  type(text) {
    return this.send("Input.insertText", { text });
  }

  async look({ width = 1280, height = 800, dark = false, calm = false } = {}) {
    const metrics = { width, height, deviceScaleFactor: 1, mobile: false };
    await this.send("Emulation.setDeviceMetricsOverride", metrics);
    const features = [
      { name: "prefers-color-scheme", value: dark ? "dark" : "light" },
      { name: "prefers-reduced-motion", value: calm ? "reduce" : "no-preference" },
    ];
    await this.send("Emulation.setEmulatedMedia", { features });
  }

  async picture(path) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  // Errors and violations of the page's policy that the browser has reported; a failed request is not among them.
  problems() {
    const all = this.browser.events.filter((event) => event.sessionId === this.session);
    const thrown = all.filter((event) => event.method === "Runtime.exceptionThrown");
    const logged = all.filter((event) => event.method === "Log.entryAdded" && event.params.entry.source !== "network");
    return [
      ...thrown.map((event) => event.params.exceptionDetails.exception?.description ?? "an exception"),
      ...logged.filter((event) => event.params.entry.level === "error").map((event) => event.params.entry.text),
    ];
  }
}
