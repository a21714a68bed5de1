"""LlamaIndex: OpenAILike over openai-python 2."""

import httpx
import openai
from checklist import ANYTHING, BASE_URL, BROKEN, BUSY, KEY, MODEL, OVERFLOW, UNICODE
from checklist import check, equal, everywhere, expect, raises, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def chat(**further: object) -> OpenAILike:
    options = {"model": MODEL, "api_base": BASE_URL, "api_key": KEY, "is_chat_model": True, "max_tokens": 8}
    return OpenAILike(**{**options, "max_retries": 0, "is_function_calling_model": True, **further})


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text)]


@everywhere
def whole_answer():
    expect(chat().chat(user(ANYTHING)).message.content, "no content")


@everywhere
def streamed_answer():
    expect("".join(part.delta or "" for part in chat().stream_chat(user(ANYTHING))), "no content")


@everywhere
async def asynchronous_stream():
    parts = [part.delta or "" async for part in await chat().astream_chat(user(ANYTHING))]
    expect("".join(parts), "no content")


@check
def deltas_come_in_order():
    equal("".join(part.delta or "" for part in chat().stream_chat(user(f"say {UNICODE}"))), UNICODE)


@check
def tool_calls():
    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        return a + b

    answer = chat().predict_and_call([FunctionTool.from_defaults(add)], "call")
    equal(answer.response, "3")


@check
def errors_have_their_classes():
    raises(openai.AuthenticationError, lambda: chat(api_key="sk-wrong").chat(user("say hi")))
    raises(openai.NotFoundError, lambda: chat(model="acme/none").chat(user("say hi")))
    expect(OVERFLOW in str(raises(openai.BadRequestError, lambda: chat().chat(user("overflow")))), "not verbatim")


@check
def busy_endpoint_is_tried_again():
    equal(chat(model=BUSY, max_retries=2).chat(user("busy")).message.content, "attempt 2")


@check
def broken_streams_are_exceptions():
    for scenario in ("break", "cut"):
        raises((openai.APIError, httpx.RemoteProtocolError), lambda: list(chat(model=BROKEN).stream_chat(user(scenario))))


run()
