"""vLLM's errors as ours: with the code and the HTTP status that a client deserves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

from vllm.entrypoints.serve import create_error_response
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from serve_app.engine.interface import EngineError

_TOO_LONG: Final = ("input_text", "input_tokens")
"""What vLLM names as wrong in a chat that is too long, by its characters or its tokens."""
_REFUSED: Final = "the grammar of the structured output cannot be compiled"


@contextmanager
def errors_as_ours(engine: AsyncLLM, *kinds: type[Exception]) -> Iterator[None]:
    """Raise what vLLM raises as an `EngineError`, with the status that vLLM's own routes give it.

    Args:
        engine: vLLM's.
        kinds: what vLLM raises here.

    Raises:
        EngineError: instead.
    """
    try:
        yield
    except kinds as error:
        raise as_ours(engine, error) from error


def as_ours(engine: AsyncLLM, error: Exception) -> EngineError:
    """Return what vLLM raised as an `EngineError`."""
    if engine.errored or isinstance(error, EngineDeadError):
        return EngineError("engine_dead", "the engine has died", status=503, retryable=True)
    answer = create_error_response(error).error
    if answer.code < 500:
        code = "prompt_too_long" if answer.param in _TOO_LONG else "bad_request"
        return EngineError(code, answer.message, status=answer.code, retryable=False)
    if isinstance(error, GracefulHTTPError):
        return EngineError("overloaded", answer.message, status=answer.code, retryable=True)
    message = answer.message or "the engine failed"
    return EngineError("engine_failed", message, status=answer.code, retryable=True)


def refuse_bad_grammars(processor: OutputProcessor) -> None:
    """Have requests whose grammar does not compile end with the error of a bad request.

    vLLM 0.32 checks structured outputs when a request comes, and compiles them in the engine's process. If only the
    compiler refuses one (`root ::= root`), the request ends there with the finish reason of a server failure, and
    vLLM's routes answer 500. Before the first token nothing else ends such a request like that, except the transfer of
    KV caches between engines, which this project does not use.
    """
    add, process = processor.add_request, processor.process_outputs
    constrained: WeakSet[RequestOutputCollector] = WeakSet()

    def adding(
        request: EngineCoreRequest, prompt: Any, parent: Any = None, index: int = 0, queue: Any = None, **more: Any
    ) -> None:
        if queue is not None and request.sampling_params and request.sampling_params.structured_outputs is not None:
            constrained.add(queue)
        add(request, prompt, parent, index, queue, **more)

    def processing(outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any) -> Any:
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            failed = output.finish_reason is FinishReason.ERROR
            if failed and state is not None and state.is_prefilling and state.queue in constrained:
                # The consumer of the request gets this instead of an answer.
                state.queue.put(VLLMValidationError(_REFUSED, parameter="structured_outputs"))
        return process(outputs, *args, **kwargs)

    processor.add_request, processor.process_outputs = adding, processing
