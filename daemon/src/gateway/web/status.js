// The cluster as the node reports it at /cluster, in the words of the dashboard and of `console status`.
import { Failure, get, sentence } from "./api.js";
import { bytes, duration, element, inline, say, show } from "./text.js";

// Pause between two requests, and time limit of each, in milliseconds.
const PAUSE = 2000;
const PATIENCE = 4000;
// The rate is a mean over this time; the graph shows so many rates.
const WINDOW = 5000;
const RATES = 60;

// Asks again and again. `seen` receives each answer, `lost` the time in ms since the last one, `refused` a Failure.
export async function watch({ seen, lost, refused }) {
  let latest = performance.now();
  for (;;) {
    try {
      const cluster = await get("cluster", PATIENCE);
      latest = performance.now();
      showCluster(cluster);
      seen(cluster);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.needsKey) return refused(error);
      lost(performance.now() - latest, error);
    }
    await new Promise((done) => setTimeout(done, PAUSE));
  }
}

// Tokens of all heads, counted from their reports: a restarted head begins again at 0.
const counted = { heads: new Map(), total: 0, samples: [], rates: [] };

function measure(nodes) {
  const now = performance.now();
  for (const node of nodes) {
    if (node.tokens === undefined) continue;
    const before = counted.heads.get(node.address);
    if (before !== undefined) counted.total += node.tokens < before ? node.tokens : node.tokens - before;
    counted.heads.set(node.address, node.tokens);
  }
  counted.samples.push({ at: now, total: counted.total });
  while (counted.samples.length > 2 && counted.samples[1].at < now - WINDOW) counted.samples.shift();
  const first = counted.samples[0];
  if (now === first.at) return null;
  const rate = ((counted.total - first.total) * 1000) / (now - first.at);
  counted.rates = [...counted.rates, rate].slice(-RATES);
  return rate;
}

// The state in the dashboard's words, and its colour.
function standing(cluster, requests) {
  const { status, loading, models } = cluster;
  if (status === "ready") return requests > 0 ? ["serving", "good"] : ["ready", "good"];
  if (status === "loading" && loading) return [`loading ${Math.round((loading.fraction ?? 0) * 100)} %`, "warn"];
  if (status === "unavailable") return models.length === 0 ? ["idle", "dim"] : ["broken", "bad"];
  return [status, "warn"];
}

function showCluster(cluster) {
  const { nodes, models, stragglers, slow_hops: hops } = cluster;
  const sum = (name) => nodes.reduce((all, node) => all + (node[name] ?? 0), 0);
  const requests = sum("requests");
  const [word, kind] = standing(cluster, requests);
  show("state", word).dataset.kind = kind;
  document.title = `${word} · ${cluster.node} · Bramble`;
  const [first] = models;
  const epoch = nodes.find((node) => node.topology)?.epoch;
  const more = models.length > 1 ? ` and ${models.length - 1} more` : "";
  show("summary", first ? `${first.layout}  epoch ${epoch ?? "–"}  ${first.id}  ctx ${first.context}${more}` : "no topology");
  const rate = measure(nodes);
  show("rate", rate === null ? "–" : rate.toFixed(1));
  show("requests", `${requests} of ${cluster.slots.all}`);
  show("queue", String(cluster.queue));
  show("tokens", String(sum("tokens")));
  const here = nodes.filter((node) => node.reachable).length;
  show("count", `${here} of ${nodes.length}`);
  say("message", sentence(cluster.message));
  const late = stragglers.map((one) => `${one.node}${one.cause ? ` (${one.cause})` : ""}`);
  const slow = hops.map((hop) => `${hop.from} to ${hop.to}`);
  const parts = [late.length > 0 ? `straggler: ${late.join(", ")}` : "no straggler"];
  if (slow.length > 0) parts.push(`slow hop: ${slow.join(", ")}`);
  show("straggler", sentence(parts.join("; "))).className = late.length + slow.length > 0 ? "warn" : "";
  showGraph();
  replace("models", models.map(modelLine), element("li", "dim", "No model is loaded."));
  replace("nodes", nodes.map((node) => nodeCard(node, stragglers)), element("li", "dim", "No node is known."));
  show("source", `As ${cluster.node} sees it; brambled ${cluster.version}. The same figures: console status --json`);
}

// The lists as they were drawn last.
const drawn = new Map();

// Replaces a list unless it is equal. Open details stay open, and the focus stays where it is.
function replace(id, items, empty) {
  const list = document.getElementById(id);
  const fresh = element("ul", "", ...(items.length > 0 ? items : [empty]));
  if (fresh.innerHTML === drawn.get(id)) return;
  drawn.set(id, fresh.innerHTML);
  const open = new Set([...list.querySelectorAll("details[open]")].map((one) => one.dataset.node));
  for (const one of fresh.querySelectorAll("details")) one.open = open.has(one.dataset.node);
  const focused = list.contains(document.activeElement) ? document.activeElement.parentElement.dataset.node : null;
  list.replaceChildren(...fresh.childNodes);
  if (focused) list.querySelector(`details[data-node="${CSS.escape(focused)}"] summary`)?.focus();
}

function showGraph() {
  const most = Math.max(...counted.rates, 0);
  document.getElementById("trend").hidden = most === 0;
  if (most === 0) return;
  const points = counted.rates.map((rate, index) => {
    const x = 120 - ((counted.rates.length - 1 - index) * 120) / (RATES - 1);
    return `${x.toFixed(1)},${(23 - (22 * rate) / most).toFixed(1)}`;
  });
  document.getElementById("curve").setAttribute("points", points.join(" "));
  show("graph-text", `tokens/s, last ${(RATES * PAUSE) / 60000} min, at most ${most.toFixed(1)}`);
}

function modelLine(model) {
  const serving = element("span", model.serving ? "good" : "warn", model.serving ? "serving" : "not serving");
  return element("li", "", element("strong", "", model.id), ` ${model.layout}, ctx ${model.context}, slots ${model.slots}, `, serving);
}

// The state of a node as in `console status`.
function nodeState(node) {
  if (node.exclusion) return [node.exclusion.cordon ? "cordoned" : "excluded", "warn"];
  if (node.reachable === null) return ["connecting", "dim"];
  if (!node.reachable) return ["unreachable", "bad"];
  if (node.load) return [`${node.state} ${Math.floor((100 * node.load.done) / Math.max(node.load.total, 1))}%`, "warn"];
  if (node.fault) return [node.state, "bad"];
  return [node.state, ["ready", "serving"].includes(node.state) ? "good" : "dim"];
}

function nodeCard(node, stragglers) {
  const name = node.name ?? node.address;
  const [word, kind] = nodeState(node);
  const head = element("p", "head", element("strong", "", name));
  const state = element("span", "state", word);
  state.dataset.kind = kind;
  head.append(state);
  if (stragglers.some((one) => one.node === name)) {
    const late = element("span", "state", "straggler");
    late.dataset.kind = "warn";
    head.append(late);
  }
  const figures = nodeFigures(node).map(([label, value]) => element("div", "", element("dt", "", label), element("dd", "", value)));
  const card = element("li", "card", head, element("dl", "figures", ...figures));
  card.dataset.node = name;
  if (node.health?.memory) card.append(memoryBar(node.health.memory));
  card.append(...nodeRemarks(node));
  return card;
}

function memoryBar({ available, total }) {
  const bar = element("meter", "");
  bar.max = total;
  bar.value = total - available;
  bar.high = total * 0.95;
  // The text next to it says the same.
  bar.setAttribute("aria-hidden", "true");
  return bar;
}

function nodeFigures(node) {
  const { health, topology } = node;
  const figures = [];
  if (topology) figures.push(["rank", `${topology.rank} (${topology.layout})`]);
  if (health) {
    figures.push(["temp", health.temperature === null ? "–" : `${health.temperature.toFixed(1)} °C`]);
    if (health.clock) figures.push(["GHz", `${(health.clock.current / 1e3).toFixed(1)}/${(health.clock.limit / 1e3).toFixed(1)}`]);
    if (health.memory) figures.push(["memory free", `${bytes(health.memory.available)} of ${bytes(health.memory.total)}`]);
    figures.push(["shard", bytes(node.shard_bytes)], ["resident", bytes(node.memory_resident)]);
  }
  if (node.requests > 0) figures.push(["requests", String(node.requests)]);
  figures.push(["address", node.address]);
  return figures;
}

function nodeRemarks(node) {
  const remarks = [];
  // Reports arrive every quarter of a second, or every 2 s.
  const away = node.away_ms ?? (node.age_ms > 5000 ? node.age_ms : null);
  if (away !== null) {
    const old = node.age_ms === undefined ? "" : `, its figures are ${duration(node.age_ms)} old`;
    remarks.push(element("p", "bad", `No answer for ${duration(away)}${old}.`));
  }
  if (node.exclusion) {
    const { cordon, reason, by } = node.exclusion;
    remarks.push(element("p", "warn", sentence(`${cordon ? "cordoned" : "excluded"}: ${reason} (by ${by})`)));
  }
  if (node.paced) remarks.push(element("p", "bad", "It computes nothing, its output is meaningless."));
  // It begins with a node's name, which stays as it is.
  if (node.fault) remarks.push(element("p", "bad", inline(`${node.fault}; ${node.next}.`)));
  if (node.findings?.length > 0) {
    const words = node.labels.length > 0 ? node.labels.join(", ") : "ok";
    const details = element("details", "", element("summary", node.labels.length > 0 ? "warn" : "", `health: ${words}`));
    details.dataset.node = node.address;
    for (const { severity, meaning, fix } of node.findings) {
      details.append(element("p", "", `${severity}: ${meaning}`, element("br"), inline(`fix: ${fix}`)));
    }
    remarks.push(details);
  } else if (node.findings) {
    remarks.push(element("p", "dim", "health: ok"));
  }
  return remarks;
}
