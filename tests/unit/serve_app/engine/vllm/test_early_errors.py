"""A stream that begins with an error is that error's HTTP response; any other response stays as it is."""

from __future__ import annotations

import pytest

from serve_app.engine.vllm.early_errors import errors_first
from serve_app.transport.asgi_call import ResponseStart
from tests.support.streams import Script

STREAM = ResponseStart(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
ERROR = b'data: {"error": {"message": "no such grammar", "type": "BadRequestError", "param": null, "code": 400}}\n\n'
DONE = b"data: [DONE]\n\n"

Item = ResponseStart | bytes


async def taken(items: list[Item]) -> tuple[list[Item], Script[Item]]:
    script: Script[Item] = Script(items)
    return [item async for item in errors_first(script.stream())], script


@pytest.mark.parametrize("pieces", [[ERROR, DONE], [ERROR + DONE]], ids=["apart", "joined"])
async def test_an_error_as_the_first_event_is_an_http_error(pieces: list[bytes]) -> None:
    items, script = await taken([STREAM, *pieces])
    assert items == [
        ResponseStart(400, [(b"content-type", b"application/json")]),
        b'{"error":{"message":"no such grammar","type":"BadRequestError","param":null,"code":400}}',
    ]
    assert script.closed


@pytest.mark.parametrize(
    "items",
    [
        [STREAM, b'data: {"id": "1"}\n\n', b'data: {"id": "1"}\n\n', DONE],
        [STREAM, b'data: {"id": "1"}\n\n', ERROR, DONE],
        [ResponseStart(400, [(b"content-type", b"application/json")]), b'{"error": {"code": 400}}'],
        [ResponseStart(204, [])],
        [STREAM],
    ],
    ids=["tokens", "an error later", "an http error", "no body", "an empty stream"],
)
async def test_anything_else_is_passed_on(items: list[Item]) -> None:
    assert (await taken(items))[0] == items
