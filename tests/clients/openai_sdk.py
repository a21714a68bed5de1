"""openai-python, versions 2 (httpx) and 3 (httpx2)."""

import asyncio
import json

import openai
from checklist import ADD, ANYTHING, BASE_URL, BROKEN, BUSY, KEY, MODEL, OVERFLOW, SCHEMA, SEED, UNICODE
from checklist import answers_cut, check, equal, everywhere, expect, expect_upstream_closed, last_body
from checklist import properties_in_order, raises, run

CLIENT = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=60)


def ask(text: str, client: openai.OpenAI = CLIENT, **further: object):
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **further}
    return client.chat.completions.create(**body)


def text_of(chunks) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@everywhere
def whole_answer():
    answer = ask(ANYTHING)
    expect(answer.choices[0].message.content, answer)
    expect(answer.usage.completion_tokens > 0, answer.usage)
    expect(answer._request_id, "no request id")


@everywhere
def streamed_answer():
    chunks = list(ask(ANYTHING, stream=True))
    expect(text_of(chunks), "no content")
    expect(all(chunk.choices for chunk in chunks), "a usage chunk that nobody asked for")


@everywhere
def usage_comes_once_where_it_is_asked_for():
    chunks = list(ask(ANYTHING, stream=True, stream_options={"include_usage": True}))
    equal([bool(chunk.usage) for chunk in chunks], [False] * (len(chunks) - 1) + [True])
    equal(chunks[-1].choices, [])


@everywhere
async def asynchronous_client():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as client:
        answers = [await ask(ANYTHING, client), await ask(ANYTHING, client)]
        expect(all(answer.choices[0].message.content for answer in answers), answers)
        chunks = [chunk async for chunk in await ask(ANYTHING, client, stream=True)]
        expect(text_of(chunks), "no content")


@everywhere
def models():
    ids = [model.id for model in CLIENT.models.list()]
    expect(MODEL in ids and "auto" in ids, ids)
    equal(CLIENT.models.retrieve(MODEL).id, MODEL)  # asks for acme%2Fsmall
    raises(openai.NotFoundError, lambda: CLIENT.models.retrieve("no/such"))


@check
def unicode_and_numbers_pass():
    answer = ask(f"say {UNICODE}", seed=SEED, stop=None, user="")
    equal(answer.choices[0].message.content, UNICODE)
    body = json.loads(last_body())
    equal((body["seed"], body["user"], body["model"]), (SEED, "", "small-awq"))


@check
def deltas_come_in_order():
    words = " ".join(f"w{idx}" for idx in range(200)) + " " + UNICODE
    equal(text_of(ask(f"say {words}", stream=True)), words)


@check
def fields_of_no_api_reach_the_client():
    answer = ask("reason so")
    equal(answer.choices[0].message.model_extra["reasoning_content"], "hm")
    equal(answer.model_extra["timings"], {"predicted_ms": 1.5})
    deltas = [chunk.choices[0].delta for chunk in ask("reason so", stream=True)]
    expect(any((delta.model_extra or {}).get("reasoning_content") == "hm" for delta in deltas), deltas)


@check
def raw_response_has_the_routers_headers():
    raw = CLIENT.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "say hi"}], extra_headers={"x-request-id": "from-the-client"}
    )
    equal((raw.headers["x-cema-destination"], raw.headers["x-cema-model"]), (f"a/{MODEL}", MODEL))
    equal((raw.headers["x-cema-attempts"], raw.headers["x-request-id"]), ("1", "from-the-client"))
    equal(raw.parse()._request_id, "from-the-client")


@check
def tool_calls():
    whole = ask("call", tools=[ADD]).choices[0]
    equal((whole.finish_reason, whole.message.tool_calls[0].function.name), ("tool_calls", "add"))
    equal(json.loads(whole.message.tool_calls[0].function.arguments), {"a": 1, "b": 2})
    body = last_body()
    expect(body.index('"b"') < body.index('"a"'), "properties change their order")
    chunks = list(ask("call", tools=[ADD], stream=True))
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    equal({part.index for part in parts}, {0})
    equal([(part.id, part.function.name) for part in parts if part.id], [("call_1", "add")])
    equal("".join(part.function.arguments for part in parts), '{"a":1,"b":2}')
    history = [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": None, "tool_calls": [whole.message.tool_calls[0].model_dump()]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    equal(ask("", messages=history, tools=[ADD]).choices[0].message.content, "3")
    expect(json.loads(last_body())["messages"][1]["content"] is None, "null content is lost")


@check
def json_schema_keeps_its_order():
    schema = {"name": "answer", "strict": True, "schema": SCHEMA}
    ask('say {"zeta":"z"}', response_format={"type": "json_schema", "json_schema": schema})
    properties_in_order(last_body())


@check
def embeddings():
    for further in ({}, {"encoding_format": "float"}):  # the default is base64
        answer = CLIENT.embeddings.create(model="acme/embed", input=["a", UNICODE, "c"], **further)
        equal([part.embedding for part in answer.data], [[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]])
        expect(answer.usage.prompt_tokens > 0, answer.usage)
    # A name that cannot do what is asked.
    raises(openai.BadRequestError, lambda: CLIENT.embeddings.create(model=MODEL, input="a"))


@everywhere
def text_completion():
    answer = CLIENT.completions.create(model=MODEL, prompt="The sky is", max_tokens=4)
    expect(answer.choices[0].text and answer.usage.completion_tokens > 0, answer)
    parts = list(CLIENT.completions.create(model=MODEL, prompt="The sky is", max_tokens=4, stream=True))
    expect("".join(part.choices[0].text for part in parts if part.choices), parts)


@check
def wrong_key():
    stranger = openai.OpenAI(base_url=BASE_URL, api_key="sk-wrong", max_retries=0)
    error = raises(openai.AuthenticationError, lambda: ask("say hi", stranger))
    expect(error.request_id and "sk-wrong" not in str(error), error)


@check
def unknown_model():
    error = raises(openai.NotFoundError, lambda: ask("say hi", model="acme/none"))
    expect(error.code == "model_not_found" and "acme/none" in str(error), error)
    expect(error.request_id, "no request id")


@check
def context_overflow_is_told_verbatim():
    for stream in (False, True):
        error = raises(openai.BadRequestError, lambda: ask("overflow", stream=stream))
        expect(OVERFLOW in str(error), error)
        equal((error.code, error.param), ("context_length_exceeded", "messages"))


@check
def busy_endpoint_is_tried_again_when_it_said():
    patient = CLIENT.with_options(max_retries=2)
    equal(ask("busy", patient, model=BUSY).choices[0].message.content, "attempt 2")
    error = raises(openai.RateLimitError, lambda: ask("busy alone", model=BUSY))
    expect(error.response.headers.get("retry-after"), "no retry-after")


@check
def error_in_a_stream_is_an_exception():
    seen = []
    error = raises(openai.APIError, lambda: seen.extend(ask("break", model=BROKEN, stream=True)))
    equal(text_of(seen), "one two")
    expect("engine stopped" in str(error), error)


@check
def cut_stream_is_an_exception():
    seen = []
    raises(openai.APIError, lambda: seen.extend(ask("cut", model=BROKEN, stream=True)))
    equal(text_of(seen), "one two")


@check
def leaving_a_stream_stops_the_endpoint():
    before = answers_cut()
    stream = ask("endless", stream=True)
    next(iter(stream))
    stream.close()
    expect_upstream_closed(before)


@check
def timeout_stops_the_endpoint():
    before = answers_cut()
    raises(openai.APITimeoutError, lambda: ask("hang", CLIENT.with_options(timeout=0.3)))
    expect_upstream_closed(before)


@check
async def cancelling_stops_the_endpoint():
    before = answers_cut()
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as client:
        try:
            await asyncio.wait_for(ask("hang", client), 0.3)
        except asyncio.TimeoutError:
            await asyncio.to_thread(expect_upstream_closed, before)
            return
    raise AssertionError("an answer out of nothing")


run()
