"""llm, the command line tool, with an OpenAI-compatible model of its extra-openai-models.yaml."""

import os
import tempfile
from pathlib import Path

from checklist import ANYTHING, BASE_URL, BROKEN, KEY, MODEL, OVERFLOW, UNICODE
from checklist import check, equal, everywhere, expect, last_body, run

HOME = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = HOME.name  # read when `llm` is imported
Path(HOME.name, "extra-openai-models.yaml").write_text(
    "".join(
        f"- {{model_id: {name}, model_name: {model}, api_base: '{BASE_URL}', api_key_name: routed}}\n"
        for name, model in (("routed", MODEL), ("unknown", "acme/none"), ("broken", BROKEN))
    )
)

from click.testing import CliRunner, Result  # noqa: E402
from llm.cli import cli  # noqa: E402


def llm(text: str, *further: str, model: str = "routed", key: str = KEY) -> Result:
    """The command in this process: seven starts of its own would take most of the time."""
    return CliRunner().invoke(cli, ["prompt", "-m", model, "--key", key, "--no-log", *further, text])


def said(outcome: Result) -> str:
    equal((outcome.exit_code, outcome.stderr), (0, ""))
    return outcome.stdout.rstrip("\n")


@everywhere
def answers():
    expect(said(llm(ANYTHING, "-o", "max_tokens", "8")), "no content")
    expect(said(llm(ANYTHING, "-o", "max_tokens", "8", "--no-stream")), "no content")


@check
def deltas_come_in_order():
    equal(said(llm(f"say {UNICODE}")), UNICODE)
    expect('"include_usage":' in last_body(), "this client does not ask for usage any more")


@check
def errors_end_it():
    for outcome, words in (
        (llm("say hi", key="sk-wrong"), "API key"),
        (llm("say hi", model="unknown"), "acme/none"),
        (llm("overflow"), OVERFLOW),
        (llm("break", model="broken"), "engine stopped"),
        (llm("cut", model="broken"), ""),
    ):
        expect(outcome.exit_code != 0 and words in outcome.stderr, (outcome, outcome.output))


run()
