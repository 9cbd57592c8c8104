"""The applications of the e2e tests: the shipped one, and one whose chain entries fail for real reasons."""

from __future__ import annotations

from typing import Any, Final

from bench.load.servers import Server, application

MODEL: Final = "smollm2-135m-instruct"
EARLY_EXIT: Final = "smollm2-135m-instruct-early-exit-4"
LOST_MODEL: Final = "lost-model"
"""Declared in `models`, with no weights in the models folder."""
WORKING_ENTRY: Final = "working"
SCARCE_KV_BYTES: Final = 32 * 1024 * 1024
"""Room for about 700 tokens of this model, where one request may have 2048."""

_CPU_ARGS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 256 * 1024 * 1024,
}


def _step(name: str, target: str = MODEL, quantization: str | None = None, **engine_args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "target": target,
        "quantization": quantization,
        "max_model_len": 2048,
        "engine_args": _CPU_ARGS | engine_args,
    }


BROKEN: Final[dict[str, Any]] = {
    "models": {LOST_MODEL: {"source": "hub", "repo": "nobody/lost-model"}},
    "tiers": {
        "eco": {"replicas": {"min": 0}},
        "balanced": {
            "chain": [
                _step("no-weights", target=LOST_MODEL),
                _step("scarce-kv", kv_cache_memory_bytes=SCARCE_KV_BYTES),
                # Its engine starts, and cannot answer.
                _step("bad-template", chat_template="{{ raise_exception('no message is good enough') }}"),
                _step(WORKING_ENTRY),
            ],
            "idle_before_zero_s": 20,  # its engine's memory is wanted by the other tiers soon after
        },
        # Fails before any engine process starts, so that three attempts of Serve take seconds.
        "performance": {
            "chain": [
                _step("no-weights", target=LOST_MODEL),
                _step("bad-argument", no_such_argument=1),
                _step("bad-quantization", quantization="no-such-method"),
            ]
        },
    },
}


def e2e_application() -> Server:
    """The shipped `serve_config.yaml` at `/`, with the profile pinned, and `BROKEN` at `/broken`; not started."""
    server = application({"/": {"profile": "local"}, "/broken": {"profile": "local", **BROKEN}})
    server.further_ready_paths = ("/broken/healthz",)  # no tier of `broken` is warm
    return server
