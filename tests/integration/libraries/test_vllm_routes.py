"""vLLM's own layers take the bodies that the ingress sends, and its output processor tells an HTTP request's run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from router.observation import Observation
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import V1Api, parse_v1
from serve_app.api.v1.exchange import TOO_LONG
from serve_app.api.v1.openai import RESPONSES
from serve_app.api.v1.planning import engine_call, plan_v1
from serve_app.engine.http_runs import RunWatch
from serve_app.engine.interface import HttpProgress
from serve_app.engine.vllm.load import OutputLoad
from serve_app.engine.vllm.step_record import SpecRecords
from tests.support.agent_requests import CLAUDE_CODE, CODEX
from tests.support.app_config import app_config

pytestmark = pytest.mark.usefixtures("vllm_installed")
CONFIG = app_config()
COUNTED = {key: CLAUDE_CODE[key] for key in ("model", "system", "tools", "messages", "thinking")}


def sent(body: dict[str, Any], api: V1Api) -> Any:
    checked = parse_v1(body, api, CONFIG.limits, betas=True)
    request = Request({"type": "http", "method": "POST", "path": "/v1/x", "root_path": "", "headers": []})
    return orjson.loads(engine_call(request, checked, plan_v1(checked, Observation(), CONFIG), "r1").body)


def test_vllm_reads_what_coding_agents_send() -> None:
    from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    claude = AnthropicMessagesRequest.model_validate(sent(CLAUDE_CODE, MESSAGES))
    chat = AnthropicServingMessages.to_chat_completion_request(claude)
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    assert chat.vllm_xargs["speculation_category"]
    assert [tool.function.name for tool in chat.tools] == ["Read", "Bash"]
    AnthropicCountTokensRequest.model_validate(sent(COUNTED, COUNT_TOKENS))
    codex = ResponsesRequest.model_validate(sent(CODEX, RESPONSES))
    assert (len(codex.input), codex.vllm_xargs["speculation_category"]) == (6, chat.vllm_xargs["speculation_category"])


def engine_request(name: str, prompt: list[int]) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    params = SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA)
    return EngineCoreRequest(name, prompt, None, params, None, 0.0, None, None, None, external_req_id=name)


def test_the_load_is_told_from_the_first_events_of_a_requests_first_output() -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

    from serve_app.engine.vllm.engine import watch_outputs

    queued, scheduled, preempted = (
        EngineCoreEventType.QUEUED,
        EngineCoreEventType.SCHEDULED,
        EngineCoreEventType.PREEMPTED,
    )

    def output(token: int, *events: tuple[EngineCoreEventType, float]) -> EngineCoreOutput:
        return EngineCoreOutput("one", [token], events=[EngineCoreEvent.new_event(*event) for event in events])

    processor, load = OutputProcessor(None, log_stats=False), OutputLoad()
    watch_outputs(processor, SpecRecords(), load)
    collector = RequestOutputCollector(RequestOutputKind.DELTA, "one")
    processor.add_request(engine_request("one", [1, 2, 3]), None, None, 0, collector)
    again = (preempted, 100.6), (scheduled, 100.7)
    processor.process_outputs([output(5, (queued, 100.0), (scheduled, 100.5), *again)], 102.5)
    processor.process_outputs([output(6, (preempted, 103.0), (scheduled, 104.0))], 105.0)
    processor.process_outputs([output(7)], 106.0)
    assert load.queue_wait_ms(106.0) == 500.0
    assert load.prompts(106.0) == 0.2  # 2 of the last 10 s


def test_a_run_is_told_from_the_outputs_of_its_own_requests() -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

    from serve_app.engine.vllm.engine import watch_outputs

    processor = OutputProcessor(None, log_stats=False)
    watch_outputs(processor, SpecRecords(), OutputLoad())
    watch, aborted = RunWatch(1), RunWatch(1)

    def add(name: str) -> None:
        processor.add_request(
            engine_request(name, [1, 2, 3]), None, None, 0, RequestOutputCollector(RequestOutputKind.DELTA, name)
        )

    watch.context().run(add, "mine")
    aborted.context().run(add, "aborted")
    add("nobody's")
    steps: list[tuple[list[int], FinishReason | None]] = [([5], None), ([6, 7], None), ([8], FinishReason.LENGTH)]
    for tokens, reason in steps:
        assert watch.take() is None
        processor.process_outputs(
            [
                EngineCoreOutput("mine", [*tokens], finish_reason=reason),
                EngineCoreOutput("nobody's", [*tokens], finish_reason=reason),
                EngineCoreOutput("aborted", [*tokens], finish_reason=FinishReason.ABORT if reason else None),
            ]
        )
    run = watch.take()
    assert run is not None
    assert (run.finished.prompt_tokens, run.finished.completion_tokens, run.finished.finish_reason) == (3, 4, "length")
    assert run.since_first_token_s is not None
    assert 0 <= run.since_first_token_s <= run.since_admitted_s
    assert watch.progress() == HttpProgress(prompt_tokens=3, completion_tokens=4)
    assert aborted.is_admitted
    assert aborted.take() is None
    assert aborted.progress() == HttpProgress(prompt_tokens=3, completion_tokens=4)


def test_several_answers_to_one_prompt_take_its_tokens_once() -> None:
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.engine.parallel_sampling import ParentRequest

    from serve_app.engine.vllm.engine import watch_outputs

    processor, watch = OutputProcessor(None, log_stats=False), RunWatch(2)
    watch_outputs(processor, SpecRecords(), OutputLoad())
    both = engine_request("both", [1, 2, 3])
    both.params.n = 2
    collector, parent = RequestOutputCollector(RequestOutputKind.DELTA, "both"), ParentRequest(both)

    def add(index: int) -> None:
        name, _ = parent.get_child_info(index)
        processor.add_request(engine_request(name, [1, 2, 3]), None, parent, index, collector)

    for index in range(2):
        watch.context().run(add, index)
    assert watch.progress() == HttpProgress(prompt_tokens=3, completion_tokens=0)


async def test_what_the_engine_refuses_is_told_with_its_status() -> None:
    from http import HTTPStatus

    from vllm.exceptions import GracefulHTTPError

    from serve_app.engine.vllm.engine import watch_refusals

    async def full(*_: Any) -> None:
        raise GracefulHTTPError("the queue is full", HTTPStatus.SERVICE_UNAVAILABLE)

    engine: Any = SimpleNamespace(add_request=full, errored=False)
    watch_refusals(engine)
    watch = RunWatch(1)
    with pytest.raises(GracefulHTTPError):
        await asyncio.create_task(engine.add_request(), context=watch.context())
    assert watch.refusal is not None
    assert (watch.refusal.status, watch.refusal.code, watch.refusal.retryable) == (503, "overloaded", True)


def test_vllm_refuses_a_prompt_that_is_too_long_in_words_that_the_ingress_knows() -> None:
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.params import TokenizeParams

    with pytest.raises(VLLMValidationError, match=TOO_LONG):
        TokenizeParams(max_total_tokens=4)._token_len_check(None, [1] * 5)
    with pytest.raises(ValueError, match=TOO_LONG):
        get_max_tokens(4, None, 5, {})
