"""Both ways to ask an engine give the same answer and the same refusals, on a real engine and without a server.

Its chain entry has a chat template of its own, with arguments of its own, and its model has sampling defaults
(`generation_config.json`), as many models have.
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from threading import Timer
from typing import Any, Final

import pytest
from psutil import Process

from bench.engine.engines import Ask, EngineProcess, Reply, engine_process
from bench.load.processes import command_of, is_alive, process_tree
from cluster.profiles.reading import load_profile
from router.signs import WINDOW
from tests.support.e2e_app import MODEL

CHAT: Final = "/v1/chat/completions"
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('this model takes no system message') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + suffix + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SUFFIX: Final = " Say it twice."
PROMPT: Final = "Name a colour, a fruit and a city."
TOKENS: Final = 40
FIT_CHARACTERS: Final = 160_000
"""Few enough that they could be 2048 tokens of this model's longest, so they are tokenized."""
LONG_PROMPTS: Final = 12
"""To tokenize them one after the other takes more than a second of CPU time."""
STOPPED_S: Final = 3.0
LOOP_S: Final = 0.4
"""CPU time of the event loop at a stretch: more than it takes for anything else."""


@pytest.fixture(scope="module")
def engine(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """eco of the shipped local profile, with a template, its arguments and sampling defaults."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "defaults").mkdir()
    defaults = {"repetition_penalty": 1.4, "top_k": 40, "max_new_tokens": 4096}
    (folder / "defaults" / "generation_config.json").write_text(json.dumps(defaults))
    (folder / "template.jinja").write_text(TEMPLATE)
    profile = load_profile("local")
    tier, entry = profile.tiers["eco"], profile.entry("eco", None)
    entry = entry.model_copy(
        update={
            "engine_args": entry.engine_args
            | {
                "chat_template": str(folder / "template.jinja"),
                "default_chat_template_kwargs": {"suffix": SUFFIX},
                "generation_config": str(folder / "defaults"),
            }
        }
    )
    with engine_process(entry, tier, {MODEL: bundled_model}, folder / "log") as process:
        yield process


def core_of(engine: EngineProcess) -> Process:
    (core,) = [each for each in process_tree(engine.pid) if "EngineCore" in command_of(each)]
    return core


def body(**over: Any) -> dict[str, Any]:
    return {
        "model": "eco",
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
    } | over


@pytest.fixture(scope="module")
def answer(engine: EngineProcess) -> Reply:
    [reply] = engine.ask([Ask(PROMPT, max_tokens=TOKENS)]).replies
    return reply


def test_both_ways_to_ask_give_the_same_greedy_text(engine: EngineProcess, answer: Reply) -> None:
    [called] = engine.call([(CHAT, body())])

    assert called.status == 200
    answered = json.loads(called.body)
    assert answered["choices"][0]["message"]["content"] == answer.text
    assert answered["usage"]["prompt_tokens"] == answer.prompt_tokens


def test_an_engine_that_is_stopped_is_silent_until_it_goes_on(engine: EngineProcess, answer: Reply) -> None:
    core = core_of(engine)
    core.suspend()
    goes_on = Timer(STOPPED_S, core.resume)
    goes_on.start()
    batch = engine.ask([Ask(PROMPT, max_tokens=TOKENS)])
    goes_on.join()
    assert batch.token_ids == [answer.token_ids]
    assert STOPPED_S - 0.5 < batch.silent_s < batch.seconds
    assert engine.ask([Ask(PROMPT, max_tokens=TOKENS)]).silent_s < STOPPED_S - 0.5


def test_the_template_its_arguments_and_the_models_defaults_are_in_that_text(
    engine: EngineProcess, answer: Reply
) -> None:
    spoken = f"<|im_start|>user\n{PROMPT}{SUFFIX}<|im_end|>\n<|im_start|>assistant\n"
    completion = {"model": "eco", "prompt": spoken, "max_tokens": TOKENS, "temperature": 0}
    same, without_defaults = engine.call(
        [("/v1/completions", completion), ("/v1/completions", completion | {"repetition_penalty": 1.0})]
    )

    assert json.loads(same.body)["choices"][0]["text"] == answer.text
    assert json.loads(without_defaults.body)["choices"][0]["text"] != answer.text


@pytest.mark.parametrize("cut", [0.3, 0.6])
def test_an_answer_that_is_begun_is_continued_as_if_it_had_not_been_interrupted(
    engine: EngineProcess, answer: Reply, cut: float
) -> None:
    words = re.split(r"(?= )", answer.text)  # each with the space before it, as in its tokens
    begun = "".join(words[: int(len(words) * cut)])
    [rest] = engine.ask([Ask(PROMPT, max_tokens=TOKENS, begun=begun)]).replies
    assert (begun + rest.text)[: len(answer.text)] == answer.text
    assert rest.prompt_tokens > answer.prompt_tokens


def test_a_watched_answer_is_the_same_and_says_how_sure_its_model_was(engine: EngineProcess, answer: Reply) -> None:
    unwatched, [watched] = answer, engine.ask([Ask(PROMPT, max_tokens=TOKENS, watch=True)]).replies
    assert (watched.text, watched.token_ids) == (unwatched.text, unwatched.token_ids)
    assert unwatched.signs is not None
    assert all(math.isnan(value) for value in unwatched.signs[:3])
    assert watched.signs is not None
    logprob, first, worst = watched.signs[:3]
    assert worst <= min(logprob, first) <= max(logprob, first) <= 0

    called = body(logprobs=True, top_logprobs=0)
    [theirs] = engine.call([(CHAT, called)])
    of_tokens = [each["logprob"] for each in json.loads(theirs.body)["choices"][0]["logprobs"]["content"]]
    assert first == pytest.approx(fmean(of_tokens[:WINDOW]), abs=0.01)
    assert logprob == pytest.approx(fmean(of_tokens[-WINDOW:]), abs=0.01)


def test_a_seeded_sampled_request_gives_one_text_on_the_openai_routes_too(engine: EngineProcess) -> None:
    seeded = body(
        max_tokens=24, temperature=0.9, seed=20, vllm_xargs={"speculation_k": "auto", "speculation_category": "math"}
    )
    [alone] = engine.call([(CHAT, seeded)])
    together = engine.call([(CHAT, seeded)] * 3)

    texts = [json.loads(called.body)["choices"][0]["message"]["content"] for called in (alone, *together)]
    assert len(set(texts)) == 1


def test_a_role_that_the_template_refuses_is_a_400_on_both(engine: EngineProcess) -> None:
    [refused] = engine.ask([Ask(PROMPT, system="Be brief.")], refusals=True).refused
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
    [called] = engine.call([(CHAT, body(messages=messages))])

    assert (refused.code, refused.status, refused.retryable) == ("bad_request", 400, False)
    assert called.status == 400
    for message in (refused.message, called.error["message"]):
        assert "this model takes no system message" in message


def test_tokenizing_a_long_prompt_delays_no_other_stream(engine: EngineProcess) -> None:
    letters = random.Random(1).choices(string.ascii_lowercase + "     ", k=FIT_CHARACTERS)  # unlike any cached word
    long = Ask("".join(letters))
    batch = engine.ask([Ask(PROMPT, max_tokens=TOKENS), *[long] * LONG_PROMPTS], refusals=True)

    assert len(batch.refused) == LONG_PROMPTS
    assert all("tokens" in refused.message for refused in batch.refused)
    assert len(batch.replies[0].token_ids) > 8
    assert batch.loop_s < LOOP_S, f"the loop worked for {batch.loop_s:.2f} s at a stretch"


def test_a_top_k_is_served_in_steps_without_drafts_too(engine: EngineProcess) -> None:
    # vLLM 0.32 on CPU ended the engine of such a request.
    sampled = body(top_k=5, temperature=1, max_tokens=8)
    called = engine.call([(CHAT, sampled | {"vllm_xargs": {"speculation_k": k}}) for k in (0, "auto", 2)])

    assert [answer.status for answer in called] == [200] * 3


SAMPLING: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 1, "top_p": 0.5},
    {"temperature": 1, "top_k": 3, "top_p": 0.5, "seed": 7},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"bad_words": ["Red", "Apple"]},
    {"allowed_token_ids": [5, 6, 7, 8]},
    {"min_tokens": 4, "stop_token_ids": [2]},
    {"logprobs": True, "top_logprobs": 3},
    {"temperature": 1, "logprobs": True, "top_logprobs": 0},
    {"prompt_logprobs": 1},
    {"n": 2, "temperature": 1},
    {"ignore_eos": True, "skip_special_tokens": False},
    {"structured_outputs": {"choice": ["red", "blue"]}, "temperature": 1},
    {"response_format": {"type": "json_object"}},
)


def test_no_sampling_option_ends_the_engine_with_or_without_drafts(engine: EngineProcess) -> None:
    # Their prompt repeats itself, so that drafts come.
    messages = [{"role": "user", "content": "red blue red blue red blue red"}]
    fields = [
        sampling | {"vllm_xargs": {"speculation_k": k}, "max_tokens": 4, "messages": messages}
        for k in (0, 2, "auto")
        for sampling in SAMPLING
    ]
    alone = fields[: 2 * len(SAMPLING)]  # of these two, `auto` takes one or the other at each step
    answers = [answer for each in alone for answer in engine.call([(CHAT, body(**each))])]
    answers += engine.call([(CHAT, body(**each)) for each in fields])

    for each, answer in zip([*alone, *fields], answers, strict=True):
        assert (answer.status, answer.failure) == (200, None), each


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"structured_outputs": {"regex": "(["}},
        {"structured_outputs": {"grammar": "root ::= nothing"}},
        {"structured_outputs": {"grammar": "root ::= root"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no-such"}}}},
        {"logprobs": True, "top_logprobs": 100},
        {"logit_bias": {"5": 1.0}},
    ],
    ids=["regex", "grammar", "grammar for the compiler", "schema", "logprobs", "logit bias"],
)
def test_an_engine_refusal_is_a_400_streamed_or_whole(
    engine: EngineProcess, wrong: dict[str, Any], stream: bool
) -> None:
    [called] = engine.call([(CHAT, body(stream=stream, **wrong))])

    assert called.status == 400
    assert called.failure is None
    assert called.error["code"] == 400


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_more_sequences_than_a_replica_may_hold_get_503(engine: EngineProcess, stream: bool) -> None:
    most = 4 * load_profile("local").tiers["eco"].max_ongoing_requests
    [refused] = engine.call([(CHAT, body(n=most + 1, temperature=1, stream=stream))])

    assert refused.status == 503
    assert "busy" in refused.error["message"]


def test_an_answer_follows_a_schema_while_each_step_has_its_own_depth(engine: EngineProcess) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    [called] = engine.call([(CHAT, body(response_format=form))])

    assert json.loads(json.loads(called.body)["choices"][0]["message"]["content"])["colour"] in ("red", "blue")


def test_an_engine_that_was_stopped_and_is_killed_is_known_to_be_dead(engine: EngineProcess) -> None:
    core = core_of(engine)
    core.suspend()
    assert engine.kill()  # the last test of this file: nobody can ask it any more
    assert not is_alive(core)
