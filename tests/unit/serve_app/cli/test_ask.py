"""`power-lever ask` against an ingress with stub engines, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from serve_app.__main__ import main
from serve_app.cli.ask import printable, waiting_line
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.served import served
from tests.support.terminal import on_a_terminal

Handler = Callable[[Request], Any]
CONFIG = {"type": "config", "data": {"tier": "eco", "target_model": "small", "gpu": "L4"}}


def token(text: str, *, accepted: bool = False) -> dict[str, Any]:
    return {"type": "token", "data": {"text": text, "spec_accepted": accepted}}


def error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, "retryable": True, "request_id": "1"}}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def ingress(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an ingress."""
    return stack.enter_context(served(LocalIngress(app_config(inference_mode="mock"), monkeypatch).app))


@pytest.fixture
def serve(stack: ExitStack) -> Callable[[Handler], str]:
    """Serve a handler as `POST /api/inference`; return the URL."""

    def start(handler: Handler) -> str:
        app = Starlette(routes=[Route("/api/inference", handler, methods=["POST"])])
        return stack.enter_context(served(app))

    return start


@pytest.fixture
def stream(serve: Callable[[Handler], str]) -> Callable[..., str]:
    """Serve a stream of these events; return the URL."""

    def start(*events: dict[str, Any]) -> str:
        async def pieces() -> AsyncIterator[str]:
            yield ": ping\n\n"
            for event in events:
                yield f"data: {json.dumps(event)}\n\n"

        async def answer(_: Request) -> Response:
            return StreamingResponse(pieces(), media_type="text/event-stream")

        return serve(answer)

    return start


def test_the_answer_alone_is_on_stdout_and_who_and_what_on_stderr(
    ingress: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["ask", "Hi there stub:tokens=3", "--url", ingress, "--power", "90", "--k", "2"]
    main([*asked, "--json"])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    answer = "".join(event["data"]["text"] for event in events if event["type"] == "token")
    assert main(asked) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{answer}\n"
    first, *reasons, last = captured.err.splitlines()
    assert first == "ultra: huge on H100"
    assert reasons[0].startswith("You set power to 90")
    assert last.startswith("3 tokens in ")
    assert " Wh modelled, " in last
    assert last.endswith(" USD")


def test_the_dials_limits_and_the_rest_are_fields_of_the_request(serve: Callable[[Handler], str]) -> None:
    bodies: list[Any] = []

    async def answer(request: Request) -> Response:
        bodies.append(await request.json())
        return JSONResponse({"error": {"code": "full", "message": "no", "retryable": True}}, 503)

    url = serve(answer)
    main(["ask", "Hi", "--url", url])
    given = ["--speed", "70", "--goal", "greener", "--max-ttft-ms", "2000", "--max-co2-g", "0.1", "--max-tokens", "9"]
    main(["ask", "Hi", "--url", url, *given, "--k", "auto", "--temperature", "0"])
    main(["ask", "Hi", "--url", url, "--power", "0", "--system", "Be brief.", "--k", "3"])
    assert bodies == [
        {"prompt": "Hi"},
        {
            "prompt": "Hi",
            "speed": 70,
            "goal": "greener",
            "constraints": {"max_ttft_ms": 2000, "max_co2_g": 0.1},
            "max_tokens": 9,
            "spec": {"k": "auto"},
            "temperature": 0,
        },
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "mode": "manual",
            "power": 0,
            "spec": {"k": 3},
        },
    ]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_the_prompt_may_come_on_stdin(
    arguments: list[str], ingress: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe stub:tokens=2"))
    assert main(["ask", *arguments, "--url", ingress, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert captured.err == ""


def test_json_prints_every_event_as_one_line(ingress: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "Hi stub:tokens=2", "--url", ingress, "--json"]) == 0
    types = [json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()]
    assert types[0] == "config"
    assert types[-2:] == ["metrics", "done"]
    assert types.count("token") == 2


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda _: JSONResponse({"error": {"code": "full", "message": "it is full"}}, 503), "error: it is full (full)"),
        (lambda _: PlainTextResponse("Bad Gateway", 502), "answered with status 502 (http_error)"),
        (lambda _: JSONResponse(["what"], 500), "answered with status 500 (http_error)"),
        (lambda _: PlainTextResponse("data: {]\n\n"), "does not answer: "),
        (lambda _: PlainTextResponse("hello"), "error: the answer was cut off (connection)"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_1(
    handler: Handler, said: str, serve: Callable[[Handler], str], capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: Request) -> Response:
        response: Response = handler(request)
        return response

    assert main(["ask", "Hi", "--url", serve(answer)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_error_in_the_middle_keeps_what_came_and_is_exit_code_1(
    stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "Hi", "--url", stream(CONFIG, token("Once"), error("engine_dead", "it died"))]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Once\n"
    assert captured.err == "eco: small on L4\nerror: it died (engine_dead)\n"


def test_a_stream_that_ends_without_its_end_is_an_error(
    stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = stream(CONFIG, token("Once"))
    assert main(["ask", "Hi", "--url", url]) == 1
    assert "error: the answer was cut off" in capsys.readouterr().err
    assert main(["ask", "Hi", "--url", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["data"]["code"] == "connection"


def test_where_nobody_answers_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "Hi", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("error: http://127.0.0.1:9/api/inference does not answer")


def test_reasons_that_come_late_follow_the_answer_and_unknown_events_are_passed_over(
    stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    late = {"type": "reasoning", "data": {"text": "Claude says so.", "source": "claude"}}
    done = {"type": "done", "data": {"request_id": "1"}}
    url = stream(token("One"), late, {"type": "from_the_future", "data": {}}, token(" two."), done)
    assert main(["ask", "Hi", "--url", url]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("One two.\n", "Claude says so.\n")


def test_that_another_replica_went_on_is_said_after_the_answer(
    stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = {"state": "resumed", "waited_s": 3.0, "estimate_s": 0.0, "reason": "the engine has died"}
    done = {"type": "done", "data": {"request_id": "1"}}
    url = stream(token("One"), {"type": "status", "data": resumed}, token(" two."), done)
    assert main(["ask", "Hi", "--url", url]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("One two.\n", "the engine has died: 3 s\n")


def seam(*, rewrite: bool) -> dict[str, Any]:
    data = {"from_tier": "eco", "to_tier": "ultra", "reason": "it was unsure", "at_token": 1, "rewrite": rewrite}
    return {"type": "escalation", "data": data}


DONE = {"type": "done", "data": {"request_id": "1"}}


@pytest.mark.parametrize(("flags", "said"), [([], "ultra went on at token 1: it was unsure\n"), (["--quiet"], "")])
def test_a_seam_puts_nothing_into_the_answer(
    flags: list[str], said: str, stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "Hi", "--url", stream(token("One"), seam(rewrite=False), token(" two."), DONE), *flags]) == 0
    assert capsys.readouterr() == ("One two.\n", said)


@pytest.mark.parametrize("flags", [[], ["--quiet"]])
@pytest.mark.parametrize("before", ["One", "One\n"])
def test_text_that_is_withdrawn_is_said_in_any_case_and_the_answer_begins_a_new_line(
    before: str, flags: list[str], stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "Hi", "--url", stream(token(before), seam(rewrite=True), token("Two."), DONE), *flags]) == 0
    said = "ultra begins anew, the text above is withdrawn: it was unsure\n"
    assert capsys.readouterr() == ("One\nTwo.\n", said)


def test_advice_in_mid_stream_is_said_at_the_end_also_before_an_error(
    stream: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"from_tier": "eco", "to_tier": "ultra", "reason": "it was unsure", "applied": False}
    early, advice = (
        {"type": "trace", "data": {"step": "escalate", "result": result | {"at_token": at}}} for at in (None, 1)
    )
    other = {"type": "trace", "data": {"step": "goal", "result": {"at_token": 1}}}
    events = (early, other, token("One\n"), advice, token("two."))
    said = "advice: ultra should go on: it was unsure\n"
    assert main(["ask", "Hi", "--url", stream(*events, DONE)]) == 0
    assert capsys.readouterr() == ("One\ntwo.\n", said)
    assert main(["ask", "Hi", "--url", stream(*events, error("dead", "it died"))]) == 1
    assert capsys.readouterr() == ("One\ntwo.\n", f"{said}error: it died (dead)\n")


def test_a_cold_tier_says_what_it_waits_for(stream: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    waits = {"state": "loading", "waited_s": 5.1, "estimate_s": 30, "reason": None}
    done = {"type": "done", "data": {"request_id": "1"}}
    assert main(["ask", "Hi", "--url", stream({"type": "status", "data": waits}, token("Yes"), done)]) == 0
    assert capsys.readouterr().err == "loading: 5 s, about 30 s more\n"


def test_a_status_in_words_has_its_reason() -> None:
    status = {"state": "provisioning", "waited_s": 61.0, "estimate_s": 0.0, "reason": "no L4 is free"}
    assert waiting_line(status) == "no L4 is free: 61 s"


def test_an_answer_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b]0;title\x07b\x1b[2J\r\n\tc\x9b1m é 日") == "a]0;titleb[2J\n\tc1m é 日"


@pytest.mark.parametrize(("env", "red"), [({}, "\x1b[31m"), ({"NO_COLOR": "1"}, "")])
def test_on_a_terminal_accepted_drafts_are_underlined_and_errors_red(
    env: dict[str, str], red: str, stream: Callable[..., str]
) -> None:
    url = stream(CONFIG, token("one"), token(" two", accepted=True), token(" \x1b[2Jthree"), error("dead", "it died"))
    shown = on_a_terminal(["ask", "Hi", "--url", url], env)
    assert "\x1b[4m two\x1b[0m" in shown
    assert "\x1b[2J" not in shown
    assert f"{red}error: it died" in shown
    assert "\x1b[31m" in shown or not red


def test_ctrl_c_ends_the_request_on_the_server_and_is_exit_code_130(serve: Callable[[Handler], str]) -> None:
    began, left = threading.Event(), threading.Event()

    async def forever() -> AsyncIterator[str]:
        try:
            while True:
                yield f"data: {json.dumps(token('x '))}\n\n"
                began.set()
                await asyncio.sleep(0.05)
        finally:
            left.set()

    async def answer(_: Request) -> Response:
        return StreamingResponse(forever(), media_type="text/event-stream")

    # A job in the background of a shell, as these tests may be, has its SIGINT ignored, and its children too.
    heeding = ["env", "--default-signal=INT"]
    command = [*heeding, sys.executable, "-m", "serve_app", "ask", "Hi", "--url", serve(answer)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert began.wait(60)
        assert process.stdout.read(2) == b"x "
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b"\nstopped\n"
        assert left.wait(10)
    finally:
        process.kill()
        process.communicate()
