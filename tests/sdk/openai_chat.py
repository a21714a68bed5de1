#!/usr/bin/env python3
"""The real OpenAI Python SDK against a running router: answers, streams, error classes, request ids.

    .cache/sdk/bin/python tests/sdk/openai_chat.py --base-url http://127.0.0.1:8080/v1

Prints one JSON line `{"passed": [...], "failed": {check: reason}}`; exits 0 if nothing failed, else 1.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable

import openai

MAX_TOKENS = 8
MESSAGES = [{"role": "user", "content": "Name one colour."}]
CHECKS: list[Callable[["Session"], None]] = []


class Session:
    """What every check gets."""

    def __init__(self, base_url: str, model: str) -> None:
        self.model = model
        self.base_url = base_url
        # No retries: a second try would hide a wrong first answer.
        self.sdk = openai.OpenAI(base_url=base_url, api_key="test", max_retries=0, timeout=120)

    def ask(self, **overrides: object) -> object:
        """A small chat completion with the raw response around it."""
        body = {"model": self.model, "messages": MESSAGES, "max_tokens": MAX_TOKENS, **overrides}
        return self.sdk.chat.completions.with_raw_response.create(**body)


def check(function: Callable[[Session], None]) -> Callable[[Session], None]:
    CHECKS.append(function)
    return function


def expect(condition: bool, what: object) -> None:
    """`assert` that also holds under `python -O`."""
    if not condition:
        raise AssertionError(what)


def expect_error(kind: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    """The error that `call` raises; it must be of `kind`, carry a message and a request id."""
    try:
        call()
    except kind as error:
        expect(isinstance(error.body, dict) and bool(error.body.get("message")), f"no error object: {error.body}")
        expect(bool(error.request_id), "no x-request-id on an error")
        return error
    raise AssertionError(f"no {kind.__name__}")


@check
def models_list(session: Session) -> None:
    ids = [model.id for model in session.sdk.models.list()]
    expect(session.model in ids, f"{session.model} is not among {ids}")
    expect(len(ids) == len(set(ids)), f"a model is listed twice: {ids}")


@check
def model_retrieve(session: Session) -> None:
    model = session.sdk.models.retrieve(session.model)
    expect(model.id == session.model and model.object == "model", model)


@check
def chat_whole(session: Session) -> None:
    raw = session.ask()
    completion = raw.parse()
    expect(bool(completion.choices[0].message.content), completion)
    expect(completion.choices[0].finish_reason in ("stop", "length"), completion.choices[0].finish_reason)
    expect(0 < completion.usage.completion_tokens <= MAX_TOKENS, completion.usage)
    expect(bool(completion._request_id), "no x-request-id")
    expect(completion._request_id == raw.headers["x-request-id"], "two request ids")


@check
def routing_headers(session: Session) -> None:
    headers = session.ask(extra_headers={"x-cema-debug": "true"}).headers
    names = ("destination", "model", "batch", "window-ms", "attempts", "policy", "predicted")
    missing = [name for name in names if not headers.get(f"x-cema-{name}")]
    expect(not missing, f"missing headers: {missing}")
    expect("/" in headers["x-cema-destination"], headers["x-cema-destination"])
    pairs = dict(pair.split("=") for pair in headers["x-cema-predicted"].split(";"))
    expect(set(pairs) == {"quality", "usd", "joules", "seconds"}, pairs)
    expect(all(float(value) >= 0 for value in pairs.values()), pairs)


@check
def request_id_of_the_client_is_kept(session: Session) -> None:
    raw = session.ask(extra_headers={"x-request-id": "sdk-check-1"})
    expect(raw.headers["x-request-id"] == "sdk-check-1", raw.headers["x-request-id"])


@check
def chat_stream_with_usage(session: Session) -> None:
    raw = session.ask(stream=True, stream_options={"include_usage": True})
    expect(raw.headers["content-type"].startswith("text/event-stream"), raw.headers["content-type"])
    expect(bool(raw.headers.get("x-request-id")), "no x-request-id on a stream")
    chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect(bool(text), "no content")
    expect(len([c for c in chunks if c.usage]) == 1, "usage must come once")
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0, chunks[-1])
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    expect(len(reasons) == 1, f"finish reasons: {reasons}")


@check
def chat_stream_without_usage(session: Session) -> None:
    chunks = list(session.ask(stream=True).parse())
    expect(bool(chunks), "no chunks")
    expect(all(chunk.choices for chunk in chunks), "a usage chunk that nobody asked for")


@check
def stream_and_whole_agree(session: Session) -> None:
    whole = session.ask(temperature=0, seed=1).parse()
    chunks = list(session.ask(temperature=0, seed=1, stream=True).parse())
    kinds = (whole.object, chunks[0].object)
    expect(kinds == ("chat.completion", "chat.completion.chunk"), kinds)


@check
def unknown_model(session: Session) -> None:
    error = expect_error(openai.NotFoundError, lambda: session.ask(model="no-such-model"))
    expect(error.code == "model_not_found", error.code)
    expect("no-such-model" in error.message, error.message)


@check
def unknown_model_streamed(session: Session) -> None:
    error = expect_error(openai.NotFoundError, lambda: session.ask(model="no-such-model", stream=True))
    expect(error.code == "model_not_found", error.code)


@check
def no_messages(session: Session) -> None:
    error = expect_error(openai.BadRequestError, lambda: session.ask(messages=[]))
    expect(error.type == "invalid_request_error", error.type)


@check
def body_is_not_json(session: Session) -> None:
    url = session.base_url.rstrip("/") + "/chat/completions"
    post = lambda: session.sdk.post(url, content=b"{not json", cast_to=object, options={"headers": {"content-type": "application/json"}})  # noqa: E731
    error = expect_error(openai.BadRequestError, post)
    expect(error.type == "invalid_request_error", error.type)


@check
def wrong_path(session: Session) -> None:
    url = session.base_url.rstrip("/") + "/no/such/path"
    expect_error(openai.NotFoundError, lambda: session.sdk.get(url, cast_to=object))


@check
def good_request_after_bad_ones(session: Session) -> None:
    expect(bool(session.ask().parse().choices), "no choices")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", required=True, help="with /v1")
    parser.add_argument("--model", default="auto")
    args = parser.parse_args()
    session = Session(args.base_url, args.model)
    passed: list[str] = []
    failed: dict[str, str] = {}
    for function in CHECKS:
        try:
            function(session)
            passed.append(function.__name__)
        except Exception as error:  # every check reports; one that crashes must not hide the others
            failed[function.__name__] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    print(json.dumps({"passed": passed, "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
