"""A Messages API on loopback for the tests of the agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.messages_api import MessagesApi


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as api:
        yield api
