"""Property tests here are not timing tests: a busy machine must not fail them.

They try few examples, other ones in every run; `make test-long` tries many.
"""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", untimed, max_examples=30)
settings.register_profile("many", untimed, max_examples=500)
settings.load_profile("few")


def pytest_collection_finish() -> None:
    """Take modules and collected tests out of garbage collection: walking through them takes a tenth of the time."""
    gc.collect()
    gc.freeze()
