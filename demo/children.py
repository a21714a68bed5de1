"""Child processes that never outlive the demo: not its end, not Ctrl-C, not its own SIGKILL."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

STOP_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


def _die_with(parent_pid: int) -> None:
    """In the child: have the kernel send SIGKILL when the parent ends (Linux; elsewhere `stop_all` has to do)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended between fork and prctl
        os.kill(os.getpid(), signal.SIGKILL)


class Children:
    """Starts processes, each in a process group of its own, and ends them all on leaving the `with` block.

    Start them from the main thread: the kernel's death signal follows the thread that forked.
    """

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(self, command: list[str], log: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start `command` with its output in the file `log`.

        Its own process group keeps Ctrl-C in the terminal from reaching it before the demo reacts. No session of its
        own: Linux weighs niceness only within a session.
        """
        parent = os.getpid()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=lambda: _die_with(parent),
                env={**os.environ, **(env or {})},
            )
        self._running.append(process)
        return process

    def stop_all(self) -> None:
        """End every process: together, each with its grace time."""
        for process in self._running:
            _signal_group(process, signal.SIGTERM)
        for process in self._running:
            stop(process)
        self._running.clear()


def stop(process: "subprocess.Popen[bytes]") -> int:
    """SIGTERM to the process group, SIGKILL if it is still there after the grace time; the exit code (negative: signal)."""
    _signal_group(process, signal.SIGTERM)
    try:
        return process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)
        return process.wait()


def _signal_group(process: "subprocess.Popen[bytes]", signum: int) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented, for an error message."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else ["(no output)"]
    return "\n".join("    " + line for line in text)
