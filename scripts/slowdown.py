#!/usr/bin/env python3
"""One of three real llama.cpp servers slowed to a third under load: how fast its share of new work follows.

The servers are those of scripts/accuracy.py in another shape, three alike with fixed shares of the processors. Requests
arrive as a Poisson process. Several times in a run, one server is stopped two thirds of every tenth of a second (SIGSTOP,
SIGCONT) and then left alone again. Printed are the shares of new requests that it got in windows of five seconds counted
from either change, summed over the repetitions, and every request that failed. docs/CALIBRATION.md has a run.

    scripts/slowdown.py --program target/release/cema-router [--rate 4] [--times 4] [--slow-s 25] [--well-s 45]

Nothing else should run on the machine. Needs `make setup`.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "demo"), str(ROOT / "scripts")]

import accuracy  # noqa: E402
from children import Children, stop  # noqa: E402
from cpu_share import Shares  # noqa: E402
from fleet import DemoError, free_ports, wait_until_up  # noqa: E402

FLEET = (
    accuracy.Shape("slowed", "smollm-a", slots=2, cores=0.5, core=0),
    accuracy.Shape("second", "smollm-b", slots=2, cores=0.5, core=1),
    accuracy.Shape("third", "smollm-c", slots=2, cores=0.5, core=1),
)
WINDOW_S = 5.0
# Of every tenth of a second.
STOPPED_S, RUNNING_S = 0.067, 0.033
# The router gets to know its fleet before the first change.
WARM_UP_S = 30.0
READY_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 120.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/cema-router")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--times", type=int, default=4, help="how often the server is slowed")
    parser.add_argument("--slow-s", type=float, default=25.0, help="how long each time")
    parser.add_argument("--well-s", type=float, default=45.0, help="how long it is left alone after each")
    parser.add_argument("--max-tokens", type=int, default=6)
    parser.add_argument("--routing", default="{weights: {time: 1}}", help="`routing` of the configuration, YAML on one line")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / ".cache/slowdown", help="where logs and the configuration go")
    return parser.parse_args()


def slow_down(pid: int, until: float) -> None:
    """Lets `pid` and its children run a third of the time until `until`."""
    pids = [pid, *(int(child) for child in children_of(pid))]
    try:
        while time.monotonic() < until:
            for signum, pause_s in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
                for each in pids:
                    os.kill(each, signum)
                time.sleep(pause_s)
    finally:
        for each in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


class Load:
    """Requests at random moments, each in a thread of its own."""

    def __init__(self, port: int, args: argparse.Namespace) -> None:
        self._port, self._args = port, args
        self._lock, self._threads = threading.Lock(), []
        # When it was sent, the node that answered, what went wrong.
        self.answers: list[tuple[float, str, str | None]] = []

    def run(self, until: float) -> None:
        rng, number, due = random.Random(self._args.seed), 0, time.monotonic()
        while (due := due + rng.expovariate(self._args.rate)) < until:
            time.sleep(max(0.0, due - time.monotonic()))
            number += 1
            thread = threading.Thread(target=self._ask, args=(number,))
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        sent, node, fault = time.monotonic(), "none", None
        message = {"role": "user", "content": f"Count from {number} upwards, one number a line."}
        body = {"model": "auto", "stream": True, "max_tokens": self._args.max_tokens, "messages": [message]}
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ASK_TIMEOUT_S)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            node = (response.getheader("x-cema-destination") or "none").split("/")[0]
            if response.status != 200 or b"data: [DONE]" not in data or b'"error"' in data:
                fault = f"status {response.status}: {data[-200:]!r}"
        except (OSError, http.client.HTTPException) as error:
            fault = repr(error)
        with self._lock:
            self.answers.append((sent, node, fault))


def run(args: argparse.Namespace, shares: Shares, children: Children) -> int:
    accuracy.FLEET = FLEET
    out = args.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    ports = free_ports(len(FLEET) + 2)
    urls = {shape: f"http://127.0.0.1:{port}" for shape, port in zip(FLEET, ports, strict=False)}
    listen, admin = ports[-2:]
    print(f"starting three llama.cpp servers; {shares.how}", file=sys.stderr, flush=True)
    servers = accuracy.start_servers(children, shares, urls, out / "logs")
    config = out / "config.yaml"
    config.write_text(accuracy.config_text((listen, admin), urls, args.routing, {}))
    router_log = out / "logs/router.log"
    router = children.start([args.program, "serve", "--config", str(config)], router_log)
    wait_until_up(router, f"http://127.0.0.1:{listen}/readyz", "the router", router_log, READY_TIMEOUT_S)

    load = Load(listen, args)
    began = time.monotonic()
    slowed_at = [began + WARM_UP_S + i * (args.slow_s + args.well_s) for i in range(args.times)]
    sending = threading.Thread(target=load.run, args=(slowed_at[-1] + args.slow_s + args.well_s,))
    sending.start()
    for number, at in enumerate(slowed_at, 1):
        time.sleep(max(0.0, at - time.monotonic()))
        print(f"slowed, time {number} of {args.times}", file=sys.stderr, flush=True)
        slow_down(servers[0].pid, at + args.slow_s)
    sending.join()
    load.join()
    stop(router)
    return report(load.answers, slowed_at, args)


def report(answers: list[tuple[float, str, str | None]], slowed_at: list[float], args: argparse.Namespace) -> int:
    windows: Counter[tuple[str, int]] = Counter()
    of_slowed: Counter[tuple[str, int]] = Counter()
    for sent, node, _ in answers:
        since = sent - max((at for at in slowed_at if at <= sent), default=slowed_at[0])
        phase, into = ("slow", since) if 0 <= since < args.slow_s else ("well", since - args.slow_s)
        key = ("before", 0) if since < 0 else (phase, int(into // WINDOW_S))
        windows[key] += 1
        of_slowed[key] += node == FLEET[0].node
    print(f"\n| seconds | requests | share of `{FLEET[0].node}` |\n|---|---|---|")
    names = {"before": "before the first slowing", "slow": "slowed", "well": "left alone again"}
    for key in sorted(windows, key=lambda key: (list(names).index(key[0]), key[1])):
        phase, window = key
        span = names[phase] if phase == "before" else f"{names[phase]}, {window * WINDOW_S:.0f}–{(window + 1) * WINDOW_S:.0f}"
        print(f"| {span} | {windows[key]} | {of_slowed[key] / windows[key]:.0%} |")
    faults = [fault for _, _, fault in answers if fault]
    print(f"\n{len(answers)} requests, {len(faults)} failed")
    for fault in faults[:10]:
        print(f"  {fault}")
    return 1 if faults else 0


def main() -> int:
    args = parse_args()
    try:
        with Shares("cema-slowdown") as shares, Children() as children:
            return run(args, shares, children)
    except DemoError as error:
        print(f"\nThe experiment failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; every process that was started has ended.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
