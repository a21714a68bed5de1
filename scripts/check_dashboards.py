"""Runs every expression of dashboards/ on a real Prometheus that scrapes a loaded router: usage check_dashboards.py BINARY

Needs prometheus and promtool (Debian: apt-get install prometheus). Exits 1 with the expressions that do not parse or have no
data. `promtool` checks the metrics and the alert rules too."""

import asyncio
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse

from router_process import Router
from stub_fleet import Endpoint, config, load, request

ROOT = pathlib.Path(__file__).parent.parent
# Only there with a quality store and an embedder, or with an engine of a certain kind.
WITHOUT_DATA = re.compile(r"cema_embed_duration|cema_quality_source_total\{source=\"store\"|cema_slot_cap_mismatch|cema_profile_drift|cema_prefix_found|cema_embed_cache")
LOAD_S = 25

SECTIONS = """
auth:
  keys: [{name: check, key_env: CHECK_KEY, allow_weights: true}, {name: narrow, key_env: NARROW_KEY, requests_per_minute: 2}]
limits: {max_queued_requests: 6}
timeouts: {head_ms: 300}
window: {max_ms: 200}
breaker: {failures: 50}
decision_log: {path: decisions.jsonl}
quality: {store: /nonexistent}
"""


def expressions():
    """Board or alert, panel, expression with its variables filled in."""
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", "20s").replace("$destination", ".*")
                yield path.name, panel["title"], expr
    rules = (ROOT / "dashboards/alerts.yaml").read_text()
    for name, expr in re.findall(r"alert: (\w+)\n\s+expr: (.+)", rules):
        measured, op, _ = re.fullmatch(r"(.+) (<|>) (\S+)", expr).groups()
        yield "alerts.yaml", name, expr
        yield "alerts.yaml", f"{name}, what is measured", re.sub(r"\[\d+m\]", "[20s]", measured)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def slow_client(api):
    """One that begins a head and does not go on: it is cut."""
    at = urllib.parse.urlsplit(api)
    _, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\n")
    await asyncio.sleep(2)
    writer.close()


def promtool(*args, text=None):
    done = subprocess.run(["promtool", *args], input=text, capture_output=True, text=True)
    return done.returncode == 0 and not done.stderr.strip(), done.stdout + done.stderr


async def main(binary):
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not there: apt-get install prometheus")
    os.environ |= {"CHECK_KEY": "check-key", "NARROW_KEY": "narrow-key"}
    ports = [await endpoint.start() for endpoint in (Endpoint(150), Endpoint(90), Endpoint(60, fails=0.05, busy=0.02), Endpoint(60))]
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.yaml")
        with open(path, "w") as file:
            file.write(config(ports, SECTIONS))
        async with Router(binary, path) as router:
            port = free_port()
            scrape = {"scrape_configs": [{"job_name": "cema-router", "scrape_interval": "1s", "static_configs": [{"targets": [urllib.parse.urlsplit(router.admin_url).netloc]}]}],
                      "rule_files": [str(ROOT / "dashboards/alerts.yaml")]}
            with open(os.path.join(folder, "prometheus.yml"), "w") as file:
                json.dump(scrape, file)
            prometheus = await asyncio.create_subprocess_exec(
                "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
            over = asyncio.Event()
            key = {"authorization": "Bearer check-key"}
            loading = [asyncio.create_task(load(router.api, 16, over, bad=0.02, headers=key)),
                       asyncio.create_task(load(router.api, 1, over, headers={"authorization": "Bearer narrow-key"}))]
            with open(path, "a") as file:
                file.write("nonsense: true\n")
            for _ in range(LOAD_S):
                await slow_client(router.api) if _ % 8 == 0 else await asyncio.sleep(1)
                if _ == 5:
                    await router.admin("/admin/v1/reload", "POST")
            metrics = (await router.admin("/metrics"))[1].decode()
            query = f"http://127.0.0.1:{port}/api/v1/query?"
            n = 0
            for where, title, expr in expressions():
                n += 1
                _, _, answer = await request(query + urllib.parse.urlencode({"query": expr}))
                answer = json.loads(answer)
                is_alert = where == "alerts.yaml" and "measured" not in title
                if answer["status"] != "success":
                    bad.append(f"{where}, {title}: {answer.get('error')}")
                elif not answer["data"]["result"] and not is_alert and not WITHOUT_DATA.search(expr):
                    bad.append(f"{where}, {title}: no data: {expr}")
            _, _, rules = await request(f"http://127.0.0.1:{port}/api/v1/rules")
            bad += [f"alert {rule['name']}: {rule['lastError']}" for group in json.loads(rules)["data"]["groups"] for rule in group["rules"] if rule.get("lastError")]
            over.set()
            counts = [await one for one in loading]
            prometheus.terminate()
            await prometheus.wait()
    for name, (is_clean, said) in {"check metrics": promtool("check", "metrics", text=metrics), "check rules": promtool("check", "rules", str(ROOT / "dashboards/alerts.yaml"))}.items():
        if not is_clean:
            bad.append(f"promtool {name}: {said}")
    exported = set(re.findall(r"^# TYPE (\w+)", metrics, re.M))
    named = {name for _, _, expr in expressions() for name in re.findall(r"cema_[a-z_]+", expr)}
    unknown = {name for name in named if not any(name.removesuffix(end) in exported for end in ("", "_bucket", "_sum", "_count"))}
    bad += [f"{name} is not exported" for name in sorted(unknown) if not WITHOUT_DATA.search(name)]
    print(f"{n} expressions of {len(list((ROOT / 'dashboards').glob('*.json')))} boards and the alert rules, requests {counts}: {len(bad)} bad")
    for line in bad:
        print(" -", line)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
