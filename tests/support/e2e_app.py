"""The application of the e2e tests: the shipped one, with a tier whose first chain entries fail for real reasons."""

from __future__ import annotations

from typing import Any, Final

from bench.load.servers import Server, application
from cluster.profiles.reading import load_profile

MODEL: Final = "smollm2-135m-instruct"
EARLY_EXIT: Final = "smollm2-135m-instruct-early-exit-4"
LOST_MODEL: Final = "lost-model"
"""Declared in `models`, with no weights in the models folder."""
WORKING_ENTRY: Final = "ngram"
"""The first entry of balanced that works; it is the shipped one."""
SCARCE_KV_BYTES: Final = 32 * 1024 * 1024
"""Room for about 700 tokens of this model, where one request may have 2048."""


def _broken_chain() -> list[dict[str, Any]]:
    """The shipped chain of balanced, behind entries that cannot work."""
    shipped = load_profile("local").tiers["balanced"].chain
    plain = shipped[-1].model_dump(mode="json", exclude_none=True)

    def broken(name: str, over: dict[str, Any] | None = None, **engine_args: Any) -> dict[str, Any]:
        return plain | {"name": name, "engine_args": plain["engine_args"] | engine_args} | (over or {})

    return [
        broken("no-weights", {"target": LOST_MODEL}),
        broken("bad-argument", no_such_argument=1),
        broken("bad-quantization", {"quantization": "no-such-method"}),
        broken("scarce-kv", kv_cache_memory_bytes=SCARCE_KV_BYTES),
        *(entry.model_dump(mode="json", exclude_none=True) for entry in shipped),
    ]


def e2e_application() -> Server:
    """The shipped `serve_config.yaml` with the profile pinned and a broken chain for balanced; not started."""
    return application(
        {
            "/": {
                "profile": "local",
                "models": {LOST_MODEL: {"source": "hub", "repo": "nobody/lost-model"}},
                "tiers": {"balanced": {"chain": _broken_chain()}},
            }
        }
    )
