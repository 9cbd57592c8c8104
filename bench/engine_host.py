"""One engine of the product in a process of its own, without Serve; the other end is `bench/engines.py`.

    python -m bench.engine_host CONFIG

Each line of standard input is a JSON list of requests, which are asked at the same time; each line of standard output
says what came of one list and when. Standard output is kept for that: what vLLM writes there goes to standard error.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from router.classify import classify_prompt
from router.plan import spec_plan
from router.request import Message, SpecWish
from router.tiers import Step, Tier
from serve_app.engine.interface import Finished, GenerationRequest
from serve_app.engine.vllm_engine import VllmEngine, start_vllm
from serve_app.speculation.settings import SpeculationSettings

Json = dict[str, Any]


async def answer(engine: VllmEngine, step: Step, request_id: str, ask: Mapping[str, Any]) -> Json:
    """One greedy request: when its tokens arrived (s after it was asked), what was drafted and accepted."""
    request = GenerationRequest(
        request_id=request_id,
        messages=(Message(role="user", content=ask["prompt"]),),
        max_tokens=ask["max_tokens"],
        max_tokens_is_wish=True,
        temperature=0.0,
        top_p=1.0,
        seed=None,
        stop=(),
        logprobs=False,
        spec=spec_plan(step.speculation, SpecWish(k=ask["k"], tau=0.0)),
        family=classify_prompt(ask["prompt"]).category,  # as the router tells the tier
    )
    began_s = time.monotonic()
    arrivals: list[tuple[float, int]] = []
    async for item in engine.generate(request):
        if isinstance(item, list):
            arrivals.append((time.monotonic() - began_s, len(item)))
        elif isinstance(item, Finished):
            spec = item.spec
    return {
        "arrivals": arrivals,
        "steps": spec.steps,
        "draft_tokens": spec.draft_tokens,
        "accepted_tokens": spec.accepted_tokens,
        "reasons": spec.reasons,
    }


async def serve(config: Mapping[str, Any], replies: TextIO) -> None:
    """Answer batches until standard input ends."""
    tier, step = Tier.model_validate(config["tier"]), Step.model_validate(config["step"])
    folder = Path(config["models_dir"])
    engine = await asyncio.to_thread(start_vllm, "eco", tier, step, SpeculationSettings(), lambda name: folder / name)
    number = itertools.count()
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            asks = json.loads(line)
            began_s = time.monotonic()
            answers = await asyncio.gather(*(answer(engine, step, f"b{next(number)}", ask) for ask in asks))
            seconds = time.monotonic() - began_s
            replies.write(json.dumps({"seconds": seconds, "answers": answers}) + "\n")
            replies.flush()
    finally:
        await engine.shutdown()


if __name__ == "__main__":
    own_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(serve(json.loads(sys.argv[1]), own_output))
