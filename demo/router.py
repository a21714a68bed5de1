"""The router under demonstration: build, configuration, quality store, start, and questions to its admin listener."""

import json
import shutil
import string
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from children import Children
from fleet import ROOT, DemoError, Server, free_ports, wait_until_up
from measure import Speed

READY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Router:
    """A running router."""

    binary: Path
    listen_port: int
    admin_port: int

    @property
    def base_url(self) -> str:
        """What an application sets as its SDK's `base_url`."""
        return f"http://127.0.0.1:{self.listen_port}/v1"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def decision(self, request_id: str) -> dict[str, object]:
        """The decision that sent `request_id` where it went: batch, policy, objective, problem."""
        url = f"{self.admin_url}/admin/v1/decisions/{urllib.parse.quote(request_id, safe='')}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            return json.load(reply)

    def solve(self, problem: Path, policy: str) -> dict[str, object]:
        """The same problem, solved again by another policy."""
        command = [str(self.binary), "solve", "--problem", str(problem), "--policy", policy]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise DemoError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout)


def build() -> Path:
    """The release binary; cargo's own output is shown."""
    command = ["cargo", "build", "--release", "--locked", "--bin", "cema-router"]
    print(f"  {' '.join(command)}", flush=True)
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise DemoError("the build failed; cargo's message is above")
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline"], cwd=ROOT, capture_output=True, check=True
    )
    return Path(json.loads(metadata.stdout)["target_directory"]) / "release/cema-router"


def fill_store(binary: Path, profile: Path, store: Path) -> None:
    """A fresh quality store from the recorded profile, by the router's own command."""
    shutil.rmtree(store, ignore_errors=True)
    command = [str(binary), "quality", "import", "--store", str(store), "--trace", str(profile)]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise DemoError(f"`{' '.join(command)}` failed; its message is above")


def start(children: Children, binary: Path, servers: list[Server], speeds: dict[str, Speed], work: Path) -> Router:
    """Write the configuration, start `serve`, and wait until the router says it is ready."""
    listen_port, admin_port = free_ports(2)
    names: dict[str, object] = {"listen_port": listen_port, "admin_port": admin_port, "store": work / "quality"}
    for server in servers:
        node, speed = server.spec.node, speeds[server.spec.node]
        names |= {f"{node}_url": server.url, f"{node}_slots": server.spec.slots}
        names |= {f"{node}_{name}": value for name, value in vars(speed).items()}
    template = string.Template((ROOT / "demo/config.yaml.in").read_text())
    config = work / "config.yaml"
    config.write_text(template.substitute(names))
    log = work / "logs/router.log"
    process = children.start([str(binary), "serve", "--config", str(config)], log)
    wait_until_up(process, f"http://127.0.0.1:{listen_port}/readyz", "router", log, READY_TIMEOUT_S)
    print(f"  configuration {config}, log {log}", flush=True)
    return Router(binary, listen_port, admin_port)
