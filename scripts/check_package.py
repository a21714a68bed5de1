"""The Debian package in a clean root: usage check_package.py ROOT DEB N_PROMPTS, by scripts/package_test.sh alone, which gives
it mounts, network and processes of its own.

Installs DEB into ROOT, starts the router as its unit would (user, environment, limits, a root that is read only but for its
folders, a service manager that listens), as installed, with keys, logs and a fleet, and with a quality store of N_PROMPTS
prompts; then purges it. Says what memory each takes."""

import array
import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys

from stub_fleet import Endpoint, chat, request

SERVICE = "cema-router"
API, ADMIN = "http://127.0.0.1:8080", "http://127.0.0.1:9090"
# Larger stores keep an index.
INDEXED_MIN = 10_000
MODELS = ("my-model", "second", "third")
# What it may take of a small machine, in MB: as installed, and with store and embedder. More fails the check.
INSTALLED_MAX_MB, STORE_MAX_MB = 20, 350


def check(is_so, what):
    if not is_so:
        sys.exit(f"package test: FAILED: {what}")
    print(f"  {what}")


def run(*command, **how):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)
    if done.returncode:
        sys.exit(f"package test: FAILED: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def raise_loopback():
    """A network namespace begins with its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        set_flags, is_up = 0x8914, 0x1
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", is_up))


def files_of(root):
    """Every file and folder, but for what changes with any package."""
    changing = ("proc", "sys", "dev", "run", "tmp", "var/lib/dpkg", "var/log/dpkg.log", "var/cache", "etc/passwd", "etc/group", "etc/shadow",
                "etc/gshadow", "etc/subuid", "etc/subgid", "var/log/faillog", "var/log/lastlog", "etc/.pwd.lock")
    found = set()
    for folder, folders, files in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders[:] = [name for name in folders if os.path.normpath(os.path.join(inside, name)) not in changing]
        found.update(os.path.normpath(os.path.join(inside, name)) for name in folders + files)
    return {path for path in found if not any(path.rstrip("-").startswith(name) for name in changing)}


class Unit:
    """What the unit says: the last value of a key, or all of them."""

    def __init__(self, path):
        lines = re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE)
        self.all = lines

    def __getitem__(self, key):
        return [value for name, value in self.all if name == key][-1]


class Service:
    """The router as systemd would start it: `async with Service(root, unit) as service`."""

    def __init__(self, root, unit, log_kib=None):
        """`log_kib`: the disk for its logs has no more."""
        self.root, self.unit, self.log_kib, self.heard, self.log = root, unit, log_kib, [], []

    def view(self):
        """The root as ProtectSystem=strict shows it."""
        view = pathlib.Path(f"{self.root}.view")
        view.mkdir(exist_ok=True)
        run("mount", "--bind", self.root, view)
        run("mount", "-o", "remount,bind,ro", view)
        for key, parent in (("StateDirectory", "var/lib"), ("LogsDirectory", "var/log")):
            folder = f"{parent}/{self.unit[key]}"
            if not (self.root / folder).is_dir():
                chroot(self.root, "install", "-d", "-o", self.unit["User"], "-g", self.unit["Group"], "-m", self.unit[key + "Mode"], "/" + folder)
            run("mount", "--bind", self.root / folder, view / folder)
        if self.log_kib:
            uid, gid = chroot(self.root, "sh", "-c", f"id -u {self.unit['User']}; id -g {self.unit['Group']}").split()
            run("mount", "-t", "tmpfs", "-o", f"size={self.log_kib}k,uid={uid},gid={gid},mode=750", "tmpfs", view / "var/log" / self.unit["LogsDirectory"])
        run("mount", "-t", "proc", "proc", view / "proc")
        run("mount", "-t", "tmpfs", "tmpfs", view / "tmp")
        return view

    def environment(self):
        unit = self.unit
        variables = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8", "HOME": unit["WorkingDirectory"],
            "USER": unit["User"], "LOGNAME": unit["User"], "NOTIFY_SOCKET": "/run/notify",
            "WATCHDOG_USEC": str(int(unit["WatchdogSec"]) * 1_000_000),
        }
        text = (self.root / unit["EnvironmentFile"].lstrip("-/")).read_text()
        return variables | dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))

    async def __aenter__(self):
        await self.start()
        await self.hears("READY=1")
        return self

    async def start(self):
        unit, view = self.unit, self.view()
        self.mounted = view
        notify = self.root / "run/notify"
        notify.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(notify))
        self.socket.setblocking(False)
        notify.chmod(0o666)
        files = self.files()
        self.process = await asyncio.create_subprocess_exec(
            "prlimit", f"--nofile={files}:{files}", f"--core={unit['LimitCORE']}", "chroot", view,
            "setpriv", f"--reuid={unit['User']}", f"--regid={unit['Group']}", "--clear-groups", "--no-new-privs", "--bounding-set=-all",
            "--inh-caps=-all", "sh", "-c", f"cd {unit['WorkingDirectory']} && umask {unit['UMask']} && exec {unit['ExecStart']}",
            env=self.environment(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        self.reading = asyncio.create_task(self.read())

    def files(self):
        """The unit's limit on open files, but no more than this machine grants."""
        return min(int(self.unit["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])

    async def read(self):
        async for line in self.process.stdout:
            self.log.append(line.decode().rstrip())

    async def hears(self, what):
        """Waits for word of the router."""
        loop = asyncio.get_running_loop()
        while True:
            hearing = asyncio.ensure_future(loop.sock_recv(self.socket, 4096))
            done, _ = await asyncio.wait({hearing, self.reading}, timeout=90, return_when=asyncio.FIRST_COMPLETED)
            if hearing not in done:
                hearing.cancel()
                sys.exit(f"package test: FAILED: no {what}\n" + "\n".join(self.log))
            self.heard.append(hearing.result().decode())
            if what in self.heard[-1].splitlines():
                return

    def says(self, text):
        return any(text in line for line in self.log)

    async def settled_mb(self, wait_s=8):
        """Resident memory once it has nothing to do."""
        await asyncio.sleep(wait_s)
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024 / 1e6

    async def ended(self):
        """Its exit code, once it has ended."""
        code = await asyncio.wait_for(self.process.wait(), 60)
        await self.reading
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(self.socket.recv(4096).decode())
        self.socket.close()
        run("umount", "--recursive", self.mounted)
        return code

    async def __aexit__(self, kind, *_):
        if self.process.returncode is None:
            self.process.terminate()
        code = await self.ended()
        if kind is None:
            check(code == 0, "it ends when told to, with code 0")
            check(any(message.startswith("STOPPING=1") for message in self.heard), "and says that it stops")
        else:
            print("\n".join(self.log), file=sys.stderr)


def chroot(root, *command, user=None):
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    return run("chroot", root, *as_user, *command)


def install(root, deb):
    before = files_of(root)
    shutil.copy(deb, root / "tmp/cema-router.deb")
    print(chroot(root, "dpkg", "--install", "/tmp/cema-router.deb").strip().splitlines()[-1])
    added = files_of(root) - before
    check(not [path for path in added if path.startswith("etc/systemd")], "installed; nothing is enabled")
    running = [path for path in pathlib.Path("/proc").glob("[0-9]*/comm") if path.read_text().startswith(SERVICE)]
    check(not running, "nothing was started")
    mode = chroot(root, "stat", "-c", "%a %U:%G", "/etc/cema-router/environment").strip()
    check(mode == "640 root:cema-router", f"secrets are {mode}")
    state = chroot(root, "stat", "-c", "%a %U:%G", "/var/lib/cema-router").strip()
    check(state == "750 cema-router:cema-router", f"the folder for its state is {state}")
    conffiles = chroot(root, "dpkg-query", "--show", "--showformat=${Conffiles}", SERVICE)
    check(all(name in conffiles for name in ("/etc/cema-router/config.yaml", "/etc/cema-router/environment")), "configuration and secrets are conffiles")
    for what, path in (("manual pages", "usr/share/man/man1/cema-router-serve.1.gz"), ("completions", "usr/share/bash-completion/completions/cema-router"),
                       ("dashboards", "usr/share/doc/cema-router/dashboards/fleet.json"), ("the licences of what is linked", "usr/share/doc/cema-router/licences/rust-crates.txt.gz")):
        check((root / path).is_file(), f"{what} are there")
    return before


def analyse(root):
    """What systemd thinks of the unit, where it is installed on this machine."""
    if not shutil.which("systemd-analyze"):
        return print("  NOT CHECKED: what systemd says of the unit (systemd-analyze is missing)")
    said = run("systemd-analyze", "security", "--offline=true", f"--root={root}", "--threshold=20", "--no-pager", f"{SERVICE}.service")
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", said)[1]
    check(float(exposure) <= 2.0, f"systemd-analyze security: {exposure}")
    # Against the units of this machine, which has no such program: that is no fault of the unit.
    unit = root / f"usr/lib/systemd/system/{SERVICE}.service"
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    faults = [line for line in verified.stderr.splitlines() if SERVICE in line and "is not executable" not in line]
    check(not faults, "systemd-analyze verify has no complaint of it" + "\n".join(faults))
    program = re.search(r"^ExecReload=(\S+)", unit.read_text(), re.MULTILINE)[1]
    check((root / program.lstrip("/")).exists(), f"{program}, which reloads it, is there")


def configure(root, port):
    """A fleet on this machine, a key and both logs: what the installed files invite to."""
    path = root / "etc/cema-router/config.yaml"
    text = path.read_text()
    for was, now in (
        ("url: http://127.0.0.1:11434", f"url: http://127.0.0.1:{port}"),
        ("kind: ollama  ", "kind: vllm    "),
        ("- name: my-model", "\n          ".join(f"- name: {name}" for name in reversed(MODELS))),
        ("# auth:\n#   keys:\n#     -", "auth:\n  keys:\n    -"),
        ("# decision_log:", "decision_log:"),
        ("# access_log:", "access_log:"),
    ):
        check(was in text, f"the installed configuration has {was.splitlines()[0]!r}")
        text = text.replace(was, now)
    path.write_text(text)
    secrets = root / "etc/cema-router/environment"
    secrets.write_text(secrets.read_text().replace("#APP1_KEY=", "APP1_KEY=the-key"))
    sourced = "set -a; . /etc/cema-router/environment; exec cema-router check-config /etc/cema-router/config.yaml"
    said = chroot(root, "sh", "-c", sourced, user=SERVICE)
    check(": ok, 1 node, 1 endpoint, 3 destinations" in said, "check-config, by its user: " + said.strip())


async def ask(key, n=1):
    """Statuses of `n` chat requests."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answers = [await request(API + "/v1/chat/completions", "POST", chat("auto", stream=n % 2 == 0, max_tokens=8), headers) for _ in range(n)]
    return [status for status, _, _ in answers]


async def as_installed(root, unit):
    said = chroot(root, "cema-router", "check-config", "/etc/cema-router/config.yaml", user=SERVICE)
    check(": ok, " in said, "check-config of what is installed: " + said.strip())
    async with Service(root, unit) as service:
        check((await request(API + "/v1/models"))[0] == 200, "as installed it is ready and answers")
        check((await request(ADMIN + "/readyz"))[0] == 503, "and says that its example of an endpoint is down")
        check(service.says(f"open_files={service.files()}"), f"with a limit of {service.files()} open files")
        return await service.settled_mb()


async def with_fleet(root, unit):
    async with Service(root, unit) as service:
        check(await ask(None) == [401], "without a key a request is refused")
        check(await ask("the-key") == [200], "with the key of the environment file it is answered")
        config = root / "etc/cema-router/config.yaml"
        good = config.read_text()
        config.write_text("listen: nonsense\n")
        service.process.send_signal(1)
        await service.hears("RELOADING=1")
        await service.hears("READY=1")
        config.write_text(good)
        check(service.says("not reloaded") and await ask("the-key") == [200], "a reload of a broken file changes nothing")
    for name in ("decisions.jsonl", "access.jsonl"):
        path = root / "var/log/cema-router" / name
        mode = chroot(root, "stat", "-c", "%a %U", f"/var/log/cema-router/{name}").strip()
        check(path.read_text().strip() and mode == "640 cema-router", f"{name} is written, {mode}")


async def with_bad_disks(root, unit):
    async with Service(root, unit, log_kib=16) as service:
        check(await ask("the-key", 60) == [200] * 60, "with a disk full of logs requests are answered")
        said = [line for line in service.log if "cannot be written; requests go on without" in line]
        check(len(said) == 2 and "No space left" in said[0], "and each log says once that it cannot be written")
    config = root / "etc/cema-router/config.yaml"
    good = config.read_text()
    config.write_text(good.replace("/var/log/cema-router/access.jsonl", "/var/log/access.jsonl"))
    service = Service(root, unit)
    await service.start()
    code = await service.ended()
    config.write_text(good)
    check(code == 1 and not service.heard, "with a log where it may not write it refuses to start")
    check(service.log[-1].startswith("error: cannot write the access log `/var/log/access.jsonl`"), service.log[-1])


def fill(root, n_prompts):
    """A quality store by the installed embedder, filled up with made-up vectors like those of real prompts."""
    words = "add cut draw find keep list name plan read sort tell turn verb word year zone".split()
    lines = []
    for n in range(40):
        prompt = f"{random.choice(words)} " * 12 + f"number {n}"
        scores = {name: {"score": n % 5 / 4, "completion_tokens": 20 + n} for name in MODELS}
        lines.append(json.dumps({"id": f"p{n}", "prompt": prompt, "models": scores}))
    (root / "tmp/trace.jsonl").write_text("\n".join(lines) + "\n")
    said = chroot(root, "cema-router", "quality", "import", "--store", "/var/lib/cema-router/quality", "--trace", "/tmp/trace.jsonl", user=SERVICE)
    print("  import by the installed embedder: " + said.strip().splitlines()[-1])
    database = sqlite3.connect(root / "var/lib/cema-router/quality/quality.sqlite")
    rows = database.execute("SELECT text, embedder, embedding, format FROM prompts").fetchall()
    known = [(text, embedder, array.array("f", vector), form) for text, embedder, vector, form in rows]
    with database:
        for n in range(len(known), n_prompts):
            text, embedder, vector, form = known[n % len(known)]
            near = array.array("f", (x + random.gauss(0, 0.05) for x in vector))
            length = sum(x * x for x in near) ** 0.5
            near = array.array("f", (x / length for x in near))
            ord_ = database.execute(
                "INSERT INTO prompts (id, text, embedder, embedding, format) VALUES (?, ?, ?, ?, ?)",
                (f"p{n}", f"{text} {n} " * 4, embedder, near.tobytes(), form)).lastrowid
            database.executemany("INSERT INTO scores (prompt, model, score, completion_tokens) SELECT ?, ord, ?, 50 FROM models", [(ord_, n % 5 / 4)])
    database.close()


async def with_store(root, unit, n_prompts):
    """Memory idle, after requests, and, where the store has an index, idle after the next start, which maps it."""
    memory = {}
    async with Service(root, unit) as service:
        check(service.says("quality prediction is on"), "with a store it predicts, by /usr/lib/cema-router")
        memory["with store and embedder"] = await service.settled_mb()
        check(await ask("the-key", 100) == [200] * 100, "100 requests are answered")
        memory["after 100 requests"] = await service.settled_mb()
        store = root / "var/lib/cema-router/quality"
        for _ in range(300 if n_prompts > INDEXED_MIN else 0):
            if list(store.glob("*.usearch")):
                break
            await asyncio.sleep(1)
    if n_prompts > INDEXED_MIN:
        check(list(store.glob("*.usearch")), "the store has an index")
        async with Service(root, unit) as service:
            memory["with store and embedder, its index mapped"] = await service.settled_mb()
            check(await ask("the-key", 100) == [200] * 100, "100 requests are answered")
            memory["its index mapped, after 100 requests"] = await service.settled_mb()
    return memory


async def main(root, deb, n_prompts):
    raise_loopback()
    run("mount", "--make-rprivate", "/")
    before = install(root, deb)
    unit = Unit(root / f"usr/lib/systemd/system/{SERVICE}.service")
    analyse(root)
    memory = {"as installed": await as_installed(root, unit)}
    port = await Endpoint(tokens_per_s=2000, first_s=0.005).start()
    configure(root, port)
    await with_fleet(root, unit)
    await with_bad_disks(root, unit)
    fill(root, n_prompts)
    memory |= await with_store(root, unit, n_prompts)
    chroot(root, "dpkg", "--purge", SERVICE)
    for name in ("tmp/cema-router.deb", "tmp/trace.jsonl"):
        (root / name).unlink()
    left = sorted(files_of(root) - before)
    check(not left, f"a purge leaves nothing behind{': ' if left else ''}{', '.join(left)}")
    check(chroot(root, "getent", "passwd", SERVICE), "but its user")
    print("resident memory, idle:")
    for what, mb in memory.items():
        print(f"  {mb:6.1f} MB  {what}" + (f", {n_prompts} prompts" if what != "as installed" else ""))
    check(memory["as installed"] <= INSTALLED_MAX_MB, f"as installed at most {INSTALLED_MAX_MB} MB")
    check(max(memory.values()) <= STORE_MAX_MB, f"with all of it at most {STORE_MAX_MB} MB")


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
