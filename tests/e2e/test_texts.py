"""Token texts concatenate to exactly the non-streamed answer, and counts equal vLLM's usage, whatever the text.

The other side of every comparison is vLLM's own OpenAI layer on the same engine: same chat template, greedy, one answer
at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.api import Answer, Api, Json

TERMINAL = {"done", "error"}
# Found by trial: the model copies what it saw, and its tokens are parts of these characters.
EMOJI = ("Party?", "🎉🥳🎂", "Party?", "🎉🥳🎂", "Party?")
JOINED_EMOJI = ("Wave", "👋🏽 🚀 👩‍💻", "Wave", "👋🏽 🚀 👩‍💻", "Wave")
CHINESE = ("How do you say hello in Chinese?", "你好世界", "How do you say hello in Chinese?")
ACCENTS = ("Repeat this exactly: naïve café, Grüße, Ærøskøbing, Łódź",)
FRENCH = ("Translate to French: The student is already very old and the summer was hot.",)
PLAIN = ("What is the capital of France?",)
COPY = ('Repeat this JSON exactly: {"name": "Ada", "year": 1815, "city": "London", "tags": ["math", "code", "math"]}',)


@dataclass(frozen=True)
class Pair:
    """One prompt, answered as events and by vLLM's OpenAI layer."""

    events: Answer
    choice: Json
    usage: Json

    def assert_equal(self) -> None:
        metrics = self.events.one("metrics")
        assert self.events.text == self.choice["message"]["content"]
        assert metrics["finish_reason"] == self.choice["finish_reason"]
        assert metrics["prompt_tokens"] == self.usage["prompt_tokens"]
        assert metrics["completion_tokens"] == self.usage["completion_tokens"]
        assert len(self.events.all("token")) == self.usage["completion_tokens"]
        assert [kind for kind in self.events.kinds if kind in TERMINAL] == ["done"]
        assert self.events.kinds[-2:] == ["metrics", "done"]


def ask_both(api: Api, turns: tuple[str, ...], power: int = 10, model: str = "eco", **over: Any) -> Pair:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    sampling: Json = {"temperature": 0, "seed": 1, "max_tokens": 32, **over}
    events = api.infer(messages=messages, mode="manual", power=power, **sampling)
    response = api.post("/v1/chat/completions", {"model": model, "messages": messages, "top_p": 1, **sampling})
    assert response.status_code == 200, response.text
    whole = response.json()
    return Pair(events, whole["choices"][0], whole["usage"])


ECO, PERFORMANCE = (10, "eco"), (70, "performance")
"""n-gram lookup, and a draft model."""


@pytest.mark.parametrize(
    ("turns", "character", "tier"),
    [
        (EMOJI, "🥳", ECO),
        (JOINED_EMOJI, "👩\u200d💻", ECO),
        (CHINESE, "世", ECO),
        (ACCENTS, "ź", ECO),
        (FRENCH, "é", ECO),
        (PLAIN, "Paris", ECO),
        (JOINED_EMOJI, "👩\u200d💻", PERFORMANCE),
        (FRENCH, "é", PERFORMANCE),
    ],
    ids=["emoji", "joined emoji", "chinese", "accents", "french", "plain", "joined emoji, draft", "french, draft"],
)
def test_token_texts_add_up_to_the_answer(
    api: Api, turns: tuple[str, ...], character: str, tier: tuple[int, str]
) -> None:
    pair = ask_both(api, turns, *tier)

    pair.assert_equal()
    assert character in pair.events.text
    assert "\ufffd" not in pair.events.text


@pytest.mark.parametrize("turns", [EMOJI, CHINESE], ids=["emoji", "chinese"])
def test_a_character_of_several_tokens_comes_whole_with_its_last_one(api: Api, turns: tuple[str, ...]) -> None:
    tokens = ask_both(api, turns).events.all("token")

    # Without half a character in any event, some of its tokens have no text at all; the last is the end of the turn.
    assert "" in [token["text"] for token in tokens[:-1]]
    assert all("\ufffd" not in token["text"] for token in tokens)


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_an_answer_cut_inside_a_character_loses_nothing_that_the_engine_gave(api: Api, max_tokens: int) -> None:
    ask_both(api, EMOJI, max_tokens=max_tokens).assert_equal()


@pytest.mark.parametrize(
    ("turns", "stop"),
    [
        (PLAIN, ["Paris"]),
        (PLAIN, ["tal of Fr"]),  # over several tokens
        (PLAIN, ["never said", " is"]),
        (COPY, ["London"]),  # among accepted drafts
        (COPY, ['ty": "Lon']),
        (EMOJI, ["🥳"]),
        (CHINESE, ["世界"]),
    ],
    ids=["word", "over tokens", "second of two", "drafted", "over drafted tokens", "emoji", "chinese"],
)
def test_a_stop_string_ends_the_answer_and_is_not_in_it(api: Api, turns: tuple[str, ...], stop: list[str]) -> None:
    pair = ask_both(api, turns, stop=stop)

    pair.assert_equal()
    assert pair.events.one("metrics")["finish_reason"] == "stop"
    assert pair.choice["stop_reason"] in stop
    assert not any(text in pair.events.text for text in stop)


def test_a_stop_string_that_only_begins_is_part_of_the_answer(api: Api) -> None:
    pair = ask_both(api, PLAIN, stop=["Paris is not"])

    pair.assert_equal()
    assert "Paris" in pair.events.text


def test_drafts_accepted_before_a_stop_string_are_counted(api: Api) -> None:
    events = ask_both(api, COPY, stop=["London"], spec={"k": 5, "tau": 0}).events

    # vLLM finds a stop string outside of the engine core, and the core's record of the drafts is lost; ours is not.
    spec = events.one("metrics")["spec"]
    assert 0 < spec["steps"] <= spec["draft_tokens"] <= 5 * spec["steps"]
    assert spec["acceptance_rate"] == spec["accepted_tokens"] / spec["draft_tokens"]
    flagged = sum(token["spec_accepted"] for token in events.all("token"))
    assert 0 < flagged <= spec["accepted_tokens"] < flagged + 5


@pytest.mark.parametrize("max_tokens", [19, 20, 21, 22, 23, 24])
def test_accepted_drafts_are_flagged_also_where_the_answer_is_cut(api: Api, max_tokens: int) -> None:
    answer = ask_both(api, COPY, max_tokens=max_tokens)

    answer.assert_equal()
    flags = [token["spec_accepted"] for token in answer.events.all("token")]
    spec = answer.events.one("metrics")["spec"]
    # The one exception to "flags add up to accepted_tokens": drafts that the engine accepted in its last step and then
    # cut, because the answer ended before them. They were accepted and are no tokens of the answer.
    k = answer.events.one("config")["spec_decoding"]["K"]
    cut = spec["accepted_tokens"] - sum(flags)
    assert 0 <= cut < k
    if cut:
        assert flags[-1] is True


def test_the_end_of_turn_that_a_draft_proposed_is_flagged(api: Api) -> None:
    answer = ask_both(api, EMOJI, spec={"k": 5, "tau": 0}).events

    assert answer.one("metrics")["finish_reason"] == "stop"
    assert answer.all("token")[-1]["spec_accepted"] is True
