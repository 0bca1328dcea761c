// The chat: turns, streamed answers, Stop and Send again. The conversation and the text being typed stay in this tab.
import { Failure, keep, recall, sentence, stream } from "./api.js";
import { copy, duration, element, formatted, inline, show } from "./text.js";

const TURNS = "bramble.turns";
const DRAFT = "bramble.draft";
// Time between two copies of a growing answer in the tab's storage, and after which a silent node counts as lost.
const KEEP_MS = 500;
const LOST_MS = 10000;
const AGAIN = "Send it again when the node answers.";

const found = (id) => document.getElementById(id);

// Turns of `user` and `assistant`. Answers have the state `running`, `complete`, `stopped` or `failed`, and a `note`.
let turns = [];
// The running request: { controller, heard }.
let running = null;
let needsKey = () => {};
// Whether the log shows its end, and the height that it had then.
let [isAtEnd, height] = [true, 0];

// Fills the chat from the tab's storage and makes it work; `onKey` is called when the node wants another key.
export function begin(onKey) {
  needsKey = onKey;
  try {
    turns = JSON.parse(recall(TURNS) ?? "[]");
  } catch {
    turns = [];
  }
  for (const turn of turns.filter((turn) => turn.state === "running")) {
    Object.assign(turn, { state: "failed", note: "The page was loaded again before the answer was complete." });
  }
  draw();
  const prompt = found("prompt");
  prompt.value = recall(DRAFT) ?? "";
  prompt.addEventListener("input", () => keep(DRAFT, prompt.value));
  prompt.addEventListener("keydown", (event) => {
    // Input methods use Enter to finish a word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  found("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  found("stop").addEventListener("click", stop);
  // A notice above or a larger field below makes the log smaller.
  new ResizeObserver(() => follow(() => {})).observe(found("log"));
  found("log").addEventListener("scroll", remember);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) stop();
  });
  found("clear").addEventListener("click", clear);
  addEventListener("pagehide", save);
}

function save() {
  if (!keep(TURNS, JSON.stringify(turns))) show("said", "This browser does not keep the conversation.");
}

function clear() {
  stop();
  turns = [];
  save();
  draw();
  found("prompt").focus();
}

function stop() {
  running?.controller.abort("stopped");
}

// The node has not answered for so long. A machine without power does not close its connections.
export function silent(ms) {
  if (running && ms > LOST_MS && performance.now() - running.heard > LOST_MS) running.controller.abort("lost");
}

function submit() {
  const prompt = found("prompt");
  const text = prompt.value.trim();
  if (text === "" || running) return;
  turns.push({ role: "user", text });
  prompt.value = "";
  keep(DRAFT, null);
  answer();
}

// Asks for the last answer once more.
function again() {
  if (running || turns.at(-1)?.role !== "assistant") return;
  turns.pop();
  found("prompt").focus();
  answer();
}

// The conversation for the node. Answers that failed before their first word are left out, and then the user's turns
// around them are one: chat templates want the roles to alternate.
function messages() {
  const list = [];
  for (const { role, text } of turns.filter((turn) => turn.text !== "")) {
    if (list.at(-1)?.role === role) list.at(-1).content += `\n\n${text}`;
    else list.push({ role, content: text });
  }
  return list;
}

function request() {
  const body = { messages: messages(), stream: true, stream_options: { include_usage: true } };
  const model = found("model").value;
  if (model !== "") body.model = model;
  for (const [field, name] of [["max-tokens", "max_tokens"], ["temperature", "temperature"]]) {
    const { valueAsNumber } = found(field);
    if (Number.isFinite(valueAsNumber)) body[name] = valueAsNumber;
  }
  return body;
}

async function answer() {
  const body = request();
  const turn = { role: "assistant", text: "", thinking: "", state: "running", note: "", model: body.model };
  turns.push(turn);
  save();
  const view = draw();
  const own = { controller: new AbortController(), heard: performance.now() };
  running = own;
  busy(true);
  let kept = performance.now();
  try {
    for await (const event of stream("v1/chat/completions", body, own.controller.signal)) {
      own.heard = performance.now();
      take(turn, event, view);
      if (own.heard - kept > KEEP_MS) {
        kept = own.heard;
        save();
      }
    }
    turn.state = "complete";
  } catch (error) {
    fail(turn, error, own.controller.signal);
  }
  running = null;
  busy(false);
  // Another conversation may have begun.
  if (!turns.includes(turn)) return;
  save();
  draw();
  const said = { complete: "The answer is complete.", stopped: "Stopped.", failed: turn.note };
  show("said", said[turn.state]);
}

// Adds a part of the answer to the turn and to the page.
function take(turn, event, view) {
  const [choice] = event.choices ?? [];
  const { content = "", reasoning_content: thought = "" } = choice?.delta ?? {};
  turn.model = event.model ?? turn.model;
  if (thought) {
    turn.thinking += thought;
    turn.thoughtSince ??= performance.now();
    view.thinking.hidden = false;
    follow(() => view.thoughts.append(thought));
  }
  if (content) {
    if (turn.thoughtSince !== undefined) turn.thoughtMs ??= performance.now() - turn.thoughtSince;
    // Many answers begin with an empty line.
    const more = turn.text === "" ? content.trimStart() : content;
    turn.text += more;
    follow(() => view.text.append(more));
  }
  if (choice?.finish_reason === "length") turn.note = "Cut off: the limit of tokens was reached.";
  if (event.timings) {
    const { predicted_n: tokens, predicted_per_second: rate, trace } = event.timings;
    const ttft = trace?.t_first_token === undefined ? "" : `, TTFT ${duration(trace.t_first_token)}`;
    turn.figures = `${tokens} tokens, ${rate.toFixed(1)} tokens/s${ttft}`;
  }
}

function fail(turn, error, signal) {
  if (signal.aborted && signal.reason === "stopped") {
    turn.state = "stopped";
    return;
  }
  turn.state = "failed";
  if (signal.aborted) {
    turn.note = `The node has been silent for more than ${duration(LOST_MS)}. ${AGAIN}`;
  } else if (error instanceof Failure) {
    const isLost = ["unreachable", "cut"].includes(error.code);
    const next = `The node may have been restarted or have lost its power. ${AGAIN}`;
    turn.note = isLost ? `${error.message} ${next}` : error.message;
    if (error.needsKey) needsKey(error);
  } else {
    turn.note = sentence(`the answer could not be read: ${error.message}`);
  }
}

function busy(is) {
  found("stop").hidden = !is;
  found("send").hidden = is;
  // Screen readers read the answer once it is complete.
  found("log").setAttribute("aria-busy", String(is));
  if (is) show("said", "The model answers.");
}

// Scrolling back ends following; a change of the height alone does not.
function remember() {
  const log = found("log");
  if (log.clientHeight === height) isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}

// Runs a change of the log, which then still shows its end if it did before.
function follow(change) {
  const log = found("log");
  change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
  height = log.clientHeight;
}

// Draws all turns; returns the elements of the last one, which grow.
function draw() {
  found("empty").hidden = turns.length > 0;
  found("clear").disabled = turns.length === 0;
  const views = turns.map((turn, index) => turnView(turn, index === turns.length - 1));
  isAtEnd = true;
  follow(() => found("messages").replaceChildren(...views.map((view) => view.article)));
  return views.at(-1);
}

function turnView(turn, isLast) {
  const isUser = turn.role === "user";
  const article = element("article", turn.role, element("h3", "", isUser ? "You" : (turn.model ?? "Answer")));
  const thoughts = element("div", "words", turn.thinking ?? "");
  const took = turn.thoughtMs === undefined ? "" : ` for ${duration(turn.thoughtMs)}`;
  const thinking = element("details", "thinking", element("summary", "", `Thinking${took}`), thoughts);
  thinking.hidden = !turn.thinking;
  // An answer is formatted once it is complete: half a block of code has no meaning yet.
  const grows = turn.state === "running";
  const text = element("div", grows ? "words growing" : isUser ? "words" : "text");
  text.append(grows || isUser ? turn.text : formatted(turn.text));
  article.append(thinking, text);
  const foot = element("div", "row foot");
  if (grows) foot.append(element("span", "dim", "answering"));
  if (turn.state === "stopped") foot.append(element("span", "dim", "stopped"));
  if (turn.figures) foot.append(element("span", "dim", turn.figures));
  if (turn.note) foot.append(element("span", turn.state === "failed" ? "bad" : "warn", inline(turn.note)));
  if (["failed", "stopped"].includes(turn.state) && isLast) foot.append(button("Send again", again));
  if (turn.text && !isUser && !grows) foot.append(copyButton(turn.text));
  if (!isUser) article.append(foot);
  return { article, thinking, thoughts, text };
}

function button(label, action) {
  const made = element("button", "small", label);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

function copyButton(text) {
  const made = button("Copy", async () => {
    const isCopied = await copy(text);
    made.textContent = isCopied ? "Copied" : "Not copied";
    show("said", isCopied ? "The answer is copied." : "The browser does not allow copying; select the text.");
    setTimeout(() => (made.textContent = "Copy"), 2000);
  });
  return made;
}
