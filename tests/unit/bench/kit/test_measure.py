"""The figures of the kit, from batches made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bench.engine.engines import Ask, Batch, BatchEnergy, Reply, StepTaken
from bench.engine.prompts import COPYING
from bench.gpu import main, read_prompts, references
from bench.kit.card import NO_CARDS, parse_cards
from bench.kit.folder import folder_of, models_in
from bench.kit.gsm8k import Problem, is_right, read_problems
from bench.kit.measure import Measurer, agreement, energy_figures, interleaved, load_figures, step_times, with_depths
from bench.kit.plan import Engine, Measurement, engines_of
from bench.kit.results import Results
from bench.kit.run import NothingToCompareError
from bench.kit.table import table
from bench.reporting.report import REPOSITORY
from cluster.profiles.reading import load_profile
from router.registry import ChainEntry, Profile
from sustainability.shares import Totals
from tests.unit.bench.kit.conftest import ALL_THERE, MACHINE, MADE_BY


def reply(arrivals: list[tuple[float, int]], steps: list[tuple[int, int]], tokens: list[int] | None = None) -> Reply:
    """Of steps with (drafted, accepted)."""
    count = sum(tokens for _, tokens in arrivals)
    return Reply(
        token_ids=tokens or list(range(count)),
        accepted=[False] * count,
        text="",
        began_s=0.0,
        arrivals=arrivals,
        finish_reason="length",
        prompt_tokens=1,
        draft_tokens=sum(drafted for drafted, _ in steps),
        accepted_tokens=sum(accepted for _, accepted in steps),
        reasons={},
        stopped_by_tau=False,
        steps=[StepTaken(drafted, accepted, "asked", "own") for drafted, accepted in steps],
        core_steps=None,
    )


class FakeProcess:
    """Answers every request with the same tokens, and keeps the requests."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.asks: list[Ask] = []

    def ask(self, asks: list[Ask], **_: Any) -> Batch:
        self.asks += asks
        return Batch([reply([(0.1, 1), (0.3, 2)], [(0, 0), (2, 1)], self.tokens) for _ in asks], 1.0, 0, None, (0, 0))


def test_a_steps_time_is_that_of_an_item_with_one_step_only() -> None:
    # 3 drafts of which 2 are accepted, then two steps in one item, then a last step whose second token was cut off.
    arrivals = [(1.0, 1), (1.5, 3), (2.5, 3), (2.6, 1)]
    steps = [(0, 0), (3, 2), (3, 1), (0, 0), (3, 1)]
    assert list(step_times(reply(arrivals, steps))) == [(0.5, 3), (pytest.approx(0.1), 3)]


def test_an_engine_without_speculation_makes_a_token_a_step() -> None:
    batch = Batch([reply([(1.0, 1), (1.1, 1), (1.5, 2), (1.7, 1)], [])], 1.7, 0, None, (0, 0))
    figures = load_figures(batch, "off")
    assert (figures["step_p50_ms"], figures["steps"]) == (pytest.approx(150), 2)  # of 100 and 200
    assert figures["acceptance_rate"] is None


def measured_batch(energy: BatchEnergy) -> Batch:
    """4 s, 3 of them busy, 6 tokens."""
    replies = [reply([(1.0, 1), (4.0, 2)], [(0, 0), (2, 1)])] * 2
    return Batch(replies, 4.0, 0, None, (0, 0), energy=energy, busy=Totals(3.0))


def test_measured_watts_stand_beside_those_of_the_tier() -> None:
    tier = load_profile("gpu").tiers["eco"].model_copy(update={"active_watts": 100, "idle_watts": 20})
    energy = BatchEnergy(None, counter_j=240, busy_j=210, idle_j=30, billed_j=180, aside_j=20, owed_j=8)
    assert energy_figures(measured_batch(energy), tier) == {
        "watts": 60,
        "modelled_watts": 80,  # 3 s at 100 W and 1 s at 20 W
        "joules_per_token": 40,
        "modelled_joules_per_token": pytest.approx(320 / 6),
        "busy_share": 0.75,
        "found_again": pytest.approx(238 / 240),
    }


def test_energy_that_was_not_measured_has_a_reason() -> None:
    tier = load_profile("gpu").tiers["eco"]
    assert energy_figures(measured_batch(BatchEnergy("NVML: gone")), tier) == {"energy_reason": "NVML: gone"}


def test_the_step_time_of_a_depth_is_of_steps_with_that_many_drafts() -> None:
    batch = Batch(
        [reply([(1.0, 1), (1.2, 2), (1.3, 1), (1.6, 2)], [(0, 0), (2, 1), (0, 0), (2, 1)])], 1.6, 0, None, (0, 0)
    )
    deep, none, mixed = (load_figures(batch, setting) for setting in ("K=2", "K=0", "mixed"))
    assert (deep["step_p50_ms"], deep["steps"]) == (pytest.approx(250), 2)  # of 200 and 300
    assert (none["step_p50_ms"], none["steps"]) == (pytest.approx(100), 1)
    assert (mixed["step_p50_ms"], mixed["steps"]) == (pytest.approx(200), 3)
    assert deep["ttft_p50_ms"] == pytest.approx(1000)
    assert deep["acceptance_rate"] == pytest.approx(0.5)  # 2 of 4
    assert load_figures(batch, "K=5")["step_p50_ms"] is None


def test_answers_are_equal_or_agree_up_to_a_token() -> None:
    got = agreement([[1, 2, 3, 4], [5, 6], [7, 8]], [[1, 2, 9, 4], [5, 6], [7]])
    assert (got["exact"], got["of"]) == (1, 3)
    assert got["agreed_prefix"] == pytest.approx((0.5 + 1 + 0.5) / 3)


def test_mixed_requests_have_all_depths_side_by_side() -> None:
    assert [ask.k for ask in with_depths("abcde", "mixed", 3, 8)] == [0, 1, 2, 3, 0]
    assert {ask.k for ask in with_depths("ab", "auto", 3, 8)} == {"auto"}
    assert {ask.k for ask in with_depths("ab", "K=2", 3, 8)} == {2}
    assert {ask.temperature for ask in with_depths("ab", "off", 0, 8)} == {0.0}


def test_prompts_of_all_categories_take_turns() -> None:
    assert interleaved({"a": ["1", "2", "3"], "b": ["4"]}) == ["1", "4", "2", "3"]


def measurer(tmp_path: Path, engines: list[Engine]) -> Measurer:
    results = Results(dict(MACHINE), MADE_BY, tmp_path / "r.json", "local")
    return Measurer({"chat": ["a", "b"], "code": ["c"]}, [Problem("?", "3")], results, references(engines))


def test_drafted_answers_are_compared_with_those_of_the_same_entry_without_speculation(
    profile: Profile, tmp_path: Path
) -> None:
    off, drafts, early_exit = engines_of(profile, ALL_THERE, 1)[:3]
    measure = measurer(tmp_path, [off, drafts, early_exit])
    with pytest.raises(NothingToCompareError):
        measure(FakeProcess([1, 2, 3]), drafts, Measurement("answers", "K=1"), 60)  # type: ignore[arg-type]
    known = measure(FakeProcess([1, 2, 3]), off, Measurement("answers", "off"), 60)  # type: ignore[arg-type]
    measure.results.put(off, Measurement("answers", "off"), known, 1.0)
    for engine in (drafts, early_exit):
        compared = measure(FakeProcess([1, 2, 4]), engine, Measurement("answers", "mixed"), 60)  # type: ignore[arg-type]
        assert (compared["exact"], compared["of"]) == (0, 3)
        assert compared["agreed_prefix"] == pytest.approx(2 / 3)


def test_what_cannot_be_compared_is_no_reason_to_start_an_engine(profile: Profile, tmp_path: Path) -> None:
    off, drafts, _ = engines_of(profile, ALL_THERE, 1)[:3]
    measure = measurer(tmp_path, [off, drafts])
    answers, load = Measurement("answers", "K=1"), Measurement("load", "K=1", 8)
    assert not measure.hopeless(drafts, answers)
    measure.results.fail(off, "out of memory")
    assert measure.hopeless(drafts, answers)
    assert not measure.hopeless(drafts, load)
    assert not measure.hopeless(off, Measurement("answers", "off"))
    impossible = replace(measure, references={drafts.key: replace(off, impossible="no weights")})
    measure.results.forget_failures()
    assert impossible.hopeless(drafts, answers)
    assert not measure.hopeless(drafts, answers)


def test_prompts_that_might_not_fit_the_context_are_not_sent(profile: Profile, tmp_path: Path) -> None:
    engine = engines_of(profile, ALL_THERE, 1)[0]  # of 2,048 tokens
    made_up = replace(engine, dummy=("m",))
    measure = replace(measurer(tmp_path, [engine]), families={"long": ["x" * 3000], "short": ["y" * 1500]})
    for each, sent in ((engine, {3000, 1500}), (made_up, {1500})):
        process = FakeProcess([1, 2, 3])
        measure(process, each, Measurement("answers", "off"), 60)  # type: ignore[arg-type]
        assert {len(ask.prompt) for ask in process.asks} == sent


def test_an_entry_whose_context_is_too_short_for_any_prompt_says_so(profile: Profile, tmp_path: Path) -> None:
    engine = engines_of(profile, ALL_THERE, 1)[0]
    engine = replace(engine, entry=engine.entry.model_copy(update={"max_model_len": 64}))
    with pytest.raises(ValueError, match="max_model_len is 64: no prompt fits for sure"):
        measurer(tmp_path, [engine])(FakeProcess([1]), engine, Measurement("start", "empty"), 60)  # type: ignore[arg-type]


def test_acceptance_is_counted_by_category_at_the_greatest_depth(profile: Profile, tmp_path: Path) -> None:
    engines = engines_of(profile, ALL_THERE, 1)
    process = FakeProcess([1, 2, 3])
    figures = measurer(tmp_path, engines)(process, engines[1], Measurement("acceptance", "K=5"), 60)  # type: ignore[arg-type]
    assert figures == {"by_category": {"chat": 0.5, "code": 0.5}}
    assert {ask.k for ask in process.asks} == {5}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("So 3 * 400 = 1,200.\n#### 1200", True),
        ("#### $1,200.00 in all", True),
        ("It is 1200", True),
        ("1200, or rather 1300", False),
        ("#### 12\n1200", False),
        ("I do not know", False),
    ],
)
def test_the_number_after_the_mark_or_the_last_one_is_the_answer(answer: str, right: bool) -> None:
    assert is_right(Problem("?", "1200"), answer) is right


def test_problems_are_read_if_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"turns": ["1 + 1?"], "answer": "2"}\n{"turns": ["2 + 2?"], "answer": "4"}\n')
    assert read_problems(tmp_path / "p.jsonl", 1) == [Problem("1 + 1?", "2")]
    assert read_problems(tmp_path / "none", 1) == []


def test_there_are_prompts_without_files(tmp_path: Path) -> None:
    families = read_prompts(tmp_path)
    assert set(families) == {"chat", "code", "math", COPYING}
    assert all(len(set(prompts)) >= 8 for prompts in families.values())


def test_cards_are_read_as_the_driver_names_them() -> None:
    line = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.159, 700.00 W\n"
    cards = parse_cards(2 * line)
    assert (cards.name, cards.count, cards.memory_gib, cards.driver) == ("NVIDIA H100 80GB HBM3", 2, 79.6, "580.159")
    assert parse_cards("") == NO_CARDS
    shared = parse_cards("NVIDIA GB10, [N/A], 580.95, [N/A]\n")
    assert (shared.name, shared.count, shared.memory_gib) == ("NVIDIA GB10", 1, 0.0)


def model(folder: Path, weights: bool = True, **config: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        (folder / "model.safetensors").write_bytes(b"0" * 1024)


def test_a_folder_with_only_a_config_means_made_up_weights(tmp_path: Path) -> None:
    model(tmp_path / "smollm2-135m-instruct", weights=False)
    found = models_in(tmp_path, load_profile("local"), 80, tmp_path / "stand-ins")
    assert found.dummy == {"smollm2-135m-instruct"}
    assert list(found.missing) == ["smollm2-135m-instruct-early-exit-4"]
    assert "seed" in found.missing["smollm2-135m-instruct-early-exit-4"]


def test_models_that_are_nowhere_have_the_catalogues_shape(tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand-ins"
    gpu = load_profile("gpu")
    found = models_in(tmp_path, gpu, 80, stand_ins)
    assert not found.missing
    assert found.dummy == set(gpu.models)
    target = json.loads((folder_of(tmp_path, "llama-3.1-8b-instruct-w4a16", stand_ins) / "config.json").read_text())
    assert (target["hidden_size"], target["num_hidden_layers"], target["vocab_size"]) == (4096, 32, 128256)
    assert target["quantization_config"]["config_groups"]["group_0"]["weights"]["num_bits"] == 4
    head = json.loads((stand_ins / "eagle3-llama-3.1-8b" / "config.json").read_text())
    assert (head["architectures"], head["vocab_size"]) == (["LlamaForCausalLMEagle3"], 128256)
    engines = engines_of(gpu, found, 1)
    assert {engine.label for engine in engines if engine.impossible} == {
        f"ultra/{name}" for name in ("70b-fp8-eagle3", "70b-fp8-ngram", "8b-w4a16")
    }
    characters = Tokenizer.from_file(str(stand_ins / "llama-3.1-8b-instruct-w4a16" / "tokenizer.json"))
    assert characters.decode(characters.encode("1 + 1?\n").ids) == "1 + 1?\n"


def test_the_unquantised_model_is_the_one_whose_name_begins_the_other(tmp_path: Path) -> None:
    model(tmp_path / "smollm2-135m-instruct", quantization_config={})
    model(tmp_path / "smollm2-135m-instruct-early-exit-4")
    model(tmp_path / "smollm2-135m")
    model(tmp_path / "smollm2")
    local = load_profile("local")
    assert models_in(tmp_path, local, 80, tmp_path / "none").unquantised == {"smollm2-135m-instruct": "smollm2-135m"}
    assert models_in(tmp_path, local, 1e-7, tmp_path / "none").unquantised == {}  # it does not fit


def test_the_table_has_every_figure_and_says_what_is_made_up(profile: Profile, tmp_path: Path) -> None:
    off, drafts = engines_of(profile, ALL_THERE, 1)[:2]
    results = Results(dict(MACHINE), MADE_BY, tmp_path / "r.json", "local")
    batch = Batch([reply([(1.0, 1), (1.2, 2)], [(0, 0), (2, 1)])], 1.2, 0, None, (0, 0))
    slow = Batch([reply([(1.0, 1), (1.4, 2)], [(0, 0), (2, 1)])], 1.4, 0, None, (0, 0))
    results.put(off, Measurement("load", "off", 8), load_figures(slow, "off"), 3)
    results.put(drafts, Measurement("load", "K=2", 8), load_figures(batch, "K=2"), 3)
    results.put(drafts, Measurement("answers", "K=1"), {"exact": 7, "of": 8, "agreed_prefix": 0.98}, 3)
    results.put(drafts, Measurement("start", "empty"), {}, 76)
    results.fail(drafts, "torch.OutOfMemoryError: a | b")
    results.of(off)["dummy"] = ["m"]
    drawn = {"watts": 300.0, "modelled_watts": 400.0, "joules_per_token": 1.0, "modelled_joules_per_token": 1.3}
    shares = {"busy_share": 0.9, "found_again": 1.0}
    results.put(off, Measurement("load", "off", 1), load_figures(slow, "off") | drawn | shares, 3)
    lost = load_figures(batch, "K=2") | {"energy_reason": "NVML: GPU is lost"}
    results.put(drafts, Measurement("load", "K=2", 1), lost, 3)
    text = table(results, left=4)
    energy = text.partition("## Energy by")[2].partition("##")[0]
    assert "| 300.00 | 400.00         | 0.75 " in energy
    assert "NVML: GPU is lost" in energy
    for part in ("1 x H100", "made up: m", "7 of 8", "76", "a \\| b", "4 measurements are left"):
        assert part in text
    assert "rehearsal" not in text
    (row,) = [line for line in text.splitlines() if "K=2" in line and "| 8 " in line]
    assert "| 2.00 " in row  # 5 tokens/s more than off: twice as fast
    results.machine = MACHINE | {"cards": 0, "card": "a CPU"}
    assert "A rehearsal on a CPU" in table(results, 0)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kit's arguments for the local profile, whose target is there."""
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    model(tmp_path / "models" / "smollm2-135m-instruct")
    return ["--profile", "local", "--minutes", "10", "--engines-only", "--json", str(tmp_path / "card.json")]


def test_the_command_measures_what_is_there_and_goes_on_the_next_time(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    @contextmanager
    def pretended(entry: ChainEntry, *_: Any, environment: Mapping[str, str], **__: Any) -> Iterator[FakeProcess]:
        started.append(entry.name)
        assert environment["VLLM_CACHE_ROOT"].startswith(str(tmp_path))
        yield FakeProcess([1, 2, 3])

    monkeypatch.setattr("bench.gpu.engine_process", pretended)
    assert main(command) == 0
    # With empty caches and with warm ones; there is no early-exit draft.
    assert started == ["ngram", "ngram", "ngram", "ngram"]
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == text.strip()
    assert "8 of 8" in text
    assert "weights of smollm2-135m-instruct-early-exit-4" in text
    assert main(command) == 0
    assert len(started) == 4


def test_after_an_interrupt_the_table_has_what_was_measured_and_the_next_run_goes_on(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = 3

    class Interrupted(FakeProcess):
        """Somebody presses Ctrl-C while the fourth answer is under way."""

        def ask(self, asks: list[Ask], **more: Any) -> Batch:
            nonlocal answers
            answers -= 1
            if answers < 0:
                raise KeyboardInterrupt
            return super().ask(asks, **more)

    @contextmanager
    def pretended(*_: Any, **__: Any) -> Iterator[FakeProcess]:
        yield Interrupted([1, 2, 3])

    monkeypatch.setattr("bench.gpu.engine_process", pretended)
    assert main(command) == 130
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert "Not finished: " in text
    assert "## Speed by depth and load" in text
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(f"interrupted: {tmp_path / 'card.md'} has what was measured, and the same command goes on")
    )
    answers = 1000
    assert main(command) == 0
    assert "Not finished" not in (tmp_path / "card.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.new"))


def test_the_kit_imports_neither_ray_nor_vllm() -> None:
    script = "import sys, bench.gpu; print(sorted({'ray', 'vllm', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
