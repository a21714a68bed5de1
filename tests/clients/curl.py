"""curl, as people try an API."""

import json
import subprocess

from checklist import ANYTHING, BASE_URL, BROKEN, KEY, MODEL, UNICODE
from checklist import answers_cut, check, equal, everywhere, expect, expect_upstream_closed, run


def curl(path: str, *further: str, key: str = KEY) -> subprocess.CompletedProcess:
    command = ["curl", "--silent", "--show-error", "--max-time", "50", "--header", f"Authorization: Bearer {key}"]
    command += ["--write-out", "%{stderr}%{http_code} %{content_type}", *further, BASE_URL + path]
    return subprocess.run(command, capture_output=True, text=True)


def ask(text: str, *further: str, **members: object) -> subprocess.CompletedProcess:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 8, **members}
    return curl("/chat/completions", "--header", "Content-Type: application/json", "--data", json.dumps(body), *further)


@everywhere
def whole_answer():
    answer = ask(ANYTHING)
    equal((answer.returncode, answer.stderr.split(";")[0]), (0, "200 application/json"))
    expect(json.loads(answer.stdout)["choices"][0]["message"]["content"], answer)


@everywhere
def streamed_answer():
    answer = ask(ANYTHING, "--no-buffer", stream=True)
    equal((answer.returncode, answer.stderr), (0, "200 text/event-stream"))
    expect(answer.stdout.endswith("data: [DONE]\n\n"), answer)


@everywhere
def models():
    listed = json.loads(curl("/models").stdout)
    expect(MODEL in [model["id"] for model in listed["data"]], listed)
    equal(json.loads(curl(f"/models/{MODEL}").stdout)["id"], MODEL)


@check
def unicode_and_large_bodies_pass():
    equal(json.loads(ask(f"say {UNICODE}").stdout)["choices"][0]["message"]["content"], UNICODE)
    # Beyond 1 MB curl asks for `100 Continue` first.
    words = "x" * 1_500_000
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": f"say {words}"}]})
    command = ["curl", "--silent", "--max-time", "50", "--header", f"Authorization: Bearer {KEY}", "--data-binary", "@-"]
    command += ["--header", "Content-Type: application/json", f"{BASE_URL}/chat/completions"]
    refused = subprocess.run(command, input=body, capture_output=True, text=True)
    answer = json.loads(refused.stdout)
    equal(answer["error"]["code"], "context_length_exceeded")


@check
def embeddings_and_content_types():
    json_type = ("--header", "Content-Type: application/json")
    body = json.dumps({"model": "acme/embed", "input": "a"})
    answer = json.loads(curl("/embeddings", *json_type, "--data", body).stdout)
    equal(answer["data"][0]["embedding"], [0, 0.5])
    # What curl sends without a header is no JSON.
    equal(curl("/embeddings", "--data", body).stderr.split(";")[0], "415 application/json")


@check
def errors_are_json():
    for answer, status in (
        (curl("/models", key="sk-wrong"), 401),
        (ask("say hi", model="acme/none"), 404),
        (curl("/no/such/path"), 404),
        (curl("/chat/completions"), 405),
        (ask("overflow"), 400),
    ):
        equal(answer.stderr.split(";")[0], f"{status} application/json")
        expect(json.loads(answer.stdout)["error"]["message"], answer)


@check
def broken_streams_end_with_an_error():
    for scenario in ("break", "cut"):
        answer = ask(scenario, "--no-buffer", model=BROKEN, stream=True)
        expect('"error"' in answer.stdout, answer)
    equal(answer.returncode, 18)  # the body ends before its end


@check
def leaving_stops_the_endpoint():
    before = answers_cut()
    equal(ask("endless", "--max-time", "0.5", stream=True).returncode, 28)
    expect_upstream_closed(before)


run()
