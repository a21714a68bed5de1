"""The router under demonstration: build, configuration, quality store, start, and questions to its admin listener."""

import json
import shutil
import string
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from children import Children, stop, tail
from fleet import ROOT, DemoError, Server, ServerSpec, free_ports, wait_until_up
from measure import Speed

READY_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Router:
    """A running router."""

    binary: Path
    listen_port: int
    admin_port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def base_url(self) -> str:
        """What an application sets as its SDK's `base_url`."""
        return f"http://127.0.0.1:{self.listen_port}/v1"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def decision(self, request_id: str) -> dict[str, object] | None:
        """The plan that sent `request_id` where it went: batch, policy, placements, objective, problem.

        None where the router does not remember it: it keeps the last few.
        """
        url = f"{self.admin_url}/admin/v1/decisions/{urllib.parse.quote(request_id, safe='')}"
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise DemoError(f"{url} answered {error.code}") from error

    def stop(self) -> None:
        """SIGTERM, on which the router must drain and exit 0."""
        code = stop(self.process)
        if code != 0:
            raise DemoError(f"the router ended with code {code} on SIGTERM; {self.log} says:\n{tail(self.log)}")

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


def config_text(own: dict[str, object], servers: list[tuple[ServerSpec, str, Speed]]) -> str:
    """The template with the router's `own` figures and every server's URL, slots and measured speed."""
    names = dict(own)
    for spec, url, speed in servers:
        names |= {f"{spec.node}_url": url, f"{spec.node}_slots": spec.slots}
        names |= {f"{spec.node}_{name}": value for name, value in vars(speed).items()}
    return string.Template((ROOT / "demo/config.yaml.in").read_text()).substitute(names)


def start(children: Children, binary: Path, servers: list[Server], speeds: dict[str, Speed], work: Path) -> Router:
    """Write the configuration, start `serve`, and wait until the router says it is ready."""
    listen_port, admin_port = free_ports(2)
    config = work / "config.yaml"
    own = {"listen_port": listen_port, "admin_port": admin_port, "store": work / "quality"}
    config.write_text(config_text(own, [(server.spec, server.url, speeds[server.spec.node]) for server in servers]))
    log = work / "logs/router.log"
    process = children.start([str(binary), "serve", "--config", str(config)], log)
    wait_until_up(process, f"http://127.0.0.1:{listen_port}/readyz", "router", log, READY_TIMEOUT_S)
    print(f"  configuration {config}, log {log}", flush=True)
    return Router(binary, listen_port, admin_port, process, log)
