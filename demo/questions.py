"""The demo's questions: how they are asked, how long an answer may get, and how answers are scored."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"

# Small figures: a 135M model on shared cores writes a few dozen tokens a second.
MAX_TOKENS = {"mmlu": 16, "gsm8k": 32}
_INSTRUCTION = {"mmlu": "Answer with one letter.", "gsm8k": "Give only the number."}
_LETTERS = "ABCD"
_CHOICE = re.compile(rf"\b([{_LETTERS}])(?=[.):,]|\s*$)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Question:
    """One benchmark question, as it is sent."""

    id: str
    benchmark: str
    task: str
    prompt: str
    answer: str

    @property
    def label(self) -> str:
        """Benchmark and subject, for people."""
        return self.benchmark if self.task == self.benchmark else f"{self.benchmark} {self.task}"

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS[self.benchmark]

    def body(self, model: str) -> dict[str, object]:
        """The chat request; the profile and the live run ask in the very same way."""
        messages = [{"role": "user", "content": self.prompt}]
        return {"model": model, "messages": messages, "max_tokens": self.max_tokens, "temperature": 0}

    def score(self, reply: str) -> float:
        """1.0 if the reply's first choice letter (MMLU) or its last number (GSM8K) is the key, else 0.0."""
        if self.benchmark == "mmlu":
            choice = _CHOICE.search(reply)
            return float(choice is not None and choice.group(1) == self.answer)
        numbers = _NUMBER.findall(reply)
        return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(self.answer.replace(",", "")))


def load(name: str) -> list[Question]:
    """The questions of `demo/data/{name}.jsonl`."""
    with (DATA / f"{name}.jsonl").open(encoding="utf-8") as rows:
        return [_question(json.loads(row)) for row in rows]


def _question(row: dict[str, object]) -> Question:
    benchmark = str(row["benchmark"])
    lines = [str(row["question"])]
    lines += [f"{_LETTERS[index]}. {choice}" for index, choice in enumerate(row.get("choices", []))]
    lines.append(_INSTRUCTION[benchmark])
    task = str(row.get("subject", benchmark))
    return Question(str(row["id"]), benchmark, task, "\n".join(lines), str(row["answer"]))
