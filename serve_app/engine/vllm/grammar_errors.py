"""A grammar that the engine's compiler refuses is the client's error.

vLLM 0.32 checks structured outputs when a request comes, and compiles them in the engine's process. What only the
compiler refuses (`root ::= root`) ends the request there with the finish reason of a failure of the server, for which
its routes answer 500. Before the first token of such a request nothing else ends it so, but for the transfer of KV
caches between engines, which this project does not use.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from vllm.exceptions import VLLMValidationError
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

_REFUSED = "the grammar of the structured output cannot be compiled"


def refuse_bad_grammars(processor: OutputProcessor) -> None:
    """Have requests whose grammar does not compile end with the error of a bad request."""
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
                # Whoever waits for the request gets this instead of an answer.
                state.queue.put(VLLMValidationError(_REFUSED, parameter="structured_outputs"))
        return process(outputs, *args, **kwargs)

    processor.add_request, processor.process_outputs = adding, processing
