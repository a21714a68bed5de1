// openai-node 7.
import { strict as assert } from "node:assert";
import { ANYTHING, BASE_URL, BROKEN, BUSY, KEY, MODEL, OVERFLOW, SCHEMA, UNICODE } from "./checklist.mjs";
import { answersCut, check, everywhere, expectUpstreamClosed, lastBody, load, run, thrown } from "./checklist.mjs";

const { default: OpenAI } = load("openai");
const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0 });
const TOOLS = [{ type: "function", function: { name: "add", parameters: { type: "object", properties: {} } } }];

const ask = (text, further = {}, options = {}, by = client) =>
  by.chat.completions.create(
    { model: MODEL, messages: [{ role: "user", content: text }], max_tokens: 8, ...further },
    options,
  );

const collect = async (stream, into = []) => {
  for await (const chunk of await stream) into.push(chunk);
  return into;
};
const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

everywhere("whole answer", async () => {
  const answer = await ask(ANYTHING);
  assert(answer.choices[0].message.content && answer.usage.completion_tokens > 0 && answer._request_id);
});

everywhere("streamed answer", async () => {
  const chunks = await collect(ask(ANYTHING, { stream: true }));
  assert(textOf(chunks));
  assert(chunks.every((chunk) => chunk.choices.length), "a usage chunk that nobody asked for");
});

everywhere("usage comes once where it is asked for", async () => {
  const chunks = await collect(ask(ANYTHING, { stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.filter((chunk) => chunk.usage).length, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
});

everywhere("models", async () => {
  const ids = (await client.models.list()).data.map((model) => model.id);
  assert(ids.includes(MODEL) && ids.includes("auto"), ids);
  assert.equal((await client.models.retrieve(MODEL)).id, MODEL);
  await thrown(OpenAI.NotFoundError, () => client.models.retrieve("no/such"));
});

check("deltas come in order", async () => {
  const words = `${Array.from({ length: 200 }, (_, idx) => `w${idx}`).join(" ")} ${UNICODE}`;
  assert.equal(textOf(await collect(ask(`say ${words}`, { stream: true }))), words);
  assert.equal((await ask(`say ${words}`)).choices[0].message.content, words);
});

check("fields of no API reach the client", async () => {
  const answer = await ask("reason so");
  assert.equal(answer.choices[0].message.reasoning_content, "hm");
  assert.deepEqual(answer.timings, { predicted_ms: 1.5 });
});

check("raw response has the router's headers", async () => {
  const headers = { "x-request-id": "from-the-client" };
  const { data, response, request_id } = await ask("say hi", {}, { headers }).withResponse();
  assert.equal(data.choices[0].message.content, "hi");
  assert.equal(request_id, "from-the-client");
  assert.equal(response.headers.get("x-cema-destination"), `a/${MODEL}`);
  assert.equal(response.headers.get("x-cema-attempts"), "1");
});

check("tool calls", async () => {
  const whole = (await ask("call", { tools: TOOLS })).choices[0];
  assert.deepEqual(JSON.parse(whole.message.tool_calls[0].function.arguments), { a: 1, b: 2 });
  const done = await client.chat.completions
    .stream({ model: MODEL, messages: [{ role: "user", content: "call" }], tools: TOOLS })
    .finalChatCompletion();
  const call = done.choices[0].message.tool_calls[0];
  assert.deepEqual([call.id, call.function.name, call.function.arguments], ["call_1", "add", '{"a":1,"b":2}']);
});

check("JSON schema keeps its order", async () => {
  const json_schema = { name: "answer", strict: true, schema: SCHEMA };
  await ask('say {"zeta":"z"}', { response_format: { type: "json_schema", json_schema } });
  const body = await lastBody();
  assert(body.indexOf('"zeta"') < body.indexOf('"alpha"'), body);
});

check("embeddings", async () => {
  for (const further of [{}, { encoding_format: "float" }]) {
    const answer = await client.embeddings.create({ model: "acme/embed", input: ["a", UNICODE], ...further });
    assert.deepEqual(answer.data.map((part) => [...part.embedding]), [[0, 0.5], [1, 0.5]]);
  }
});

everywhere("text completion", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "The sky is", max_tokens: 4 });
  assert(answer.choices[0].text && answer.usage.completion_tokens > 0);
});

check("errors have their classes", async () => {
  const stranger = new OpenAI({ baseURL: BASE_URL, apiKey: "sk-wrong", maxRetries: 0 });
  const wrongKey = await thrown(OpenAI.AuthenticationError, () => ask("say hi", {}, {}, stranger));
  assert(wrongKey.requestID && !wrongKey.message.includes("sk-wrong"), wrongKey.message);
  const unknown = await thrown(OpenAI.NotFoundError, () => ask("say hi", { model: "acme/none" }));
  assert.equal(unknown.code, "model_not_found");
  assert(unknown.message.includes("acme/none"), unknown.message);
  for (const stream of [false, true]) {
    const overflow = await thrown(OpenAI.BadRequestError, () => ask("overflow", { stream }));
    assert.equal(overflow.code, "context_length_exceeded");
    assert(overflow.message.includes(OVERFLOW), overflow.message);
  }
});

check("busy endpoint is tried again when it said", async () => {
  const answer = await ask("busy", { model: BUSY }, { maxRetries: 2 });
  assert.equal(answer.choices[0].message.content, "attempt 2");
  const error = await thrown(OpenAI.RateLimitError, () => ask("busy alone", { model: BUSY }));
  assert(error.headers.get("retry-after"));
});

check("broken streams throw", async () => {
  for (const scenario of ["break", "cut"]) {
    const seen = [];
    await thrown(Error, () => collect(ask(scenario, { model: BROKEN, stream: true }), seen));
    assert.equal(textOf(seen), "one two");
  }
});

check("leaving a stream stops the endpoint", async () => {
  const before = await answersCut();
  for await (const chunk of await ask("endless", { stream: true })) {
    assert(chunk);
    break;
  }
  await expectUpstreamClosed(before);
});

check("timeout and abort stop the endpoint", async () => {
  let before = await answersCut();
  await thrown(OpenAI.APIConnectionTimeoutError, () => ask("hang", {}, { timeout: 300 }));
  await expectUpstreamClosed(before);
  before = await answersCut();
  await thrown(OpenAI.APIUserAbortError, () => ask("hang", {}, { signal: AbortSignal.timeout(300) }));
  await expectUpstreamClosed(before);
});

await run();
