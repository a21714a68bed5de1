"""Pydantic AI: an agent over OpenAIChatModel. Each run is one or more chat completions."""

from checklist import ANYTHING, BASE_URL, KEY, MODEL, OVERFLOW, UNICODE
from checklist import check, equal, everywhere, expect, last_body, properties_in_order, raises, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(model: str = MODEL, key: str = KEY, **further: object) -> Agent:
    provider = OpenAIProvider(base_url=BASE_URL, api_key=key)
    return Agent(OpenAIChatModel(model, provider=provider), model_settings={"max_tokens": 8}, **further)


@everywhere
def whole_answer():
    answer = agent().run_sync(ANYTHING)
    expect(answer.output and answer.usage.output_tokens > 0, answer)


@everywhere
async def streamed_answer():
    async with agent().run_stream(ANYTHING) as answer:
        expect("".join([part async for part in answer.stream_text(delta=True)]), "no content")


@check
async def deltas_come_in_order():
    async with agent().run_stream(f"say {UNICODE}") as answer:
        equal("".join([part async for part in answer.stream_text(delta=True)]), UNICODE)


@check
def tool_calls():
    counting = agent()

    @counting.tool_plain
    def add(a: int, b: int) -> int:
        """The sum of two numbers."""
        return a + b

    equal(counting.run_sync("call").output, "3")


@check
def json_schema_keeps_its_order():
    class Answer(BaseModel):
        zeta: str
        alpha: str

    found = agent(output_type=NativeOutput(Answer)).run_sync('say {"zeta":"z","alpha":"a"}').output
    equal((found.zeta, found.alpha), ("z", "a"))
    properties_in_order(last_body())


@check
def errors_have_their_status():
    for client, text, status in (
        (agent(key="sk-wrong"), "say hi", 401),
        (agent(model="acme/none"), "say hi", 404),
        (agent(), "overflow", 400),
    ):
        equal(raises(ModelHTTPError, lambda: client.run_sync(text)).status_code, status)
    expect(OVERFLOW in str(raises(ModelHTTPError, lambda: agent().run_sync("overflow"))), "not verbatim")


run()
