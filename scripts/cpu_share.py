"""Fixed shares of the processors for processes, by what the machine offers: cgroup v2, cgroup v1, or nothing."""

import contextlib
import os
import shutil
import time
from pathlib import Path

# Short, so that a server with a small share is slow evenly and not in bursts.
PERIOD_US = 20_000


class Shares:
    """Control groups with a CPU quota, removed on leaving the `with` block (end their processes first)."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}-{os.getpid()}"
        self._groups: list[Path] = []
        self._base, self._version = _find_base(self._prefix)

    def __enter__(self) -> "Shares":
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # its processes are ending
                    time.sleep(0.1)

    @property
    def how(self) -> str:
        """What holds processes to their shares, for people."""
        if self._version == 0:
            return "no CPU quota (control groups cannot be written here): pinned to cores only, so shares are not fixed"
        return f"cgroup v{self._version} CPU quota, period {PERIOD_US // 1000} ms"

    def wrap(self, command: list[str], name: str, cores: float, core: int) -> list[str]:
        """`command` held to `cores` processors' worth of time and, where there are several, to processor `core`."""
        if (os.cpu_count() or 1) > core and shutil.which("taskset"):
            command = ["taskset", "-c", str(core), *command]
        if self._version == 0:
            return command
        group = self._base / f"{self._prefix}-{name}"
        if group not in self._groups:
            group.mkdir()
            self._groups.append(group)
        quota_us = str(round(cores * PERIOD_US))
        if self._version == 2:
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(quota_us)
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), *command]


def _find_base(prefix: str) -> tuple[Path, int]:
    """The folder new groups can be made in, and which version of control groups it belongs to; version 0 = none."""
    for base, version, limit in _candidates():
        trial = base / f"{prefix}-trial"
        with contextlib.suppress(OSError):
            trial.mkdir()
            try:
                if (trial / limit).exists():
                    return base, version
            finally:
                trial.rmdir()
    return Path(), 0


def _candidates() -> list[tuple[Path, int, str]]:
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path.lstrip("/")
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" and "" in own:
            base = Path(where) / own[""]
            with contextlib.suppress(OSError):  # not ours to change, or changed already
                (base / "cgroup.subtree_control").write_text("+cpu")
            found.append((base, 2, "cpu.max"))
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for controllers, path in own.items() if "cpu" in controllers.split(",")), "")
            found.append((Path(where) / path, 1, "cpu.cfs_quota_us"))
    return found
