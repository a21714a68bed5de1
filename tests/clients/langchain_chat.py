"""langchain-openai: ChatOpenAI with a base URL."""

import openai
from checklist import ADD, ANYTHING, BASE_URL, BROKEN, BUSY, KEY, MODEL, OVERFLOW, SCHEMA, UNICODE
from checklist import check, equal, everywhere, expect, last_body, properties_in_order, raises, run
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings


def chat(**further: object) -> ChatOpenAI:
    options = {"model": MODEL, "base_url": BASE_URL, "api_key": KEY, "max_retries": 0, "max_tokens": 8, **further}
    return ChatOpenAI(**options)


@everywhere
def whole_answer():
    answer = chat().invoke(ANYTHING)
    expect(answer.content and answer.usage_metadata["output_tokens"] > 0, answer)


@everywhere
def streamed_answer():
    expect("".join(chunk.content for chunk in chat().stream(ANYTHING)), "no content")


@everywhere
async def asynchronous_stream():
    expect("".join([chunk.content async for chunk in chat().astream(ANYTHING)]), "no content")


@check
def deltas_come_in_order():
    equal("".join(chunk.content for chunk in chat().stream(f"say {UNICODE}")), UNICODE)


@check
def usage_where_it_is_asked_for():
    chunks = list(chat(stream_usage=True).stream("say a b"))
    equal([chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata], [3])


@check
def tool_calls():
    tools = chat().bind_tools([ADD])
    equal([(call["name"], call["args"]) for call in tools.invoke("call").tool_calls], [("add", {"a": 1, "b": 2})])
    whole = None
    for chunk in tools.stream("call"):
        whole = chunk if whole is None else whole + chunk
    equal([(call["name"], call["args"], call["id"]) for call in whole.tool_calls], [("add", {"a": 1, "b": 2}, "call_1")])


@check
def json_schema_keeps_its_order():
    schema = {"title": "answer", "description": "An answer.", **SCHEMA}
    found = chat().with_structured_output(schema, method="json_schema").invoke('say {"zeta":"z","alpha":"a"}')
    equal(found, {"zeta": "z", "alpha": "a"})
    properties_in_order(last_body())


@check
def embeddings():
    # By default it cuts texts into tokens itself, by OpenAI's vocabulary, and sends those.
    options = {"base_url": BASE_URL, "api_key": KEY, "check_embedding_ctx_length": False}
    found = OpenAIEmbeddings(model="acme/embed", **options).embed_documents(["a", UNICODE])
    equal(found, [[0.0, 0.5], [1.0, 0.5]])


@everywhere
def text_completion():
    expect(OpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, max_tokens=4).invoke("The sky is"), "no text")


@check
def errors_have_their_classes():
    raises(openai.AuthenticationError, lambda: chat(api_key="sk-wrong").invoke("say hi"))
    raises(openai.NotFoundError, lambda: chat(model="acme/none").invoke("say hi"))
    overflow = raises(openai.BadRequestError, lambda: chat().invoke("overflow"))
    expect(OVERFLOW in str(overflow) and overflow.body["code"] == "context_length_exceeded", overflow)


@check
def busy_endpoint_is_tried_again():
    equal(chat(model=BUSY, max_retries=2).invoke("busy").content, "attempt 2")


@check
def broken_streams_are_exceptions():
    for scenario in ("break", "cut"):
        raises(openai.APIError, lambda: list(chat(model=BROKEN).stream(scenario)))


run()
