"""Endpoints that answer without a model, and load for them: what checks of dashboards, status page and reloads run on.

Standard library only. `Endpoint` serves /health and chat completions, streamed or not, at a given speed; `fails` in [0, 1]
is the share of requests it answers with 500, `busy` with 429."""

import asyncio
import json
import random
import urllib.parse


async def read_head(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {}
    for line in head[1:]:
        if ":" in line:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
    return method, path, headers


async def read_body(reader, headers):
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while True:
            size = int((await reader.readline()).strip() or b"0", 16)
            chunk = await reader.readexactly(size)
            await reader.readline()
            if size == 0:
                return body
            body += chunk
    return await reader.readexactly(int(headers.get("content-length", 0)))


class Endpoint:
    """One server; `await start()` gives its port."""

    def __init__(self, tokens_per_s=200.0, first_s=0.03, fails=0.0, busy=0.0):
        self.tokens_per_s, self.first_s, self.fails, self.busy = tokens_per_s, first_s, fails, busy
        self.n_served = 0

    async def start(self, port=0):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        try:
            while True:
                method, path, headers = await read_head(reader)
                body = await read_body(reader, headers)
                await self.answer(writer, method, path, body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, method, path, body):
        if path == "/health":
            return self.whole(writer, 200, b"{}")
        if method != "POST":
            return self.whole(writer, 404, b"{}")
        asked = json.loads(body)
        fate = random.random()
        if fate < self.fails:
            return self.whole(writer, 500, b'{"error":{"message":"broken","type":"server_error","code":null}}')
        if fate < self.fails + self.busy:
            return self.whole(writer, 429, b'{"error":{"message":"busy","type":"rate_limit","code":null}}', "retry-after: 1\r\n")
        n_tokens = min(asked.get("max_tokens") or 60, random.randint(8, 60))
        n_prompt = len(body) // 4
        self.n_served += 1
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens}
        await asyncio.sleep(self.first_s)
        if not asked.get("stream"):
            await asyncio.sleep(n_tokens / self.tokens_per_s)
            message = {"role": "assistant", "content": "word " * n_tokens}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "c", "object": "chat.completion", "model": asked["model"], "choices": [choice], "usage": usage}
            return self.whole(writer, 200, json.dumps(answer).encode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event = {"id": "c", "object": "chat.completion.chunk", "model": asked["model"]}
        for _ in range(n_tokens):
            choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
            self.event(writer, event | {"choices": [choice]})
            await writer.drain()
            await asyncio.sleep(1 / self.tokens_per_s)
        self.event(writer, event | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if (asked.get("stream_options") or {}).get("include_usage"):
            self.event(writer, event | {"choices": [], "usage": usage})
        self.chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def event(self, writer, event):
        self.chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def chunk(self, writer, data):
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def whole(self, writer, status, body, more=""):
        reason = {200: "OK", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}[status]
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        writer.write(head.encode() + body)


async def request(url, method="GET", body=None, headers=None):
    """One request over a connection of its own: status, headers, body."""
    at = urllib.parse.urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        path = (at.path or "/") + ("?" + at.query if at.query else "")
        data = json.dumps(body).encode() if body is not None else b""
        fields = {"host": at.netloc, "connection": "close", "content-length": str(len(data))} | (headers or {})
        if data:
            fields.setdefault("content-type", "application/json")
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(head.encode() + b"\r\n" + data)
        await writer.drain()
        while True:
            status_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(status_line.split(" ")[1])
            if status >= 200:
                break
        answered = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        return status, answered, await (read_body(reader, answered) if "transfer-encoding" in answered else reader.read())
    finally:
        writer.close()


WORDS = "route batch token engine window queue latency energy price quality cloud edge model request".split()


def chat(model, stream=False, max_tokens=60):
    """A request with a prompt of its own."""
    text = " ".join(random.choice(WORDS) for _ in range(random.randint(5, 120)))
    return {"model": model, "stream": stream, "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}


async def load(api, n_clients, until, models=("auto",), streams=0.5, bad=0.0, headers=None):
    """Clients that send one request after the other until the event `until`; counts by status, and what went wrong."""
    counts = {}

    async def client():
        while not until.is_set():
            model = "nobody" if random.random() < bad else random.choice(models)
            try:
                status, _, body = await request(api + "/v1/chat/completions", "POST", chat(model, random.random() < streams), headers)
                if status == 200 and b"error" in body[-400:]:
                    status = "error in the answer"
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                status = type(error).__name__
            counts[status] = counts.get(status, 0) + 1
            if status != 200:
                await asyncio.sleep(0.02)

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return counts


def config(ports, sections="", api_port=0, admin_port=0):
    """A configuration over stub endpoints: one cloud node, the others at the edge, each dearer and better than the next."""
    lines = [f"listen: 127.0.0.1:{api_port}", f"admin_listen: 127.0.0.1:{admin_port}", sections.rstrip(), "nodes:"]
    figures = [
        ("cloud-a", "cloud", "large", 0.82, 0.9, 300, 60, 150, 8),
        ("edge-1", "edge", "medium", 0.66, 0.2, 120, 25, 90, 4),
        ("edge-2", "edge", "small", 0.45, 0.0, 40, 8, 60, 2),
        ("edge-3", "edge", "small", 0.45, 0.0, 35, 8, 60, 2),
    ]
    for port, (node, kind, model, quality, usd, watts, idle, tps, slots) in zip(ports, figures):
        lines += [
            f"  - name: {node}",
            f"    class: {kind}",
            f"    power: {{board_watts: {watts}, idle_watts: {idle}}}",
            f"    endpoints:",
            f"      - url: http://127.0.0.1:{port}",
            f"        kind: vllm",
            f"        models:",
            f"          - name: {model}",
            f"            quality_prior: {quality}",
            f"            price: {{prompt_usd_per_mtok: {usd}, completion_usd_per_mtok: {3 * usd}}}",
            f"            throughput: {{prefill_tps: 3000, decode_tps: {tps}, batch_speedup: {max(1, slots / 1.6)}, max_concurrency: {slots}}}",
        ]
    return "\n".join(line for line in lines if line) + "\n"
