"""Reloads under load: usage check_reloads.py BINARY [N]

N reloads (1000), files that are valid and files that are broken in turn; of the valid ones some change settings, some the
fleet. Says what failed, and memory, threads and open files before, between and after."""

import asyncio
import json
import os
import sys
import tempfile

from router_process import Router
from stub_fleet import Endpoint, config, load


async def main(binary, n_reloads):
    ports = [await endpoint.start() for endpoint in (Endpoint(3000, 0.005), Endpoint(3000, 0.005), Endpoint(3000, 0.005), Endpoint(3000, 0.005))]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.yaml")

        def write(n):
            if n % 2:
                text = "listen: nonsense\n"
            elif n % 4:
                text = config(ports[: 3 + n // 4 % 2])
            else:
                text = config(ports, f"routing: {{policy: {'greedy' if n % 8 else 'memetic'}, weights: {{quality: {1 + n % 3}, time: 1}}}}")
            with open(path + ".new", "w") as file:
                file.write(text)
            os.replace(path + ".new", path)

        write(0)
        async with Router(binary, path) as router:
            over, outcomes, seen = asyncio.Event(), {}, []
            loading = asyncio.create_task(load(router.api, 8, over))

            def look(n):
                seen.append((n, router.memory_kib() // 1024, router.n_threads(), router.n_descriptors()))
                print("after %4d reloads: %d MiB resident, %d threads, %d open files" % seen[-1], flush=True)

            await asyncio.sleep(3)
            look(0)
            for n in range(1, n_reloads + 1):
                write(n)
                status, body = await router.admin("/admin/v1/reload", "POST")
                answer = json.loads(body)
                outcome = answer["exchanged"] if status == 200 else answer["error"]["code"]
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
                await asyncio.sleep(0.05)
                if n % max(1, n_reloads // 5) == 0:
                    look(n)
            over.set()
            counts = await loading
            await asyncio.sleep(3)
            look(n_reloads)
    print(f"reloads {outcomes}; requests {counts}")
    failed = set(counts) != {200}
    grown = seen[-1][1] > 1.25 * seen[1][1] + 4 or seen[-1][2] > seen[0][2] + 2
    if failed or grown:
        sys.exit("requests failed" if failed else "it has grown")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000))
