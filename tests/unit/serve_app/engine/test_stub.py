"""The stub engine keeps the engine contract, deterministically, and does what its directives say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.registry import DraftsChoice, Speculation, Tau
from router.spec_params import SpecParams
from serve_app.engine.interface import (
    Admitted,
    DraftCount,
    EngineError,
    EngineItem,
    EngineLoad,
    Finished,
    GenerationRequest,
    Resume,
    SpecStats,
    Token,
    TokenStep,
    pack_ids,
    unpack_ids,
)
from serve_app.engine.stub import StubEngine
from tests.support.requests import ENTRY, drafting, generation


def stub(tokens_per_s: float = 0) -> StubEngine:
    return StubEngine(ENTRY, tokens_per_s, obeys_directives=True)


async def answer(request: GenerationRequest, engine: StubEngine | None = None) -> list[EngineItem]:
    return [item async for item in (engine or stub()).generate(request)]


def tokens_of(items: list[EngineItem]) -> list[Token]:
    return [token for item in items if isinstance(item, TokenStep) for token in item.tokens]


def end_of(items: list[EngineItem]) -> Finished:
    assert isinstance(items[-1], Finished)
    return items[-1]


async def test_a_stream_is_admitted_then_tokens_then_finished() -> None:
    items = await answer(generation("Hello there", max_tokens=5))
    assert isinstance(items[0], Admitted)
    assert (items[0].entry, len(unpack_ids(items[0].prompt_ids))) == ("first", 4)
    assert len(tokens_of(items)) == 5
    end = end_of(items)
    assert end == Finished("length", 4, 5, 0.0, SpecStats(), end.busy_s, end.idle_s, end.engine_s)
    assert all(isinstance(item, TokenStep) for item in items[1:-1])


async def test_the_same_prompt_gives_the_same_tokens_and_another_prompt_others() -> None:
    one, again, other = [tokens_of(await answer(generation(text))) for text in ("Hello", "Hello", "Good-bye")]
    assert one == again
    assert one != other


@pytest.mark.parametrize("k", [1, 5])
async def test_the_text_does_not_depend_on_speculation(k: int) -> None:
    plain = tokens_of(await answer(generation()))
    drafted = tokens_of(await answer(generation(spec=drafting(k))))
    assert [token.text for token in drafted] == [token.text for token in plain]
    assert not any(token.spec_accepted for token in plain)
    assert any(token.spec_accepted for token in drafted)
    assert {token.spec_k for token in plain} == {0}


@given(text=st.text(max_size=30), k=st.integers(1, 8), max_tokens=st.integers(1, 200))
def test_speculation_stats_say_what_the_tokens_say(text: str, k: int, max_tokens: int) -> None:
    request = generation("Say: " + text.replace("stub:", ""), spec=drafting(k), max_tokens=max_tokens)
    items = asyncio.run(answer(request))
    tokens, spec = tokens_of(items), end_of(items).spec
    # Every step ends with a token of the target, so steps are counted by the tokens that no draft proposed.
    assert spec.steps == sum(not token.spec_accepted for token in tokens)
    assert spec.draft_tokens == k * spec.steps
    assert spec.accepted_tokens == sum(token.spec_accepted for token in tokens)
    assert {token.spec_k for token in tokens} == {k}
    assert end_of(items).completion_tokens == len(tokens) == max_tokens


BOTH = ENTRY.model_copy(update={"speculation": Speculation(method="draft_model", draft="d", k_max=4, drafts="own")})


@pytest.mark.parametrize(
    ("drafts", "used"), [(None, {"own"}), ("own", {"own"}), ("ngram", {"ngram"}), ("auto", {"own", "ngram"})]
)
async def test_a_request_chooses_who_drafts(drafts: DraftsChoice | None, used: set[str]) -> None:
    engine = StubEngine(BOTH, 0)
    spec = SpecParams(drafts=drafts).resolve(BOTH.speculation)[0]
    stats = end_of(await answer(generation(spec=spec, max_tokens=40), engine)).spec
    assert stats.drafts.keys() == used
    assert sum(count.drafted for count in stats.drafts.values()) == stats.draft_tokens
    assert sum(count.accepted for count in stats.drafts.values()) == stats.accepted_tokens
    assert engine.own_drafts() == stats.drafts.get("own", DraftCount())


async def test_an_order_changes_who_drafts_for_requests_that_have_not_chosen() -> None:
    engine = StubEngine(BOTH, 0)
    await engine.use_drafts("ngram")
    open_to_all, chosen = [SpecParams(drafts=drafts).resolve(BOTH.speculation)[0] for drafts in (None, "own")]
    assert end_of(await answer(generation(spec=open_to_all), engine)).spec.drafts.keys() == {"ngram"}
    assert end_of(await answer(generation(spec=chosen), engine)).spec.drafts.keys() == {"own"}


@pytest.mark.parametrize(("tau", "stopped", "shown"), [(0.0, False, None), (0.9, True, 0.9), ("auto", False, 0.25)])
async def test_a_tau_above_the_stubs_acceptance_stops_drafts(tau: Tau, stopped: bool, shown: float | None) -> None:
    engine = StubEngine(BOTH, 0)
    spec = SpecParams(k=4, tau=tau).resolve(BOTH.speculation)[0]
    stats = end_of(await answer(generation(spec=spec, max_tokens=40), engine)).spec
    assert (stats.stopped_by_tau, stats.tau) == (stopped, shown)
    assert engine.learned().tau == {"general_reasoning": 0.25}


async def test_the_tokens_directive_ends_the_answer_by_itself() -> None:
    items = await answer(generation("stub:tokens=3 please"))
    assert (end_of(items).finish_reason, end_of(items).completion_tokens) == ("stop", 3)
    assert len(tokens_of(items)) == 3


async def test_max_tokens_below_the_tokens_directive_ends_by_length() -> None:
    items = await answer(generation("stub:tokens=30", max_tokens=7))
    assert (end_of(items).finish_reason, end_of(items).completion_tokens) == ("length", 7)


async def test_the_fail_directive_fails_retryably_after_exactly_that_many_tokens() -> None:
    stream = stub().generate(generation("stub:fail=3", spec=drafting(5)))
    seen = [await anext(stream), await anext(stream)]
    assert len(tokens_of(seen)) == 3
    with pytest.raises(EngineError, match="a stub directive made it fail") as error:
        await anext(stream)
    assert (error.value.code, error.value.status, error.value.retryable) == ("engine_failed", 500, True)


async def test_the_fail_directive_can_fail_before_the_first_token() -> None:
    stream = stub().generate(generation("stub:fail=0"))
    assert isinstance(await anext(stream), Admitted)
    with pytest.raises(EngineError, match="a stub directive made it fail"):
        await anext(stream)


async def test_the_first_directive_delays_the_first_token_but_not_admission() -> None:
    loop = asyncio.get_running_loop()
    began, times = loop.time(), []
    async for _ in stub().generate(generation("stub:first=4", max_tokens=1)):
        times.append(loop.time() - began)
    assert times == pytest.approx([0, 4, 4])


async def test_tokens_come_at_the_configured_speed() -> None:
    loop = asyncio.get_running_loop()
    began, times = loop.time(), []
    async for item in stub(tokens_per_s=10).generate(generation(max_tokens=5)):
        if isinstance(item, TokenStep):
            times += [loop.time() - began] * len(item.tokens)
    assert times == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(("rate", "took_s"), [("4", 4.0), ("0", 0.0)])
async def test_the_rate_directive_beats_the_configured_speed(rate: str, took_s: float) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    items = await answer(generation(f"stub:rate={rate}"), stub(tokens_per_s=10))
    assert loop.time() - began == pytest.approx(took_s)
    assert len(tokens_of(items)) == 16


async def test_another_tier_goes_on_at_its_own_speed() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    items = await answer(replace(generation("stub:rate=4"), begun="The dial"), stub(tokens_per_s=10))
    assert loop.time() - began == pytest.approx(1.6)
    assert len(tokens_of(items)) == 16


async def test_the_until_directive_ends_the_answer_when_its_file_exists(tmp_path: Path) -> None:
    items: list[EngineItem] = []
    async for item in stub(tokens_per_s=10).generate(generation(f"stub:until={tmp_path}/now", max_tokens=9)):
        items.append(item)
        if len(tokens_of(items)) == 3:
            (tmp_path / "now").touch()
    assert (end_of(items).finish_reason, end_of(items).completion_tokens) == ("stop", 3)
    assert len(tokens_of(items)) == 3


async def test_a_consumer_that_lags_gets_what_is_due_in_one_item() -> None:
    sizes = []
    async for item in stub(tokens_per_s=10).generate(generation(max_tokens=6)):
        if isinstance(item, TokenStep):
            sizes.append(len(item.tokens))
            await asyncio.sleep(0.25)
    assert sizes[0] == 1
    assert max(sizes) > 1
    assert sum(sizes) == 6


@pytest.mark.parametrize(
    "word",
    ["stub:tokens=many", "stub:rate=", "stub:fail=1.5", "stub:first=soon", "stub:until=now"]
    + [f"stub:until={path}" for path in ("/etc/passwd", f"{gettempdir()}/../etc/passwd", f"{gettempdir()}x")],
)
async def test_a_directive_with_a_wrong_value_is_the_clients_error(word: str) -> None:
    with pytest.raises(EngineError) as error:
        await answer(generation(word))
    assert (error.value.code, error.value.status, error.value.retryable) == ("bad_stub_directive", 400, False)


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(EngineError, match="2048 prompt tokens") as error:
        await answer(generation("word " * 2046))
    assert (error.value.code, error.value.status, error.value.retryable) == ("prompt_too_long", 400, False)


async def test_an_explicit_max_tokens_that_does_not_fit_is_refused_and_one_from_the_dial_is_cut() -> None:
    text = "word " * 2036  # with the two of the chat: 2038 of 2048 tokens
    with pytest.raises(EngineError, match="max_tokens 16"):
        await answer(generation(text, max_tokens_is_explicit=True))
    assert end_of(await answer(generation(text))).completion_tokens == 10


async def test_logprobs_come_only_on_request() -> None:
    assert {token.logprob for token in tokens_of(await answer(generation()))} == {None}
    assert {token.logprob for token in tokens_of(await answer(generation(logprobs=True)))} == {-0.5}


async def test_the_running_count_rises_with_a_stream_and_falls_when_it_is_closed_midway() -> None:
    engine = stub(tokens_per_s=10)
    stream = engine.generate(generation())
    await anext(stream)
    await anext(stream)
    assert engine.load() == EngineLoad(running=1, waiting=0)
    await stream.aclose()
    assert engine.load() == EngineLoad(running=0, waiting=0)


async def test_the_running_count_falls_when_a_stream_ends_or_fails() -> None:
    engine = stub()
    await answer(generation(), engine)
    assert engine.load().running == 0
    with pytest.raises(EngineError):
        await answer(generation("stub:fail=1"), engine)
    assert engine.load().running == 0


@pytest.mark.parametrize("word", ["stub:die=0", "stub:fail=0", "stub:first=1000", "stub:tokens=1", "stub:nonsense"])
async def test_outside_an_engine_replica_of_its_own_a_directive_is_text(word: str) -> None:
    items = await answer(generation(f"x {word}", max_tokens=3), StubEngine(ENTRY, 0))
    assert (end_of(items).finish_reason, len(tokens_of(items))) == ("length", 3)


async def test_streams_at_once_share_the_time_equally_and_their_shares_add_up() -> None:
    engine = StubEngine(ENTRY, 100, obeys_directives=True, clock=asyncio.get_running_loop().time)
    alone = end_of(await answer(generation("Hello", max_tokens=3), engine)).busy_s
    together = await asyncio.gather(*(answer(generation("Hello", max_tokens=10), engine) for _ in range(2)))
    shares = [end_of(items).busy_s for items in together]
    assert alone + sum(shares) == pytest.approx(engine.totals().busy_s, rel=0.02)
    assert shares[0] == pytest.approx(shares[1], rel=0.02)
    assert 0.04 < shares[0] < 0.6 * engine.totals().busy_s


async def test_an_answer_is_resumed_after_the_tokens_that_were_delivered() -> None:
    whole = await answer(generation("Hello there", max_tokens=9))
    first, ids = whole[0], [token.token_id for token in tokens_of(whole)]
    assert isinstance(first, Admitted)
    resume = Resume(first.entry, first.prompt_ids, pack_ids(ids[:4]), attempt=1)
    rest = await answer(replace(generation("Hello there", max_tokens=9), resume=resume))
    assert [token.token_id for token in tokens_of(rest)] == ids[4:]
    assert (end_of(rest).finish_reason, end_of(rest).completion_tokens) == ("length", 5)


async def test_an_answer_of_another_entry_or_prompt_is_not_resumed() -> None:
    whole = await answer(generation("Hello there", max_tokens=9))
    assert isinstance(whole[0], Admitted)
    for resume in (
        Resume("second", whole[0].prompt_ids, pack_ids([1]), 1),
        Resume(whole[0].entry, pack_ids([1]), pack_ids([1]), 1),
    ):
        with pytest.raises(EngineError) as error:
            await answer(replace(generation("Hello there", max_tokens=9), resume=resume))
        assert error.value.code == "not_resumable"
