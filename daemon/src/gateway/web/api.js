// The API of the node that served this page: the key, requests, streamed answers, and failures in words.

const KEY = "bramble.key";
// The page is at ui/ below the address of the API.
const ROOT = new URL("../", location.href);

// A request that failed. `code` is that of the API, or `unreachable` or `cut` if the connection failed.
export class Failure extends Error {
  constructor(message, code, status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }

  get needsKey() {
    return this.status === 401;
  }
}

// A value of this tab's storage; some browsers forbid it.
export function recall(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

// Keeps a value, or removes it if it is null. Returns whether it is kept.
export function keep(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
    return true;
  } catch {
    return false;
  }
}

// The key lives as long as this tab, even where storage is forbidden.
let key = recall(KEY) ?? "";

export function hasKey() {
  return key !== "";
}

export function useKey(text) {
  key = text;
  keep(KEY, text === "" ? null : text);
}

// Sends a request; resolves to a response with a good status.
async function send(path, options) {
  const headers = { ...options.headers };
  if (key !== "") headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error instanceof TypeError) throw new Failure("The node does not answer.", "unreachable");
    throw error;
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

// A refusal in the words of the node, which end with the next step.
async function refusal(response) {
  let error = null;
  try {
    ({ error } = await response.json());
  } catch {
    // A proxy may answer in its own form.
  }
  const message = error?.message ?? `The node answered with status ${response.status}; try again, or ask the operator.`;
  return new Failure(sentence(message), error?.code ?? "", response.status);
}

// Messages of the API are clauses; here they stand alone.
export function sentence(text) {
  const trimmed = text.trim();
  const begin = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(begin) ? begin : `${begin}.`;
}

// A JSON object, within `patience` milliseconds.
export async function get(path, patience) {
  try {
    const response = await send(path, { signal: AbortSignal.timeout(patience) });
    return await response.json();
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure("The node does not answer.", "unreachable");
  }
}

// The events of a streamed answer, one object each. Throws a Failure if the node refuses, reports an error, or closes
// the connection before the end.
export async function* stream(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const cut = () => new Failure("The connection was lost before the answer was complete.", "cut");
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        throw cut();
      }
      if (part.done) throw cut();
      const lines = (rest + decoder.decode(part.value, { stream: true })).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Failure(sentence(event.error.message ?? ""), event.error.code ?? "");
        yield event;
      }
    }
  } finally {
    // Closing the connection cancels the request on the node.
    reader.cancel().catch(() => {});
  }
}
