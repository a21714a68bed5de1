#!/usr/bin/env python3
"""CEMA-Router in one command: three real llama.cpp servers, the router, and an OpenAI SDK that knows nothing of either.

`make demo` runs this after `make setup`. On a terminal it stays up at the end until Ctrl-C; otherwise it exits, 0 if
every request was answered.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True

import fleet  # noqa: E402
import measure  # noqa: E402
import questions  # noqa: E402
import report  # noqa: E402
import router  # noqa: E402
from children import Children  # noqa: E402
from client import Client, Outcome  # noqa: E402
from fleet import ROOT, DemoError, Server  # noqa: E402

WORK = ROOT / ".cache/demo"
AT_ONCE = 24
VICTIM = "medium"
COMPARED_POLICIES = ("memetic", "greedy", "round_robin")


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    (WORK / "logs").mkdir(parents=True, exist_ok=True)
    try:
        with Children() as children:
            return run(args, children)
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; every process that the demo started has ended.")
        return 130


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-one", action="store_true", help=f"SIGKILL the server `{VICTIM}` while the {AT_ONCE} are in flight")
    parser.add_argument("--exit", action="store_true", help="exit at the end on a terminal too")
    parser.add_argument("--binary", type=Path, help="use this cema-router and build nothing")
    return parser.parse_args()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run(args: argparse.Namespace, children: Children) -> int:
    step = _Steps()
    step("Building the release binary (minutes the first time)")
    binary = args.binary.resolve() if args.binary else router.build()
    step("Starting three llama.cpp servers, each with SmolLM2-135M-Instruct")
    servers = fleet.start_fleet(children, WORK / "logs")
    step("Measuring this fleet (about three minutes the first time, then cached)")
    profile = WORK / "profile.jsonl"
    speeds = measure.measured(servers, questions.load("profile"), profile, WORK / "speeds.json")
    print("  All three run the same 135M model: quality hardly differs between them, and is low; speed, price and power do.")
    step("Filling the quality store and starting the router")
    router.fill_store(binary, profile, WORK / "quality")
    running = router.start(children, binary, servers, speeds, WORK)

    asked = questions.load("live")
    step(f"Sending {AT_ONCE} questions at once through the OpenAI SDK")
    together, elapsed_s = asyncio.run(ask_together(running, asked[:AT_ONCE], servers, args.kill_one))
    print(report.table(f"{AT_ONCE} at once (quality, USD, J and s are predictions)", together))
    print(report.summary(together, elapsed_s))
    compare_policies(running, together)
    step(f"Sending {len(asked) - AT_ONCE} more, one by one")
    singles, elapsed_s = asyncio.run(ask_singly(running, asked[AT_ONCE:]))
    print(report.table("One by one", singles))
    print(report.summary(singles, elapsed_s))
    print("  Each server is measured while all three compete for the cores; alone it is faster than predicted.")

    code = verdict(together + singles, args.kill_one)
    if sys.stdout.isatty() and not args.exit:
        linger(running)
    running.stop()
    step("Done")
    return code


class _Steps:
    """Numbered headings with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._count = 0

    def __call__(self, title: str) -> None:
        self._count += 1
        print(f"\n[{self._count}] {title} ({time.monotonic() - self._started:.0f} s)", flush=True)


async def ask_together(
    running: router.Router, asked: list[questions.Question], servers: list[Server], kill_one: bool
) -> tuple[list[Outcome], float]:
    """All at once; with `kill_one` a server is killed when the first answer has begun."""
    started = time.monotonic()
    done = 0
    victim = next(server for server in servers if server.spec.node == VICTIM) if kill_one else None

    def kill(_: Outcome) -> None:
        if victim is not None and victim.process.poll() is None:
            os.kill(victim.process.pid, signal.SIGKILL)
            print(f"  {time.monotonic() - started:5.1f} s  killed server `{VICTIM}` (SIGKILL), the others go on", flush=True)

    def progress(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        what = outcome.error or f"from {outcome.header('destination')}"
        print(f"  {time.monotonic() - started:5.1f} s  {done:2} of {len(asked)} {what}", flush=True)

    outcomes = await Client(running.base_url, progress, kill).ask_at_once(asked)
    return outcomes, time.monotonic() - started


async def ask_singly(running: router.Router, asked: list[questions.Question]) -> tuple[list[Outcome], float]:
    started = time.monotonic()
    client = Client(running.base_url, lambda outcome: None, lambda outcome: None)
    outcomes = await client.ask_one_by_one(asked)
    return outcomes, time.monotonic() - started


def compare_policies(running: router.Router, outcomes: list[Outcome]) -> None:
    """The largest plan: what it meant to send where, and its J beside other policies on the very same problem."""
    went = {outcome.headers["x-request-id"]: outcome.header("destination") for outcome in outcomes if outcome.error is None}
    plans = [plan for plan in map(running.decision, went) if plan is not None and "problem" in plan]
    if not plans:
        raise DemoError("the router remembers no plan of the requests just answered")
    largest = max(plans, key=lambda plan: len(plan["placements"]))
    placed = {placement["request_id"]: placement["destination"] for placement in largest["placements"]}
    path = WORK / "problem.json"
    path.write_text(json.dumps(largest["problem"]))
    print(
        f"\nPlan {largest['batch']}, the largest: {len(placed)} requests together, by {largest['policy']} "
        f"in {largest['solve_ms']:.1f} ms, J = {largest['objective']:.4f}"
    )
    print(f"  planned: {report.spread(placed.values())}")
    print(f"  went:    {report.spread(went[request_id] for request_id in placed if request_id in went)}")
    print(f"  the same problem ({path}) by other policies; lower J is better:")
    for policy in COMPARED_POLICIES:
        answer = running.solve(path, policy)
        raw = answer["raw"]
        print(
            f"    {policy:12} J = {answer['objective']:.4f}   quality loss {raw['quality']:.3f}, {raw['cost']:.6f} USD, "
            f"{raw['energy']:.0f} J, {raw['time']:.2f} s"
        )


def verdict(outcomes: list[Outcome], killed_one: bool) -> int:
    """0 if every request was answered. After a kill, an answer already begun may be cut: it cannot be moved any more."""
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    unexcused = [outcome for outcome in failed if not (killed_one and outcome.text)]
    for outcome in failed:
        excuse = "" if outcome in unexcused else " (its answer had begun on the killed server)"
        print(f"  failed{excuse}: {outcome.question.id}: {outcome.error}")
    if unexcused:
        print(f"\n{len(unexcused)} of {len(outcomes)} requests failed; see {WORK / 'logs'}", file=sys.stderr)
        return 1
    if killed_one:
        print(f"\n`{VICTIM}` was killed; no request failed that had received no content ({len(failed)} begun answers were cut).")
    else:
        print(f"\nAll {len(outcomes)} requests were answered.")
    return 0


def linger(running: router.Router) -> None:
    """Leave everything up for the user to try until Ctrl-C."""
    body = '{"model": "auto", "max_tokens": 32, "messages": [{"role": "user", "content": "Name three colours."}]}'
    print(f"\nThe router stays up. base_url = {running.base_url}   metrics = {running.admin_url}/metrics")
    print(f"  curl -i {running.base_url}/chat/completions -H 'content-type: application/json' -d '{body}'")
    print("Ctrl-C ends everything.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
    print()


if __name__ == "__main__":
    sys.exit(main())
