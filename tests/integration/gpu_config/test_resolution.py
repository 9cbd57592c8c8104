"""vLLM's own config resolution of every GPU entry that we ship, on pretended cards of six compute capabilities."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from cluster.catalogue.types import catalogue
from serve_app.engine.vllm.decode_graphs import decode_graphs, piecewise_sizes
from tests.integration.gpu_config.profiles import CAPABILITIES, ODD, ODD_ON, OTHER_SETTINGS, SHIPPED, Key, entries

LINEAR: Final = {
    # By weight format: on Ampere, Ada, Hopper, Blackwell. Marlin computes in 16 bits, on cards without FP8 units too.
    "bf16": (None, None, None, None),
    "w4a16": ("MarlinLinearKernel", "MarlinLinearKernel", "MacheteLinearKernel", "MarlinLinearKernel"),
    "fp8": ("MarlinFP8ScaledMMLinearKernel", *("CutlassFP8ScaledMMLinearKernel",) * 3),
    "fp8-block": (*("MarlinFP8ScaledMMLinearKernel",) * 2, *("CutlassFp8BlockScaledMMKernel",) * 2),
}

Resolved = dict[Key, dict[str, Any]]


@pytest.fixture(scope="module")
def resolved(vllm_installed: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Resolved]:
    """What `resolve.py` says, by capability and (profile, tier, entry)."""

    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-m", "tests.integration.gpu_config.resolve", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Resolved] = {capability: {} for capability in CAPABILITIES}
    # vLLM writes its log to stdout.
    for each in (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")):
        found[each["capability"]][tuple(each["key"])] = each
    return found


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_vllm_takes_every_entry(resolved: dict[str, Resolved], capability: str) -> None:
    assert resolved[capability].keys() >= entries(capability).keys() != set()
    assert {key: resolved[capability][key].get("error") for key in entries(capability)} == dict.fromkeys(
        entries(capability)
    )


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_entry_runs_on_v2_and_schedules_ahead(resolved: dict[str, Resolved], capability: str) -> None:
    # No shipped entry has a method that only V1 does right.
    found = [resolved[capability][key] for key in entries(capability)]
    assert {(each["runner"], each["async"]) for each in found} == {("v2", True)}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_executor_and_the_classes_are_ours(resolved: dict[str, Resolved], capability: str) -> None:
    for key, (tier, entry) in entries(capability).items():
        found = resolved[capability][key]
        parallel = tier.tensor_parallel
        assert (found["executor"], found["tensor_parallel"]) == ("mp" if parallel > 1 else "uni", parallel), key
        if entry.speculation is not None:
            assert found["scheduler"] == "serve_app.engine.vllm.scheduler.DepthScheduler", key
            assert found["worker"] == "serve_app.engine.vllm.gpu_worker.DepthGpuWorker", key


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_depth_has_whole_step_graphs_up_to_the_largest_batch(
    resolved: dict[str, Resolved], capability: str
) -> None:
    checked = 0
    for key, (_, entry) in entries(capability).items():
        found = resolved[capability][key]
        assert found["graph_mode"] == "FULL_AND_PIECEWISE", key
        if entry.speculation is None:
            continue
        wanted = decode_graphs(entry.speculation.k_max, found["max_num_seqs"])
        for graphs in (found["graphs"]["target"], found["graphs"]["draft"]):
            assert graphs["without"] == [], key
            assert graphs["whole"] == sum(map(len, wanted.values())), key
            # Steps of mixed depths and of prompts.
            assert graphs["pieces"] == piecewise_sizes(entry.speculation.k_max, found["max_num_seqs"]), key
        # Why the managers are ours: with the same schedule vLLM's own leave batches without the graph of their depth.
        assert found["graphs"]["vllms"]["without"] != [], key
        assert len(found["graphs"]["vllms"]["pieces"]) > len(found["graphs"]["target"]["pieces"]), key
        checked += 1
    assert checked


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_our_settings_do_not_change_the_compile_hash(resolved: dict[str, Resolved], capability: str) -> None:
    found = resolved[capability]
    other = next(each for key, each in found.items() if key[0] == OTHER_SETTINGS)
    same = next(each for key, each in found.items() if key[0] == SHIPPED.stem and each["graphs"])
    assert (same["key"][2], same["hash"]) == (other["key"][2], other["hash"])
    # The hash does cover what is compiled.
    assert len({found[key]["hash"] for key in entries(capability)}) > 1


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_is_compiled_and_not_flashinfers(resolved: dict[str, Resolved], capability: str) -> None:
    # Graphs for any mix of depths ("ALWAYS") would be possible on Hopper only.
    expected = ["FLASH_ATTN", 3, "ALWAYS"] if capability == "9.0" else ["FLASH_ATTN", 2, "UNIFORM_BATCH"]
    assert {json.dumps(resolved[capability][key]["attention"]) for key in entries(capability)} == {json.dumps(expected)}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_quantized_weights_have_a_compiled_kernel_on_every_card(resolved: dict[str, Resolved], capability: str) -> None:
    generation = {"8.0": 0, "8.6": 0, "8.9": 1, "9.0": 2, "10.0": 3, "12.0": 3}[capability]
    for key, (_, entry) in entries(capability).items():
        weights = catalogue().models[entry.target].weights
        assert resolved[capability][key]["linear"] == LINEAR[weights][generation], key


def odd(resolved: dict[str, Resolved], tier: str, entry: str) -> dict[str, Any]:
    return resolved[ODD_ON][ODD.stem, tier, entry]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("unknown-argument", ["engine_args", "'max_num_sequences'"]),
        ("unknown-nested-key", ["engine_args", "CompilationConfig", "cudagraph_capture_size"]),
        ("wrong-nested-value", ["engine_args", "'SOMETIMES'"]),
        ("few-sequences", ["max_num_seqs is 5: it must be more than speculation.k_max (5)"]),
        ("two-batches-at-once", ["dual batch overlap"]),
    ],
)
def test_an_entry_that_cannot_be_right_is_refused_by_name(
    resolved: dict[str, Resolved], entry: str, words: list[str]
) -> None:
    error = odd(resolved, "eco", entry)["error"]
    assert all(word in error for word in words), error


def test_engine_args_may_be_nested(resolved: dict[str, Resolved]) -> None:
    found = odd(resolved, "balanced", "nested")
    # Only what these three sizes give: 1, 2 and 4 tokens, by 1 to 4 tokens a request.
    assert "error" not in found
    assert 0 < found["graphs"]["target"]["whole"] <= 8


def test_draft_models_run_on_v2_with_graphs_for_every_depth_and_may_run_on_v1(resolved: dict[str, Resolved]) -> None:
    found = odd(resolved, "balanced", "draft-model")
    assert (found["runner"], found["async"], found["graphs"]["target"]["without"]) == ("v2", True, [])
    on_v1 = odd(resolved, "balanced", "draft-model-on-v1")
    assert (on_v1["runner"], on_v1["async"], on_v1["graphs"]) == ("v1", True, None)
    assert on_v1["worker"] == "serve_app.engine.vllm.composite_drafts.CompositeGpuWorker"


def test_on_v1_no_schedule_takes_the_whole_step_graphs_away(resolved: dict[str, Resolved]) -> None:
    found = odd(resolved, "balanced", "eagle3-on-v1")
    assert (found["runner"], found["graph_mode"]) == ("v1", "FULL_AND_PIECEWISE")


def test_p_eagle_heads_run_on_v1_and_draft_all_tokens_at_once(resolved: dict[str, Resolved]) -> None:
    found = odd(resolved, "balanced", "p-eagle")
    assert (found["runner"], found["async"], found["parallel_drafting"]) == ("v1", True, True)
    assert not odd(resolved, "balanced", "eagle3-on-v1")["parallel_drafting"]
