// The page of a node: asks for a key if the node wants one, then shows the chat and the cluster.
import { hasKey, useKey } from "./api.js";
import { begin, silent } from "./chat.js";
import { watch } from "./status.js";
import { duration, element, show } from "./text.js";

const found = (id) => document.getElementById(id);

// Whether the status is being asked for.
let watches = false;

async function start() {
  if (watches) return;
  watches = true;
  await watch({ seen, lost, refused });
  watches = false;
}

function seen(cluster) {
  open();
  document.body.classList.remove("old");
  if (!found("lost").hidden) show("said", "The node answers again.");
  found("lost").hidden = true;
  chooseModel(cluster.models);
}

function lost(ms, error) {
  silent(ms);
  document.body.classList.add("old");
  const old = found("chat").hidden ? "" : ` The figures are ${duration(ms)} old.`;
  show("lost", `${error.message}${old} Trying again every 2 s.`).hidden = false;
  show("state", "no answer").dataset.kind = "bad";
  document.title = "no answer · Bramble";
}

// The node wants another key. Status and chat may both find out.
function refused() {
  if (!found("login").hidden) return;
  show("login-error", hasKey() ? "The node does not accept this key. Check it, or ask the operator for another one." : "");
  useKey("");
  for (const id of ["views", "chat", "cluster", "figures", "lost"]) found(id).hidden = true;
  found("login").hidden = false;
  show("state", "needs a key").dataset.kind = "warn";
  found("key").focus();
}

function open() {
  if (!found("chat").hidden) return;
  for (const id of ["views", "chat", "cluster", "figures"]) found(id).hidden = false;
  found("login").hidden = true;
  found("forget").hidden = !hasKey();
  found("prompt").focus({ preventScroll: true });
}

// The models to choose from; the choice stays while the model is there.
function chooseModel(models) {
  const select = found("model");
  const names = models.map((model) => model.id);
  for (const id of ["model", "model-label"]) found(id).hidden = names.length < 2;
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const before = select.value;
  select.replaceChildren(...names.map((name) => Object.assign(element("option", "", name), { value: name })));
  if (names.includes(before)) select.value = before;
}

// On narrow screens one of the two parts is shown.
function chooseView() {
  const view = location.hash === "#cluster" ? "cluster" : "chat";
  document.body.dataset.view = view;
  for (const link of found("views").querySelectorAll("a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

found("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = found("key");
  useKey(field.value.trim());
  field.value = "";
  found("login").hidden = true;
  start();
});
// A page that is loaded again has asked for nothing yet, so no late answer can bring the old key back.
found("forget").addEventListener("click", () => {
  useKey("");
  location.reload();
});
addEventListener("hashchange", chooseView);
chooseView();
begin(refused);
found("waiting").hidden = true;
found("app").hidden = false;
start();
