// Checks of JavaScript clients against the servers of served.py, as checks.py has them for Python.
import assert from "node:assert/strict";

export const { BRAMBLE_URL: URL, BRAMBLE_SCRIPTED: SCRIPTED, BRAMBLE_KEY: KEY } = process.env;
export const MODEL = "bard-q8_0.gguf";
export const FAKE = "fake.gguf";
// The scripted model calls this tool and then repeats its result.
export const CALL = 'CALL[[[get_weather {"town": "Oslo", "days": 2}]]]';
export const SAID = "The tool said: Rain in Oslo for 2 days.";
export const weather = ({ town, days }) => `Rain in ${town} for ${days} days.`;
// More tokens than the context of the demo model.
export const TOO_LONG = "a b c ".repeat(4000);
export const SCHEMA = {
  type: "object",
  properties: { speaker: { enum: ["ROMEO", "JULIET"] }, scene: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["speaker", "scene"],
  additionalProperties: false,
};

export function isLine(line) {
  assert.ok(["ROMEO", "JULIET"].includes(line.speaker) && line.scene >= 1 && line.scene <= 9, JSON.stringify(line));
}

async function metric(name) {
  const answer = await fetch(`${URL}/metrics`, { headers: { Authorization: `Bearer ${KEY}` } });
  const lines = (await answer.text()).split("\n").filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

/** Expects that `leave`, which leaves an answer in the middle, cancels a request of the daemon. */
export async function cancels(leave) {
  const before = await metric("bramble_cancelled_total");
  await leave();
  const deadline = Date.now() + 20_000;
  while ((await metric("bramble_cancelled_total")) === before || (await metric("bramble_requests_running")) > 0) {
    assert.ok(Date.now() < deadline, "the request continues without its client");
    await new Promise((resume) => setTimeout(resume, 50));
  }
}

/** The error with which `ask` must fail; its text has `part`. */
export async function refused(kind, part, ask) {
  try {
    await ask();
  } catch (error) {
    assert.ok(error instanceof kind, `${error?.constructor?.name}: ${error}`);
    assert.ok(`${error.message} ${JSON.stringify(error.data ?? "")}`.includes(part), `${part} is missing: ${error}`);
    return error;
  }
  throw new Error("it was not refused");
}

export async function run(client, checks) {
  let failed = 0;
  for (const check of checks) {
    try {
      await check();
      console.log(`ok     ${check.name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${check.name}: ${error.stack}`);
    }
  }
  if (failed > 0) {
    console.error(`${client}: ${failed} of ${checks.length} checks failed`);
    process.exit(1);
  }
  console.log(`${client}: ${checks.length} checks passed`);
}
