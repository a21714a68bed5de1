"""The demo's fleet: three real llama.cpp servers that differ in threads, slots, context and priority."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

from children import Children, tail

ROOT = Path(__file__).resolve().parent.parent
LLAMA_PYTHON = ROOT / ".cache/llama/bin/python"
LOAD_TIMEOUT_S = 120.0


class DemoError(Exception):
    """Something the demo cannot go on from; its text is shown to the user as it is."""


@dataclass(frozen=True)
class ServerSpec:
    """What makes one server differ from the others."""

    node: str
    model: str
    threads: int
    slots: int
    ctx_per_slot_tokens: int
    nice: int

    def describe(self) -> str:
        """One line for people."""
        plural = "s" if self.threads > 1 else ""
        return (
            f"{self.threads} thread{plural}, {self.slots} slot{'s' if self.slots > 1 else ''}, "
            f"{self.ctx_per_slot_tokens} tokens of context per slot, niceness {self.nice}"
        )


# Niceness makes the smaller servers slower for real where the cores are shared, and not by declaration alone.
FLEET = (
    ServerSpec("strong", "smollm-a", threads=2, slots=4, ctx_per_slot_tokens=2048, nice=0),
    ServerSpec("medium", "smollm-b", threads=1, slots=2, ctx_per_slot_tokens=1024, nice=3),
    ServerSpec("weak", "smollm-c", threads=1, slots=1, ctx_per_slot_tokens=512, nice=6),
)


@dataclass
class Server:
    """A running llama.cpp server."""

    spec: ServerSpec
    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listens on right now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def start_fleet(children: Children, log_dir: Path) -> list[Server]:
    """Start every server of `FLEET` and wait until all have loaded the model."""
    servers = []
    for spec, port in zip(FLEET, free_ports(len(FLEET)), strict=True):
        log = log_dir / f"{spec.node}.log"
        command = [str(LLAMA_PYTHON), str(ROOT / "scripts/llamacpp_server.py"), "--port", str(port)]
        command += ["--alias", spec.model, "--threads", str(spec.threads), "--parallel", str(spec.slots)]
        command += ["--ctx-per-slot", str(spec.ctx_per_slot_tokens), "--nice", str(spec.nice)]
        process = children.start(command, log, env={"OMP_WAIT_POLICY": "passive"})
        servers.append(Server(spec, port, process, log))
    for server in servers:
        wait_until_up(server.process, server.url + "/health", server.spec.node, server.log, LOAD_TIMEOUT_S)
        print(f"  {server.spec.node:7} {server.url}  {server.spec.model}: {server.spec.describe()}", flush=True)
    return servers


def wait_until_up(process: "subprocess.Popen[bytes]", url: str, name: str, log: Path, timeout_s: float) -> None:
    """Poll `url` until it answers 200; raise with the tail of the log if the process ends or time runs out."""
    started = time.monotonic()
    shown_s = 0.0
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        waited_s = time.monotonic() - started
        if process.poll() is not None:
            raise DemoError(f"{name} ended with code {process.returncode} while starting; {log} says:\n{tail(log)}")
        if waited_s > timeout_s:
            raise DemoError(f"{name} did not answer {url} within {timeout_s:.0f} s; {log} says:\n{tail(log)}")
        if waited_s - shown_s >= 5:
            shown_s = waited_s
            print(f"  {name}: starting, {waited_s:.0f} s", flush=True)
        time.sleep(0.1)


def chat(server: Server, body: dict[str, object], timeout_s: float = 120.0) -> dict[str, object]:
    """One chat completion straight from a server, past the router (calibration and profile only)."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.url + "/v1/chat/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return json.load(reply)


def fleet_shape() -> list[dict[str, object]]:
    """The fleet as plain data: what a recorded profile is valid for."""
    return [asdict(spec) for spec in FLEET]
