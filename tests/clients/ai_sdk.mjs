// Vercel AI SDK 7 with @ai-sdk/openai-compatible.
import { strict as assert } from "node:assert";
import { ANYTHING, BASE_URL, BROKEN, BUSY, KEY, MODEL, OVERFLOW, UNICODE } from "./checklist.mjs";
import { answersCut, check, everywhere, expectUpstreamClosed, lastBody, load, run, thrown } from "./checklist.mjs";

const { APICallError, Output, generateText, stepCountIs, streamText, tool } = load("ai");
const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const { z } = load("zod");

const options = { name: "cema", baseURL: BASE_URL, includeUsage: true, supportsStructuredOutputs: true };
const provider = createOpenAICompatible({ ...options, apiKey: KEY });

const asked = (prompt, further = {}) => ({
  model: provider(MODEL),
  prompt,
  maxOutputTokens: 8,
  maxRetries: 0,
  onError: () => {},
  ...further,
});

const add = (calls = []) =>
  tool({
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: ({ a, b }) => {
      calls.push([a, b]);
      return a + b;
    },
  });

everywhere("whole answer", async () => {
  const answer = await generateText(asked(ANYTHING));
  assert(answer.text && answer.usage.outputTokens > 0, answer.text);
});

everywhere("streamed answer", async () => {
  const answer = streamText(asked(ANYTHING));
  let text = "";
  for await (const delta of answer.textStream) text += delta;
  assert(text);
  assert((await answer.usage).outputTokens > 0);
});

check("deltas come in order", async () => {
  const answer = streamText(asked(`say ${UNICODE}`));
  assert.equal(await answer.text, UNICODE);
  assert.equal((await answer.usage).outputTokens, 3);
});

check("reasoning reaches the client", async () => {
  assert.equal((await generateText(asked("reason so"))).reasoningText, "hm");
  assert.equal(await streamText(asked("reason so")).reasoningText, "hm");
});

check("tool calls", async () => {
  for (const ask of [generateText, streamText]) {
    const calls = [];
    const answer = await ask(asked("call", { tools: { add: add(calls) }, stopWhen: stepCountIs(2) }));
    assert.equal(await answer.text, "3");
    assert.deepEqual(calls, [[1, 2]]);
  }
});

check("JSON schema keeps its order", async () => {
  const schema = z.object({ zeta: z.string(), alpha: z.string() });
  const answer = await generateText(asked('say {"zeta":"z","alpha":"a"}', { output: Output.object({ schema }) }));
  assert.deepEqual(answer.output, { zeta: "z", alpha: "a" });
  const body = await lastBody();
  assert(body.includes('"json_schema"') && body.indexOf('"zeta":{') < body.indexOf('"alpha":{'), body);
});

check("errors have their status", async () => {
  const stranger = createOpenAICompatible({ ...options, apiKey: "sk-wrong" });
  for (const [further, text, status, words] of [
    [{ model: stranger(MODEL) }, "say hi", 401, "key"],
    [{ model: provider("acme/none") }, "say hi", 404, "acme/none"],
    [{}, "overflow", 400, OVERFLOW],
  ]) {
    const error = await thrown(APICallError, () => generateText(asked(text, further)));
    assert.equal(error.statusCode, status);
    assert(error.message.includes(words) && error.responseHeaders["x-request-id"], error.message);
  }
});

check("busy endpoint is tried again", async () => {
  assert.equal((await generateText(asked("busy", { model: provider(BUSY), maxRetries: 2 }))).text, "attempt 2");
});

check("broken streams are errors", async () => {
  for (const scenario of ["break", "cut"]) {
    const errors = [];
    let text = "";
    try {
      for await (const part of streamText(asked(scenario, { model: provider(BROKEN) })).fullStream) {
        if (part.type === "text-delta") text += part.text;
        if (part.type === "error") errors.push(part.error);
      }
    } catch (error) {
      errors.push(error);
    }
    assert.equal(text, "one two", scenario);
    assert(errors.length, `${scenario} ends like a whole answer`);
  }
});

check("abort stops the endpoint", async () => {
  const before = await answersCut();
  const leaving = new AbortController();
  for await (const part of streamText(asked("endless", { abortSignal: leaving.signal })).fullStream) {
    if (part.type === "text-delta") leaving.abort();
  }
  await expectUpstreamClosed(before);
});

await run();
