"""The application side: real OpenAI SDK calls against the router, with everything a table wants to show."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import openai

from questions import Question

TIMEOUT_S = 240.0
DEBUG = {"x-cema-debug": "true"}


@dataclass
class Outcome:
    """What one request came to. `headers` are the router's; times are the client's own clock."""

    question: Question
    streamed: bool
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    completion_tokens: int = 0
    ttft_s: float | None = None
    total_s: float = 0.0
    error: str | None = None

    @property
    def score(self) -> float:
        return self.question.score(self.text)

    def header(self, name: str) -> str:
        return self.headers.get("x-cema-" + name, "-")

    @property
    def served_s(self) -> float:
        """Time from leaving the router's window to the end of the answer: what the router predicts."""
        return self.total_s - float(self.headers.get("x-cema-window-ms", 0)) / 1e3

    @property
    def predicted(self) -> dict[str, float]:
        """`x-cema-predicted: quality=0.61;usd=0.00012;joules=35.2;seconds=1.84` as numbers."""
        pairs = (pair.split("=", 1) for pair in self.headers.get("x-cema-predicted", "").split(";") if "=" in pair)
        return {name.strip(): float(value) for name, value in pairs}


class Client:
    """Asks the router through the SDK. The SDK's own retries are off: what is shown is what the router did."""

    def __init__(self, base_url: str, on_done: Callable[[Outcome], None], on_content: Callable[[Outcome], None]) -> None:
        self._sdk = openai.AsyncOpenAI(base_url=base_url, api_key="demo", max_retries=0, timeout=TIMEOUT_S)
        self._on_done = on_done
        self._on_content = on_content

    async def ask_at_once(self, questions: list[Question]) -> list[Outcome]:
        """All together, every second one streamed."""
        return list(await asyncio.gather(*(self.ask(q, streamed=i % 2 == 1) for i, q in enumerate(questions))))

    async def ask_one_by_one(self, questions: list[Question]) -> list[Outcome]:
        """Each after the one before has been answered."""
        return [await self.ask(question, streamed=i % 2 == 1) for i, question in enumerate(questions)]

    async def ask(self, question: Question, *, streamed: bool) -> Outcome:
        """One request; a failure is an outcome, not an exception."""
        outcome = Outcome(question, streamed)
        started = time.monotonic()
        try:
            await (self._streamed(outcome, started) if streamed else self._whole(outcome))
        except openai.APIStatusError as error:
            outcome.headers = dict(error.response.headers)
            outcome.error = f"{type(error).__name__}: {error.message}"
        except openai.APIError as error:
            outcome.error = f"{type(error).__name__}: {error.message}"
        outcome.total_s = time.monotonic() - started
        self._on_done(outcome)
        return outcome

    async def _whole(self, outcome: Outcome) -> None:
        body = outcome.question.body("auto")
        raw = await self._sdk.chat.completions.with_raw_response.create(**body, extra_headers=DEBUG)
        outcome.headers = dict(raw.headers)
        completion = raw.parse()
        outcome.text = completion.choices[0].message.content or ""
        outcome.completion_tokens = completion.usage.completion_tokens if completion.usage else 0

    async def _streamed(self, outcome: Outcome, started: float) -> None:
        body = outcome.question.body("auto") | {"stream": True, "stream_options": {"include_usage": True}}
        raw = await self._sdk.chat.completions.with_raw_response.create(**body, extra_headers=DEBUG)
        outcome.headers = dict(raw.headers)
        async for chunk in raw.parse():
            if chunk.usage:
                outcome.completion_tokens = chunk.usage.completion_tokens
            if chunk.choices and chunk.choices[0].delta.content:
                if outcome.ttft_s is None:
                    outcome.ttft_s = time.monotonic() - started
                    self._on_content(outcome)
                outcome.text += chunk.choices[0].delta.content
