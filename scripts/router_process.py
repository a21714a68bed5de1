"""A router of its own for checks: `async with Router(BINARY, CONFIG) as router`."""

import asyncio
import json
import os

from stub_fleet import request


class Router:
    """`api` and `admin_url` are its addresses, `log` what it has logged."""

    def __init__(self, binary, config):
        self.binary, self.config = binary, config

    async def __aenter__(self):
        self.process = await asyncio.create_subprocess_exec(
            self.binary, "serve", "--config", self.config, "--log-format", "json",
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
        self.log = []
        while True:
            line = await asyncio.wait_for(self.process.stderr.readline(), 30)
            if not line:
                raise RuntimeError(f"the router did not start: {self.log}")
            self.log.append(json.loads(line) if line.startswith(b"{") else line.decode())
            if isinstance(self.log[-1], dict) and self.log[-1].get("message") == "listening":
                break
        self.api, self.admin_url = ("http://" + self.log[-1][name] for name in ("listen", "admin"))
        self.reading = asyncio.create_task(self.read())
        return self

    async def read(self):
        async for line in self.process.stderr:
            # The last lines do for finding out what went wrong.
            self.log = self.log[-200:] + [line.decode().rstrip()]

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), 40)
        self.reading.cancel()

    async def admin(self, path, method="GET", body=None):
        """Status and body of a page of the admin listener."""
        status, _, answer = await request(self.admin_url + path, method, body)
        return status, answer

    def memory_kib(self):
        """What it has resident."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def n_threads(self):
        """Threads it has."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Threads"))

    def n_descriptors(self):
        """Open files it has."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))
