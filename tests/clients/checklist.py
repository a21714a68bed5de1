"""What the client scripts share: where the router is, checks, and what the scripted endpoint has seen.

A script runs under tests/sockets/real_clients.rs, which explains the environment. `@check` functions need the scripted
endpoint (tests/sockets/support/scripted.rs), `@everywhere` functions any server. A check may be a coroutine.
"""

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable

BASE_URL = os.environ["CEMA_BASE_URL"]
MODEL = os.environ["CEMA_MODEL"]
KEY = os.environ["CEMA_KEY"]
OBSERVER = os.environ.get("CEMA_OBSERVER", "")

# Models with an endpoint of their own: what fails there must not keep other checks from being served.
BUSY = "acme/busy"
BROKEN = "acme/broken"

ANYTHING = "Name one colour."  # for servers that are not scripted
UNICODE = "日本語 🙂 é"
OVERFLOW = "This model's maximum context length is 1024 tokens"
SEED = 18446744073709551557  # beyond 2^63
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}},
            "required": ["b", "a"],
        },
    },
}
# Not in alphabetical order: the order of properties steers a model.
SCHEMA = {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "string"}}, "required": ["zeta"]}

_checks: list[tuple[Callable, bool]] = []


def check(function: Callable) -> Callable:
    _checks.append((function, False))
    return function


def everywhere(function: Callable) -> Callable:
    _checks.append((function, True))
    return function


def expect(condition: object, what: object) -> None:
    if not condition:
        raise AssertionError(what)


def equal(found: object, wanted: object) -> None:
    expect(found == wanted, f"found {found!r}, wanted {wanted!r}")


def raises(kind: type[Exception] | tuple[type[Exception], ...], call: Callable[[], object]) -> Exception:
    """The exception of `kind` (or one of several) that `call` ends with."""
    try:
        outcome = call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind} but {outcome!r}")


def last_body() -> str:
    """The last request that the endpoint got, as it came."""
    with urllib.request.urlopen(f"{OBSERVER}/last_body", timeout=10) as answer:
        return answer.read().decode()


def answers_cut() -> int:
    with urllib.request.urlopen(f"{OBSERVER}/answers_cut", timeout=10) as answer:
        return int(answer.read())


def expect_upstream_closed(before: int) -> None:
    """Within a second the router has closed one more connection than the `before` ones to the endpoint."""
    deadline = time.monotonic() + 1
    while answers_cut() <= before:
        expect(time.monotonic() < deadline, "the endpoint still generates for a client that has left")
        time.sleep(0.01)


def properties_in_order(body: str) -> None:
    expect(body.index('"zeta"') < body.index('"alpha"'), f"properties change their order: {body}")


def run() -> None:
    """Runs the checks that this endpoint can serve and ends the process."""
    failed = 0
    for function, is_for_all in _checks:
        if not OBSERVER and not is_for_all:
            continue
        try:
            outcome = function()
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
            print(f"ok {function.__name__}", flush=True)
        except Exception as error:  # every check reports; one that fails must not hide the others
            failed += 1
            print(f"FAILED {function.__name__}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
    sys.exit(bool(failed))
