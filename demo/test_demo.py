"""Tests of the demo's own logic, run by scripts/test.sh with the Python of .cache/sdk."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import questions
from client import Outcome
from fleet import FLEET
from measure import Speed
from router import config_text

HERE = Path(__file__).resolve().parent
WAIT_S = 10.0


class Questions(unittest.TestCase):
    def test_profile_and_live_share_no_question(self) -> None:
        profile, live = questions.load("profile"), questions.load("live")
        self.assertGreaterEqual(len(profile), 60)
        self.assertEqual(len(live), 30)
        self.assertEqual({q.prompt for q in profile} & {q.prompt for q in live}, set())

    def test_prompts_are_short(self) -> None:
        # About four characters to a token: 160 tokens at most for two shared cores.
        longest = max(len(q.prompt) for name in ("profile", "live") for q in questions.load(name))
        self.assertLess(longest, 4 * 160)

    def test_choice_is_the_first_letter_that_stands_as_an_answer(self) -> None:
        question = _question("mmlu", "C")
        for reply, score in [("C", 1.0), ("C. heart", 1.0), ("The answer is C.", 1.0), ("B. lung\nC. heart", 0.0)]:
            self.assertEqual(question.score(reply), score, reply)
        self.assertEqual(_question("mmlu", "A").score("A molecule with a rotational time"), 0.0)
        self.assertEqual(question.score(""), 0.0)

    def test_number_is_the_last_one(self) -> None:
        question = _question("gsm8k", "1200")
        for reply, score in [("1200", 1.0), ("3 * 400 = $1,200.", 1.0), ("1200.00", 1.0), ("1200 is not 12", 0.0), ("", 0.0)]:
            self.assertEqual(question.score(reply), score, reply)


class Predictions(unittest.TestCase):
    def test_header_becomes_numbers(self) -> None:
        outcome = Outcome(_question("mmlu", "A"), streamed=False)
        self.assertEqual(outcome.predicted, {})
        outcome.headers = {"x-cema-predicted": "quality=0.61;usd=0.00012;joules=35.2;seconds=1.84"}
        self.assertEqual(outcome.predicted, {"quality": 0.61, "usd": 0.00012, "joules": 35.2, "seconds": 1.84})


class Configuration(unittest.TestCase):
    def test_every_measured_figure_reaches_the_configuration(self) -> None:
        own = {"listen_port": 1, "admin_port": 2, "store": "/store"}
        speeds = [Speed(100.5 + i, 20.5 + i, 1.5 + i) for i in range(len(FLEET))]
        urls = [f"http://127.0.0.1:800{i}" for i in range(len(FLEET))]
        text = config_text(own, list(zip(FLEET, urls, speeds, strict=True)))
        for spec, url, speed in zip(FLEET, urls, speeds, strict=True):
            part = text.split(f"- name: {spec.node}\n")[1].split("- name: smollm")[1]
            self.assertIn(f"- url: {url}\n", text)
            self.assertIn(f"prefill_tps: {speed.prefill_tps}, decode_tps: {speed.decode_tps},", part)
            self.assertIn(f"batch_speedup: {speed.batch_speedup}, max_concurrency: {spec.slots}}}", part)
            self.assertIn(f"context_tokens: {spec.ctx_per_slot_tokens}\n", part)


class ChildProcesses(unittest.TestCase):
    def test_children_end_with_a_killed_parent(self) -> None:
        if not sys.platform.startswith("linux"):
            self.skipTest("the kernel's parent-death signal is Linux only")
        self._child_ends_after(signal.SIGKILL)

    def test_children_end_with_an_interrupted_parent(self) -> None:
        self._child_ends_after(signal.SIGINT)

    def _child_ends_after(self, signum: signal.Signals) -> None:
        program = (
            "import signal, sys; from pathlib import Path; from children import Children\n"
            # A shell's background job is started with SIGINT ignored.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "with Children() as children:\n"
            "    print(children.start(['sleep', '600'], Path('/dev/null')).pid, flush=True)\n"
            "    signal.pause()\n"
        )
        command = [sys.executable, "-B", "-c", program]
        with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            self.assertTrue(_runs(child))
            parent.send_signal(signum)
            try:
                parent.wait(WAIT_S)
            finally:
                parent.kill()
        deadline = time.monotonic() + WAIT_S
        while _runs(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertFalse(_runs(child))


def _question(benchmark: str, answer: str) -> questions.Question:
    return questions.Question("id", benchmark, benchmark, "prompt", answer)


def _runs(pid: int) -> bool:
    """Whether a process is there and not a zombie that nobody has collected yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self/stat").exists():
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    unittest.main()
