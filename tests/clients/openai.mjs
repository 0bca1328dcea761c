// openai and ollama for JavaScript; run by .ci/clients in target/node.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { CALL, FAKE, KEY, MODEL, SAID, SCHEMA, SCRIPTED, TOO_LONG, URL, cancels, isLine, refused, run, weather } from "./checks.mjs";

const client = (url = URL, apiKey = KEY) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
const openai = client();
const short = { model: MODEL, messages: [{ role: "user", content: "Speak, Romeo." }], max_tokens: 16, temperature: 0 };
const parameters = { type: "object", properties: { town: { type: "string", maxLength: 8 }, days: { type: "integer", minimum: 1, maximum: 9 } } };
Object.assign(parameters, { required: ["town", "days"], additionalProperties: false });
const tool = { type: "function", function: { name: "get_weather", description: "The weather in a town", parameters } };

async function openai_lists_models() {
  const ids = [];
  for await (const model of openai.models.list()) ids.push(model.id);
  assert.deepEqual(ids, [MODEL]);
}

async function openai_streams_what_it_answers_whole() {
  const whole = await openai.chat.completions.create(short);
  let text = "";
  let usage;
  for await (const chunk of await openai.chat.completions.create({ ...short, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 16);
  const response = await openai.responses.create({ model: MODEL, input: "Speak, Romeo.", max_output_tokens: 16, temperature: 0 });
  let said = "";
  for await (const event of await openai.responses.create({ model: MODEL, input: "Speak, Romeo.", max_output_tokens: 16, temperature: 0, stream: true })) {
    said += event.type === "response.output_text.delta" ? event.delta : "";
  }
  assert.ok(said && said === response.output_text, said);
}

async function openai_follows_a_schema() {
  const response_format = { type: "json_schema", json_schema: { name: "line", schema: SCHEMA, strict: true } };
  const answer = await openai.chat.completions.parse({ ...short, max_tokens: 200, response_format });
  isLine(JSON.parse(answer.choices[0].message.content));
}

async function openai_must_call_a_tool() {
  const answer = await openai.chat.completions.create({ ...short, max_tokens: 400, tools: [tool], tool_choice: "required" });
  const [call] = answer.choices[0].message.tool_calls;
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ["days", "town"]);
}

async function openai_runs_a_tool_and_answers() {
  const runnable = { ...tool, function: { ...tool.function, parse: JSON.parse, function: weather } };
  const asked = { model: FAKE, messages: [{ role: "user", content: CALL }], tools: [runnable] };
  for (const stream of [false, true]) {
    const runner = client(SCRIPTED).chat.completions.runTools({ ...asked, stream });
    assert.equal(await runner.finalContent(), SAID);
    // In a stream it keeps only the last piece of fields that it does not know.
    const thought = runner.messages.find((message) => message.role === "assistant").reasoning_content;
    assert.equal(thought.trim(), stream ? "." : "Hm.");
  }
}

async function openai_cancels_by_aborting() {
  await cancels(async () => {
    for await (const chunk of await openai.chat.completions.create({ ...short, max_tokens: 400, stream: true })) {
      if (chunk.choices[0].delta.content) break;
    }
  });
  await cancels(async () => {
    const controller = new AbortController();
    const asked = openai.chat.completions.create({ ...short, max_tokens: 400, stream: true }, { signal: controller.signal });
    await (await asked)[Symbol.asyncIterator]().next();
    controller.abort();
  });
}

async function openai_reports_errors() {
  const ask = (from, more) => () => from.chat.completions.create({ ...short, ...more });
  const missing = await refused(OpenAI.NotFoundError, "other.gguf", ask(openai, { model: "other.gguf" }));
  assert.equal(missing.code, "model_not_found");
  const long = await refused(OpenAI.BadRequestError, "context", ask(openai, { messages: [{ role: "user", content: TOO_LONG }] }));
  assert.equal(long.code, "context_length_exceeded");
  assert.equal((await refused(OpenAI.AuthenticationError, "key", ask(client(URL, "wrong"), {}))).code, "invalid_api_key");
}

async function openai_embeds() {
  const { data } = await openai.embeddings.create({ model: MODEL, input: ["But soft!", "We are the people."] });
  assert.ok(data.length === 2 && Math.abs(Math.hypot(...data[0].embedding) - 1) < 1e-3, JSON.stringify(data[0]).slice(0, 80));
}

const ollama = (host = URL, key = KEY) => new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
const options = { num_predict: 16, temperature: 0 };
const asked = { model: "bard-q8_0", messages: short.messages, options };

async function ollama_lists_and_streams_what_it_answers_whole() {
  assert.deepEqual((await ollama().list()).models.map((model) => model.model), ["bard-q8_0:latest"]);
  const whole = await ollama().chat(asked);
  let text = "";
  for await (const part of await ollama().chat({ ...asked, stream: true })) text += part.message.content;
  assert.ok(text && text === whole.message.content, text);
  isLine(JSON.parse((await ollama().chat({ ...asked, format: SCHEMA, options: { ...options, num_predict: 200 } })).message.content));
  assert.equal((await ollama().embed({ model: "bard-q8_0", input: ["a", "b"] })).embeddings.length, 2);
}

async function ollama_calls_a_tool_and_shows_thoughts() {
  const more = { model: "fake", tools: [tool], think: true };
  const messages = [{ role: "user", content: CALL }];
  const { message } = await ollama(SCRIPTED).chat({ ...more, messages });
  assert.equal(message.thinking.trim(), "Hm.");
  const result = weather(message.tool_calls[0].function.arguments);
  const answer = await ollama(SCRIPTED).chat({ ...more, messages: [...messages, message, { role: "tool", tool_name: "get_weather", content: result }] });
  assert.equal(answer.message.content, SAID);
}

async function ollama_cancels_by_aborting() {
  await cancels(async () => {
    const stream = await ollama().chat({ ...asked, stream: true, options: { num_predict: 400 } });
    await assert.rejects(async () => {
      for await (const _ of stream) stream.abort();
    }, { name: "AbortError" });
  });
}

async function ollama_reports_errors() {
  assert.equal((await refused(Error, "other", () => ollama().chat({ ...asked, model: "other" }))).status_code, 404);
  assert.equal((await refused(Error, "key", () => ollama(URL, "wrong").chat(asked))).status_code, 401);
  const long = [{ role: "user", content: TOO_LONG }];
  assert.equal((await refused(Error, "context", () => ollama().chat({ ...asked, messages: long }))).status_code, 400);
}

await run("openai and ollama for JavaScript", [
  openai_lists_models,
  openai_streams_what_it_answers_whole,
  openai_follows_a_schema,
  openai_must_call_a_tool,
  openai_runs_a_tool_and_answers,
  openai_cancels_by_aborting,
  openai_reports_errors,
  openai_embeds,
  ollama_lists_and_streams_what_it_answers_whole,
  ollama_calls_a_tool_and_shows_thoughts,
  ollama_cancels_by_aborting,
  ollama_reports_errors,
]);
