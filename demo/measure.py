"""Measures the fleet: speed of each server (calibration) and answers to the profile questions (quality profile)."""

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fleet import Server, chat, fleet_shape
from questions import MAX_TOKENS, Question

SOLO_S = 8.0
FULL_S = 12.0
CALIBRATION_TOKENS = 24


@dataclass(frozen=True)
class Speed:
    """What the router's configuration wants to know about one server."""

    prefill_tps: float
    decode_tps: float
    batch_speedup: float


def measured(servers: list[Server], questions: list[Question], profile: Path, speeds: Path) -> dict[str, Speed]:
    """Speeds by node; measures and writes `profile` and `speeds` unless they were made for this very fleet."""
    key = _key(questions)
    if profile.exists() and speeds.exists():
        stored = json.loads(speeds.read_text())
        if stored["key"] == key:
            print(f"  recorded earlier on this fleet: {profile} (delete it to record again)", flush=True)
            return {node: Speed(**speed) for node, speed in stored["speeds"].items()}
    by_node = calibrate(servers, questions)
    record_profile(servers, questions, profile)
    stored = {"key": key, "speeds": {node: vars(speed) for node, speed in by_node.items()}}
    speeds.write_text(json.dumps(stored, indent=1) + "\n")
    return by_node


def _key(questions: list[Question]) -> str:
    """Changes whenever a recorded profile would no longer hold: fleet, machine size, questions, or how they are asked."""
    shape = [fleet_shape(), os.cpu_count(), MAX_TOKENS, [question.prompt for question in questions]]
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def calibrate(servers: list[Server], questions: list[Question]) -> dict[str, Speed]:
    """Speeds as the demo will meet them: all three servers work at the same time, for they share this machine's cores.

    First one request at a time on each (prefill and decode speed alone on the endpoint, the paper's F_1), then
    every slot of each (speed-up of a full serving batch, F_B / F_1).
    """
    solo = _load_all(servers, questions, SOLO_S, full=False)
    full = _load_all(servers, questions, FULL_S, full=True)
    speeds = {}
    for server in servers:
        prefill_tps, decode_tps = _rates([reply for stream in solo[server.spec.node] for reply in stream.replies])
        work_per_s = sum(stream.work_s(prefill_tps, decode_tps) / stream.elapsed_s for stream in full[server.spec.node])
        speedup = min(max(1.0, work_per_s), float(server.spec.slots))
        speeds[server.spec.node] = Speed(round(prefill_tps, 1), round(decode_tps, 1), round(speedup, 2))
        print(
            f"  {server.spec.node:7} prefill {prefill_tps:5.0f} tok/s, decode {decode_tps:5.1f} tok/s, "
            f"{server.spec.slots} slots at once {speedup:.2f} times as fast as one by one",
            flush=True,
        )
    return speeds


@dataclass
class _Stream:
    """What one client saw in its time box: llama.cpp's own `timings` of every reply, and the time they took in all."""

    replies: list[dict[str, float]]
    elapsed_s: float

    def work_s(self, prefill_tps: float, decode_tps: float) -> float:
        """The replies' service time had each been alone on the endpoint."""
        return sum(reply["prompt_n"] / prefill_tps + reply["predicted_n"] / decode_tps for reply in self.replies)


def _load_all(servers: list[Server], questions: list[Question], box_s: float, *, full: bool) -> dict[str, list[_Stream]]:
    streams = [(server, index) for server in servers for index in range(server.spec.slots if full else 1)]
    what = "every slot" if full else "one request at a time"
    print(f"  calibrating, {what} on each server, {box_s:.0f} s", flush=True)
    with ThreadPoolExecutor(len(streams)) as pool:
        jobs = [(server.spec.node, pool.submit(_stream, server, questions[index::4], box_s, full)) for server, index in streams]
        by_node: dict[str, list[_Stream]] = {server.spec.node: [] for server in servers}
        for node, job in jobs:
            by_node[node].append(job.result())
    return by_node


def _stream(server: Server, questions: list[Question], box_s: float, full: bool) -> _Stream:
    """Ask one question after the other for `box_s`. Each gets a line of its own so that no prefix is in the cache."""
    started = time.monotonic()
    replies: list[dict[str, float]] = []
    while time.monotonic() - started < box_s:
        question = questions[len(replies) % len(questions)]
        body = question.body(server.spec.model)
        text = f"{'Full' if full else 'Solo'} {len(replies)}. {question.prompt}"
        body["messages"] = [{"role": "user", "content": text}]
        body |= {"max_tokens": CALIBRATION_TOKENS, "ignore_eos": True}
        replies.append(chat(server, body)["timings"])
    return _Stream(replies, time.monotonic() - started)


def _rates(replies: list[dict[str, float]]) -> tuple[float, float]:
    prefill_tps = 1e3 * sum(r["prompt_n"] for r in replies) / sum(r["prompt_ms"] for r in replies)
    decode_tps = 1e3 * sum(r["predicted_n"] for r in replies) / sum(r["predicted_ms"] for r in replies)
    return prefill_tps, decode_tps


def record_profile(servers: list[Server], questions: list[Question], path: Path) -> None:
    """Ask every question of every server and write one row per question: the trace format of `quality import`."""
    progress = _Progress("  profile", len(servers) * len(questions))
    replies: dict[str, list[dict[str, object]]] = {}
    pools = {server.spec.model: ThreadPoolExecutor(server.spec.slots) for server in servers}
    try:
        jobs = {
            server.spec.model: [pools[server.spec.model].submit(_ask, server, question, progress) for question in questions]
            for server in servers
        }
        replies = {model: [job.result() for job in of_model] for model, of_model in jobs.items()}
    finally:
        for pool in pools.values():
            pool.shutdown(cancel_futures=True)
    rows = []
    for index, question in enumerate(questions):
        of_models = {model: replies[model][index] for model in replies}
        row = {"id": question.id, "source": "demo", "benchmark": question.benchmark, "task": question.task}
        row |= {"prompt": question.prompt, "prompt_tokens": next(iter(of_models.values()))["prompt_tokens"]}
        keep = ("score", "completion_tokens")
        row["models"] = {model: {k: reply[k] for k in keep} for model, reply in of_models.items()}
        rows.append(row)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    for model, of_model in replies.items():
        right = sum(reply["score"] for reply in of_model)
        print(f"  {model}: {right:.0f} of {len(questions)} right", flush=True)


def _ask(server: Server, question: Question, progress: "_Progress") -> dict[str, object]:
    reply = chat(server, question.body(server.spec.model))
    text = reply["choices"][0]["message"]["content"] or ""
    progress.step()
    usage = reply["usage"]
    tokens = {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"]}
    return {"score": question.score(text), **tokens}


class _Progress:
    """A counter that several threads advance; says so every tenth."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def step(self) -> None:
        with self._lock:
            self._done += 1
            if self._done * 10 // self._total > (self._done - 1) * 10 // self._total:
                elapsed_s = time.monotonic() - self._started
                print(f"{self._label}: {self._done} of {self._total} answers, {elapsed_s:.0f} s", flush=True)
