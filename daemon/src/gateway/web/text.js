// Numbers and texts as elements. Everything from a model or a node becomes text nodes, never markup.

// An element with a class, and texts or elements inside.
export function element(name, kind, ...inside) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  made.append(...inside);
  return made;
}

// Shows text only if it has changed, so that screen readers stay quiet.
export function show(id, text) {
  const found = document.getElementById(id);
  if (found.textContent !== text) found.textContent = text;
  return found;
}

// As `show`, for texts with commands.
export function say(id, text) {
  const found = document.getElementById(id);
  if (found.dataset.text === text) return;
  found.dataset.text = text;
  found.replaceChildren(inline(text));
}

// Bytes as the console prints them.
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [value, unit] = [count, 0];
  while (value >= 1024 && unit + 1 < units.length) [value, unit] = [value / 1024, unit + 1];
  return unit === 0 ? `${count} B` : `${value.toFixed(1)} ${units[unit]}`;
}

// A length of time in words.
export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.round(minutes / 60)} h`;
}

// An answer with blocks of code, bold text and code within lines; anything else stays as the model wrote it.
export function formatted(text) {
  const all = document.createDocumentFragment();
  const parts = text.split(/^[ \t]*```([^\n`]*)\n([\s\S]*?)(?:^[ \t]*```[ \t]*(?:\n|$)|(?![\s\S]))/m);
  for (let index = 0; index < parts.length; index += 3) {
    if (parts[index]) all.append(inline(parts[index]));
    if (index + 2 < parts.length) {
      const code = element("pre", "", element("code", "", parts[index + 2].replace(/\n$/, "")));
      // Long lines scroll, also by the keyboard.
      code.tabIndex = 0;
      code.setAttribute("role", "region");
      code.setAttribute("aria-label", `Code ${index / 3 + 1}${parts[index + 1] ? `, ${parts[index + 1].trim()}` : ""}`);
      all.append(code);
    }
  }
  return all;
}

// A text whose commands and bold words stand out.
export function inline(text) {
  const line = element("span", "words");
  for (const part of text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (/^`[^`]+`$/.test(part)) line.append(element("code", "", part.slice(1, -1)));
    else if (/^\*\*[^*]+\*\*$/.test(part)) line.append(element("strong", "", part.slice(2, -2)));
    else line.append(part);
  }
  return line;
}

// Copies text. Outside of HTTPS and localhost browsers have only the older command.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = element("textarea", "unseen");
    field.value = text;
    field.setAttribute("aria-hidden", "true");
    const before = document.activeElement;
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    before?.focus();
    return isCopied;
  }
}
