#!/usr/bin/env python3
"""The accuracy experiment: see scripts/accuracy.sh and docs/CALIBRATION.md.

Three llama.cpp servers with the same model and different shapes, each held to a fixed share of the processors. The router
and the load generator have what the servers' shares leave.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "demo"), str(ROOT / "scripts")]

from children import Children, stop, tail  # noqa: E402
from cpu_share import Shares  # noqa: E402
from fleet import LLAMA_PYTHON, DemoError, free_ports, wait_until_up  # noqa: E402

LOAD_TIMEOUT_S = 180.0
READY_TIMEOUT_S = 60.0
CTX_PER_SLOT_TOKENS = 1024


@dataclass(frozen=True)
class Shape:
    """One server: `cores` is its share, in processors; it runs on processor `core` alone."""

    node: str
    model: str
    slots: int
    cores: float
    core: int


FLEET = (
    Shape("strong", "smollm-a", slots=4, cores=0.85, core=0),
    Shape("medium", "smollm-b", slots=2, cores=0.45, core=1),
    Shape("weak", "smollm-c", slots=1, cores=0.30, core=1),
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="requests of each load")
    parser.add_argument("--loads", default="0.3,0.6,0.9", help="shares of the measured capacity")
    parser.add_argument("--max-tokens", default="16,32,64", help="limits of answers, one drawn for each request")
    benchmarks = "gsm8k,math,human_eval,mbpp"
    parser.add_argument("--benchmarks", default=benchmarks, help=f"only prompts of these, `all` for all; default {benchmarks}")
    parser.add_argument("--prompt-bytes-max", type=int, default=400, help="longer prompts are left out")
    parser.add_argument("--prompt-tokens", default="64,128,224", help="prompt lengths of the calibration")
    parser.add_argument("--repeats", type=int, default=3, help="calibration requests of each length")
    parser.add_argument("--pilot", type=int, default=60, help="prompts asked beforehand to learn how long answers get")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-defaults", action="store_true", help="leave out the run without calibration")
    parser.add_argument("--defaults-load", default="0.6", help="load of the run without calibration")
    parser.add_argument("--routing", default="{weights: {time: 1}}", help="`routing` of the router's configuration, YAML on one line")
    parser.add_argument("--bin-dir", type=Path, help="use the programs there and build nothing")
    parser.add_argument("--out", type=Path, default=ROOT / ".cache/accuracy", help="where results go")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    out = args.out.resolve()
    (out / "logs").mkdir(parents=True, exist_ok=True)
    try:
        with Shares("cema-accuracy") as shares, Children() as children:
            run(args, out, shares, children)
    except DemoError as error:
        print(f"\nThe experiment failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; every process that was started has ended.", file=sys.stderr)
        return 130
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run(args: argparse.Namespace, out: Path, shares: Shares, children: Children) -> None:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    programs = args.bin_dir.resolve() if args.bin_dir else build()
    router_program, accuracy = programs / "cema-router", programs / "examples/accuracy"
    ports = free_ports(len(FLEET) + 2)
    urls = {shape: f"http://127.0.0.1:{port}" for shape, port in zip(FLEET, ports, strict=False)}
    listen, admin = ports[-2:]
    say(f"starting three llama.cpp servers; {shares.how}")
    servers = start_servers(children, shares, urls, out / "logs")

    bare = config_text((listen, admin), urls, args.routing, {})
    (out / "config-defaults.yaml").write_text(bare)
    say("calibrating, all three at the same time")
    command = [router_program, "profile", "network", "--config", out / "config-defaults.yaml", "--format", "json"]
    paths = {row["endpoint"]: row["tcp"] for row in json.loads(check(command))["endpoints"]}
    command = [router_program, "profile", "throughput", "--config", out / "config-defaults.yaml", "--together", "--yes"]
    command += ["--prompt-tokens", args.prompt_tokens, "--completion-tokens", "32", "--repeats", str(args.repeats)]
    command += ["--out", out / "throughput.yaml", "--plot", out, "--format", "json"]
    (out / "measured.json").write_text(check(command))
    measured = json.loads((out / "measured.json").read_text())["destinations"]
    figures = {row["id"]: row["figures"] for row in measured}
    incomplete = [name for name, row in figures.items() if not (row["prefill"] and row["decode_tps"] and row["ladder"])]
    if incomplete:
        raise DemoError(f"the calibration of {', '.join(incomplete)} is incomplete: see {out / 'measured.json'}")
    for shape in FLEET:
        figures[f"{shape.node}/{shape.model}"]["rtt_ms"] = 1e3 * paths[shape.node]["median_s"]
    (out / "config.yaml").write_text(config_text((listen, admin), urls, args.routing, figures))

    ask = [accuracy, "--router", f"http://127.0.0.1:{listen}", "--admin", f"http://127.0.0.1:{admin}"]
    ask += ["--measured", out / "measured.json", "--out", out, "--seed", str(args.seed)]
    ask += ["--prompt-bytes-max", str(args.prompt_bytes_max)]
    if args.benchmarks != "all":
        ask += ["--benchmarks", args.benchmarks]
    ask += ["--max-tokens", args.max_tokens, "--requests", str(args.requests)]
    for shape, url in urls.items():
        ask += ["--server", f"{shape.node}/{shape.model}={url}"]
    say("a pilot straight to the servers: how long real prompts and answers are")
    (out / "pilot.json").write_text(check([*ask, "--pilot", str(args.pilot), "--profile", out / "profile.jsonl"]))
    shutil.rmtree(out / "store", ignore_errors=True)
    check([router_program, "quality", "import", "--store", out / "store", "--trace", out / "profile.jsonl"])
    ask += ["--pilot-of", out / "pilot.json", "--pilot", str(args.pilot)]
    say(f"real prompts at {args.loads} of the capacity, {args.requests} each")
    tables = [with_router(children, router_program, out, "config.yaml", (listen, [*ask, "--loads", args.loads]))]
    if not args.skip_defaults:
        say("the same with a router that knows no speeds, and with new servers: the old ones have these prompts in their caches")
        for server in servers:
            stop(server)
        start_servers(children, shares, urls, out / "logs")
        command = [*ask, "--label", "defaults", "--loads", args.defaults_load]
        tables.append(with_router(children, router_program, out, "config-defaults.yaml", (listen, command)))
    summary = "\n".join([about(shares), calibration_table(figures), *tables])
    (out / "summary.md").write_text(summary)
    print(summary)
    say(f"done; everything is in {out}")


def build() -> Path:
    """The release programs; cargo's own output is shown."""
    command = ["cargo", "build", "--release", "--locked", "--bin", "cema-router", "--example", "accuracy"]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise DemoError("the build failed; cargo's message is above")
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"]
    metadata = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return Path(json.loads(metadata.stdout)["target_directory"]) / "release"


def check(command: list[object]) -> str:
    """Runs to the end and returns standard output; its messages go where ours go."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    if done.returncode != 0:
        raise DemoError(f"`{' '.join(map(str, command))}` ended with code {done.returncode}; its message is above")
    return done.stdout


def start_servers(children: Children, shares: Shares, urls: dict[Shape, str], logs: Path) -> list[subprocess.Popen]:
    running = []
    for shape, url in urls.items():
        command = [str(LLAMA_PYTHON), str(ROOT / "scripts/llamacpp_server.py"), "--port", url.rsplit(":", 1)[1]]
        command += ["--alias", shape.model, "--threads", "1", "--parallel", str(shape.slots)]
        command += ["--ctx-per-slot", str(CTX_PER_SLOT_TOKENS)]
        log = logs / f"{shape.node}.log"
        process = children.start(shares.wrap(command, shape.node, shape.cores, shape.core), log)
        running.append((process, url, shape, log))
    for process, url, shape, log in running:
        wait_until_up(process, url + "/health", shape.node, log, LOAD_TIMEOUT_S)
    return [process for process, *_ in running]


def config_text(own: tuple[int, int], urls: dict[Shape, str], routing: str, figures: dict[str, dict]) -> str:
    """A configuration of the fleet, with the measured figures where there are any."""
    listen, admin = own
    lines = [f"listen: 127.0.0.1:{listen}", f"admin_listen: 127.0.0.1:{admin}", f"routing: {routing}"]
    # Without figures it knows nothing of answer lengths either.
    lines += [f"quality: {{store: ./{'store' if figures else 'none'}}}", "nodes:"]
    for shape, url in urls.items():
        model = f"name: {shape.model}, parameters_b: 0.135, context_tokens: {CTX_PER_SLOT_TOKENS}"
        found = figures.get(f"{shape.node}/{shape.model}")
        if found:
            ladder = found["ladder"]
            model += (
                f", throughput: {{prefill_tps: {found['prefill']['prefill_tps']:.3f}, decode_tps: {found['decode_tps']['median']:.3f}, "
                f"batch_speedup: {ladder['batch_speedup']:.3f}, max_concurrency: {ladder['max_concurrency']}}}"
            )
        lines.append(f"  - name: {shape.node}")
        if found:
            lines.append(f"    network: {{rtt_ms: {found['rtt_ms']:.3f}}}")
        lines.append(f'    endpoints: [{{url: "{url}", kind: llamacpp, models: [{{{model}}}]}}]')
    return "\n".join(lines) + "\n"


def with_router(children: Children, program: Path, out: Path, config: str, ask: tuple[int, list[object]]) -> str:
    """Starts a router, runs the load against it, ends the router; the load's table."""
    listen, command = ask
    log = out / "logs" / f"router-{Path(config).stem}.log"
    process = children.start([str(program), "serve", "--config", str(out / config)], log)
    wait_until_up(process, f"http://127.0.0.1:{listen}/readyz", "router", log, READY_TIMEOUT_S)
    table = check(command)
    code = stop(process)
    if code != 0:
        raise DemoError(f"the router ended with code {code}; {log} says:\n{tail(log)}")
    return table


def about(shares: Shares) -> str:
    """The machine and how it was divided."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    fleet = "; ".join(f"{s.node}: {s.slots} slots, {s.cores} of processor {s.core}" for s in FLEET)
    return (
        f"{date} UTC, commit {commit.stdout.strip() or 'unknown'}, {os.cpu_count()} processors ({platform.machine()}), "
        f"{shares.how}. {fleet}.\n"
    )


def calibration_table(figures: dict[str, dict]) -> str:
    lines = ["| destination | prefill tok/s | overhead ms | decode tok/s | speed-up | at once |", "|---|---|---|---|---|---|"]
    for name, row in figures.items():
        prefill, ladder = row["prefill"], row["ladder"]
        lines.append(
            f"| {name} | {prefill['prefill_tps']:.1f} | {1e3 * prefill['overhead_s']:.0f} | {row['decode_tps']['median']:.1f} | "
            f"{ladder['batch_speedup']:.2f} | {ladder['max_concurrency']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
