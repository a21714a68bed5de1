"""A headless Chromium, driven over the DevTools protocol with the standard library alone."""

import asyncio
import base64
import json
import os
import secrets
import shutil
import struct
import tempfile


class Chromium:
    """`async with Chromium() as browser: page = await browser.open(url, width, dark)`."""

    async def __aenter__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise FileNotFoundError("no chromium: apt-get install chromium")
        self.folder = tempfile.TemporaryDirectory()
        self.process = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
            f"--user-data-dir={self.folder.name}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
        async for line in self.process.stderr:
            if b"DevTools listening on" in line:
                url = line.decode().split()[-1]
                break
        else:
            raise RuntimeError("chromium did not start")
        # Its further messages are of no interest, but must be read.
        self.drain = asyncio.create_task(self.process.stderr.read())
        self.number, self.answers, self.problems = 0, {}, []
        await self.connect(url)
        return self

    async def __aexit__(self, *_):
        self.reading.cancel()
        self.process.terminate()
        await self.process.wait()
        self.drain.cancel()
        self.folder.cleanup()

    async def connect(self, url):
        host, path = url.removeprefix("ws://").split("/", 1)
        name, port = host.split(":")
        self.reader, self.writer = await asyncio.open_connection(name, int(port))
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.writer.write((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                           f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        await self.reader.readuntil(b"\r\n\r\n")
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        whole = b""
        while True:
            first, second = await self.reader.readexactly(2)
            length = second & 127
            if length == 126:
                length = struct.unpack(">H", await self.reader.readexactly(2))[0]
            elif length == 127:
                length = struct.unpack(">Q", await self.reader.readexactly(8))[0]
            whole += await self.reader.readexactly(length)
            if not first & 128:
                continue
            message, whole = json.loads(whole), b""
            if "id" in message:
                self.answers.pop(message["id"]).set_result(message)
            elif message["method"] == "Runtime.exceptionThrown":
                self.problems.append(message["params"]["exceptionDetails"].get("exception", {}).get("description"))
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.problems.append(message["params"]["entry"]["text"] + " " + message["params"]["entry"].get("url", ""))

    async def send(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data, mask = json.dumps(message).encode(), os.urandom(4)
        length = len(data)
        head = bytes([129]) + (bytes([128 | length]) if length < 126 else bytes([254]) + struct.pack(">H", length)
                               if length < 65536 else bytes([255]) + struct.pack(">Q", length))
        answer = self.answers[self.number] = asyncio.get_running_loop().create_future()
        self.writer.write(head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))
        message = await asyncio.wait_for(answer, 30)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    async def open(self, url, width=1280, height=900, dark=False):
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await page.send("Emulation.setEmulatedMedia", features=scheme)
        await page.send("Page.navigate", url=url)
        return page


class Page:
    """One tab."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    async def send(self, method, **params):
        return await self.browser.send(method, self.session, **params)

    async def run(self, script):
        """The value of an expression in the page; promises are awaited."""
        result = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def until(self, script, what, seconds=20):
        for _ in range(seconds * 10):
            if await self.run(script):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"waited {seconds} s for {what}")

    async def press(self, key, code=None):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "End": 35, "Home": 36}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, text=text if kind == "keyDown" else "",
                            windowsVirtualKeyCode=codes[key])

    async def screenshot(self, path, whole=True):
        height = await self.run("document.documentElement.scrollHeight")
        width = await self.run("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
