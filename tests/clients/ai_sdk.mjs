// The AI SDK with its providers for OpenAI's (chats and responses), OpenAI-compatible and Anthropic's APIs; run by
// .ci/clients in target/node.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { CALL, FAKE, KEY, MODEL, SAID, SCRIPTED, TOO_LONG, URL, cancels, isLine, refused, run, weather } from "./checks.mjs";

// Warns of settings that a provider does not have.
globalThis.AI_SDK_LOG_WARNINGS = false;
const short = { prompt: "Speak, Romeo.", maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
const line = z.object({ speaker: z.enum(["ROMEO", "JULIET"]), scene: z.number().int().min(1).max(9) });
const inputSchema = z.object({ town: z.string().max(8), days: z.number().int().min(1).max(9) });
const get_weather = tool({ description: "The weather in a town", inputSchema, execute: weather });

/** The same model by each API. */
function models(url = URL, name = MODEL, apiKey = KEY) {
  const baseURL = `${url}/v1`;
  const compatible = { name: "bramble", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true };
  return {
    compatible: createOpenAICompatible(compatible)(name),
    chat: createOpenAI({ baseURL, apiKey }).chat(name),
    responses: createOpenAI({ baseURL, apiKey }).responses(name),
    anthropic: createAnthropic({ baseURL, apiKey })(name),
  };
}

const each = async (ask, ...where) => {
  for (const [api, model] of Object.entries(models(...where))) {
    try {
      await ask(model, api);
    } catch (error) {
      throw new Error(`${api}: ${error.message}`, { cause: error });
    }
  }
};

async function streams_what_it_answers_whole() {
  await each(async (model) => {
    const whole = await generateText({ model, ...short });
    const stream = streamText({ model, ...short });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.ok(text && text === whole.text, `${text} / ${whole.text}`);
    assert.equal((await stream.usage).outputTokens, 16);
    assert.equal(await stream.finishReason, "length");
  });
}

async function follows_a_schema() {
  await each(async (model) => {
    isLine((await generateText({ model, ...short, maxOutputTokens: 300, output: Output.object({ schema: line }) })).output);
    const stream = streamText({ model, ...short, maxOutputTokens: 300, output: Output.object({ schema: line }) });
    let last;
    for await (const part of stream.partialOutputStream) last = part;
    isLine(last);
  });
}

async function must_call_a_tool() {
  await each(async (model) => {
    const answer = await generateText({ model, ...short, maxOutputTokens: 300, tools: { get_weather }, toolChoice: "required" });
    assert.ok(answer.toolResults[0].output.startsWith("Rain in "), JSON.stringify(answer.toolResults));
    assert.equal(answer.finishReason, "tool-calls");
  });
}

async function runs_a_tool_answers_and_shows_thoughts() {
  await each(
    async (model, api) => {
      const asked = { model, prompt: CALL, tools: { get_weather }, stopWhen: isStepCount(3), maxRetries: 0 };
      const whole = await generateText(asked);
      const stream = streamText(asked);
      await stream.consumeStream();
      for (const [text, steps] of [[whole.text, whole.steps], [await stream.text, await stream.steps]]) {
        assert.equal(text, SAID);
        assert.equal(steps.length, 2);
        // The provider for OpenAI knows no thoughts in chats, and those of responses only as summaries.
        if (api === "compatible" || api === "anthropic") assert.equal(steps[0].reasoningText?.trim(), "Hm.");
      }
    },
    SCRIPTED,
    FAKE,
  );
}

async function cancels_by_aborting() {
  await each(async (model) => {
    await cancels(async () => {
      const controller = new AbortController();
      const stream = streamText({ model, ...short, maxOutputTokens: 400, abortSignal: controller.signal, onError() {} });
      for await (const _ of stream.textStream) {
        controller.abort();
        break;
      }
    });
  });
}

async function reports_errors() {
  const ask = (model, more = {}) => () => generateText({ model, ...short, ...more });
  await each(async (model) => assert.equal((await refused(APICallError, "other.gguf", ask(model))).statusCode, 404), URL, "other.gguf");
  await each(async (model) => assert.equal((await refused(APICallError, "key", ask(model))).statusCode, 401), URL, MODEL, "wrong");
  await each(async (model) => assert.equal((await refused(APICallError, "context", ask(model, { prompt: TOO_LONG }))).statusCode, 400));
}

async function embeds() {
  const model = createOpenAICompatible({ name: "bramble", baseURL: `${URL}/v1`, apiKey: KEY }).embeddingModel(MODEL);
  const { embeddings } = await embedMany({ model, values: ["But soft!", "We are the people."], maxRetries: 0 });
  assert.ok(embeddings.length === 2 && embeddings[0].length === embeddings[1].length);
}

await run("AI SDK", [
  streams_what_it_answers_whole,
  follows_a_schema,
  must_call_a_tool,
  runs_a_tool_answers_and_shows_thoughts,
  cancels_by_aborting,
  reports_errors,
  embeds,
]);
