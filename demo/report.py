"""Tables for people: what was asked, where it went, what was predicted and what happened."""

import statistics
from collections import Counter
from collections.abc import Iterable

from client import Outcome

_COLUMNS = (
    ("request", 32),
    ("sent", 6),
    ("destination", 15),
    ("quality", 7),
    ("USD", 9),
    ("J", 6),
    ("s", 6),
    ("actual s", 8),
    ("ttft s", 6),
    ("tokens", 6),
    ("wait ms", 7),
    ("tries", 5),
    ("right", 5),
)


def table(title: str, outcomes: list[Outcome]) -> str:
    """One line per request. `quality`, `USD`, `J` and `s` are the router's predictions."""
    lines = ["", title, "  " + " ".join(name.ljust(width) for name, width in _COLUMNS)]
    lines.append("  " + " ".join("-" * width for _, width in _COLUMNS))
    lines += ["  " + _row(outcome) for outcome in outcomes]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    predicted = outcome.predicted
    cells = [
        outcome.question.label,
        "stream" if outcome.streamed else "whole",
        outcome.header("destination"),
        _number(predicted.get("quality"), ".2f"),
        _number(predicted.get("usd"), ".7f"),
        _number(predicted.get("joules"), ".1f"),
        _number(predicted.get("seconds"), ".2f"),
        f"{outcome.total_s:.2f}",
        _number(outcome.ttft_s, ".2f"),
        str(outcome.completion_tokens),
        outcome.header("window-ms"),
        outcome.header("attempts"),
        "FAIL" if outcome.error else ("yes" if outcome.score else "no"),
    ]
    return " ".join(cell[:width].ljust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True)).rstrip()


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def spread(destinations: Iterable[str]) -> str:
    """How many requests went to each destination."""
    return ", ".join(f"{name} {count}" for name, count in sorted(Counter(destinations).items())) or "nowhere"


def summary(outcomes: list[Outcome], elapsed_s: float) -> str:
    """Totals: answered, spread over the fleet, accuracy of the predicted time."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    where = spread(outcome.header("destination") for outcome in answered)
    lines = [f"  {len(answered)} of {len(outcomes)} answered in {elapsed_s:.1f} s: {where}"]
    errors = [abs(o.predicted["seconds"] / o.served_s - 1) for o in answered if "seconds" in o.predicted]
    if errors:
        error_pct = 100 * statistics.median(errors)
        lines.append(f"  predicted time against actual, from leaving the window on: median error {error_pct:.0f} %")
    if answered:
        tokens = sum(outcome.completion_tokens for outcome in answered)
        right = sum(outcome.score for outcome in answered)
        lines.append(f"  {right:.0f} of {len(answered)} right, {tokens} tokens ({tokens / elapsed_s:.0f} a second in all)")
    return "\n".join(lines)
