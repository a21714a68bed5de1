"""Clicks through the status page in a real headless Chromium, over a loaded router: usage check_status_page.py BINARY [SHOTS]

Exits 1 with what is wrong. With SHOTS, a folder, it leaves screenshots there: 1280 and 360 px, light and dark."""

import asyncio
import json
import os
import sys
import tempfile

from chromium import Chromium
from router_process import Router
from stub_fleet import Endpoint, config, load


async def check(page, browser, router, width):
    await page.until("document.querySelectorAll('#fleet tbody tr').length === 4", "the fleet")
    await page.until("document.querySelectorAll('#decisions tbody tr').length > 3", "decisions")
    await page.until("document.querySelectorAll('#outcome .bar').length === 8", "an outcome of what-if")
    overflow = await page.run("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"{width} px: the page is {overflow} px too wide"
    assert await page.run("document.querySelectorAll('#fleet svg.spark polyline').length") == 4

    # The slider, by keyboard: energy alone draws less.
    for term, key in (("quality", "Home"), ("cost", "Home"), ("time", "Home"), ("energy", "End")):
        await page.run(f"document.getElementById('w-{term}').focus()")
        await page.press(key)
    await page.until("document.getElementById('v-energy').textContent === '1.00'", "the slider to move")
    await page.until("/gone elsewhere/.test(document.getElementById('outcome').textContent)", "the outcome")
    weights = json.loads((await router.admin("/admin/v1/destinations"))[1])["weights"]
    assert abs(weights["energy"] - 0.25) < 1e-9, "nothing is applied"
    await page.run("document.getElementById('in-force').click()")
    await page.until("document.getElementById('v-energy').textContent === '0.25'", "the weights in force")

    # Reasons, by keyboard: focus a request, press Enter.
    await page.run("document.querySelector('[data-request]').focus()")
    await page.press("Enter")
    await page.until("!document.getElementById('reasons').hidden", "the reasons")
    assert await page.run("document.activeElement.id") == "reasons", "the reasons have the focus"
    assert await page.run("document.querySelectorAll('#candidates tbody tr').length") == 4
    assert await page.run("document.querySelectorAll('#candidates tr.chosen').length") == 1
    overflow = await page.run("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"{width} px with reasons: {overflow} px too wide"

    # Every control can be reached by Tab and shows that it has the focus.
    await page.run("document.activeElement.blur()")
    reached = set()
    for _ in range(80):
        await page.press("Tab")
        reached.add(await page.run("document.activeElement.id || document.activeElement.dataset.drain || document.activeElement.dataset.request || ''"))
    for wanted in ("w-quality", "w-time", "in-force", "close", "cloud-a/large"):
        assert wanted in reached, f"Tab does not reach {wanted}: {sorted(reached)}"

    # Drain and resume.
    await page.run("document.querySelector('[data-drain=\"edge-3/small\"]').click()")
    await page.until("/Resume/.test(document.querySelector('[data-drain=\"edge-3/small\"]').textContent)", "the endpoint to drain")
    await page.run("document.querySelector('[data-drain=\"edge-3/small\"]').click()")
    await page.until("/Drain/.test(document.querySelector('[data-drain=\"edge-3/small\"]').textContent)", "it to be resumed")
    unlabelled = await page.run(
        "[...document.querySelectorAll('button, input')].filter(e => e.offsetParent && !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length")
    assert unlabelled == 0, "a control without a name"
    outside = await page.run("performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin)).length")
    assert outside == 0, "something is loaded from elsewhere"
    assert not browser.problems, browser.problems


async def main(binary, shots):
    ports = [await endpoint.start() for endpoint in (Endpoint(150), Endpoint(90), Endpoint(60), Endpoint(60))]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.yaml")
        with open(path, "w") as file:
            file.write(config(ports))
        async with Router(binary, path) as router, Chromium() as browser:
            over = asyncio.Event()
            loading = asyncio.create_task(load(router.api, 14, over))
            await asyncio.sleep(4)
            for width in (1280, 360):
                for dark in (False, True):
                    page = await browser.open(router.admin_url + "/", width, 900 if width > 600 else 740, dark)
                    await check(page, browser, router, width)
                    if shots:
                        os.makedirs(shots, exist_ok=True)
                        await page.run("window.scrollTo(0, 0); document.activeElement.blur()")
                        await asyncio.sleep(2.5)
                        await page.screenshot(os.path.join(shots, f"status-{width}-{'dark' if dark else 'light'}.png"))
            over.set()
            counts = await loading
            assert set(counts) == {200}, counts
    print(f"status page: 1280 and 360 px, light and dark, all as it should be; {counts[200]} requests beside")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
