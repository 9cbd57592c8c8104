"""Estimate the speed of the catalogue's models on its GPUs, without a GPU: `python -m bench.estimate`.

Runs in a virtual environment of its own, as the application needs none of it:

    python3.11 -m venv /tmp/aic && /tmp/aic/bin/pip install aiconfigurator==0.12.0 aiconfigurator-core==0.12.0
    PYTHONPATH=. HF_HUB_OFFLINE=1 /tmp/aic/bin/python -m bench.estimate

aiconfigurator puts a forward pass together from kernel times that were measured on GPUs (`kernels`), or from a card's
specifications (`specifications`); where it has neither, `cluster/catalogue/speed.py` divides bytes by bandwidth
(`bandwidth`). No speculation, prompts of 512 tokens, answers of 256, a static batch. Power is not covered: Wh are the
catalogue's watts times the time. Writes `cluster/catalogue/estimates.yaml` and `bench/results/estimates.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.catalogue.memory import DEFAULT_UTILIZATION, kv_cache
from cluster.catalogue.speed import PROMPT_TOKENS, decode_ms, prefill_ms
from cluster.catalogue.types import GIB, Catalogue, Gpu, Model, catalogue

ROOT: Final = Path(__file__).parents[1]
VERSION: Final = "0.12.0"
BATCHES: Final = (1, 8, 32, 128)
ANSWER_TOKENS: Final = 256
_ESTIMATOR: Final = "aiconfigurator.cli.api"
_GEMM: Final = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "w4a16": "int4_wo"}
_BASIS: Final = {
    "SILICON": "kernels",
    "HYBRID": "kernels, in part specifications",
    "SOL": "specifications, ideal",
}
"""By aiconfigurator's `database_mode`."""
_ABSURD: Final = 20.0
"""An estimate that many times slower than reading the weights is dropped: kernel times that it extrapolated."""
_SMALL: Final = 0.04
"""A model that takes less than this share of a card is no case: nobody gives it the card."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Speed of one model on some cards."""

    model: str
    gpu: str
    parallel: int
    basis: str
    ttft_ms: float
    step_ms: dict[int, float]  # by batch size


def main(argv: Sequence[str] | None = None) -> int:
    """Write both files; return 2, and write nothing, if aiconfigurator cannot be imported."""
    argparse.ArgumentParser(
        prog="python -m bench.estimate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    try:
        import_module(_ESTIMATOR)
    except ImportError as error:
        print(
            f"bench.estimate needs aiconfigurator ({error}): install it in a virtual environment of its own with "
            f"`pip install aiconfigurator=={VERSION} aiconfigurator-core=={VERSION}`, and run this with its Python; "
            "nothing was written",
            file=sys.stderr,
        )
        return 2
    # aiconfigurator reads some 300 YAML files for each estimate, with PyYAML's slow loader.
    yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment,misc]
    known = catalogue()
    estimates = [estimate for case in cases(known) if (estimate := estimated(*case, known))]
    (ROOT / "cluster/catalogue/estimates.yaml").write_text(as_yaml(estimates), encoding="utf-8")
    (ROOT / "bench/results/estimates.md").write_text(as_markdown(estimates, known), encoding="utf-8")
    return 0


def cases(known: Catalogue) -> Iterator[tuple[str, str, int]]:
    """Yield model, GPU and tensor parallel size: the smallest that holds the model, and for a large one the next."""
    for name, model in known.models.items():
        for gpu_name, gpu in known.gpus.items():
            small = model.weight_bytes / GIB < _SMALL * gpu.memory_gib
            if gpu.capability < model.capability or small:
                continue
            fitting = [size for size in (1, 2, 4, 8) if size <= model.max_parallel and holds(model, gpu, size)]
            yield from ((name, gpu_name, size) for size in fitting[: 2 if model.rank > 10 else 1])


def holds(model: Model, gpu: Gpu, parallel: int) -> bool:
    """Return whether weights, 4096 tokens and 2 GiB fit on each card."""
    return model.weight_bytes / parallel / GIB + kv_cache(model, parallel, 4096) + 2 < (
        DEFAULT_UTILIZATION * gpu.memory_gib
    )


def estimated(model_name: str, gpu_name: str, parallel: int, known: Catalogue) -> Estimate | None:
    """Return aiconfigurator's estimate, or the arithmetic of `speed.py` where it lacks the card or the kernels."""
    model, gpu = known.models[model_name], known.gpus[gpu_name]
    for mode in modes(model, gpu):
        try:
            rows = {batch: _aiconfigurator(model, gpu.system or "", parallel, batch, mode) for batch in BATCHES}
        except Exception as error:  # noqa: BLE001 - its errors have no common class
            print(f"{model_name} on {parallel} x {gpu_name}, {mode}: {str(error)[:160]}", file=sys.stderr)
            continue
        steps = {batch: round(row.tpot, 2) for batch, row in rows.items()}
        if steps[1] > _ABSURD * decode_ms(model, gpu, parallel, 1):
            print(f"{model_name} on {parallel} x {gpu_name}, {mode}: {steps[1]} ms a step", file=sys.stderr)
            continue
        return Estimate(model_name, gpu_name, parallel, _BASIS[mode], round(rows[1].ttft, 1), steps)
    steps = {batch: round(decode_ms(model, gpu, parallel, batch), 2) for batch in BATCHES}
    ttft = round(prefill_ms(model, gpu, parallel, PROMPT_TOKENS), 1)
    return Estimate(model_name, gpu_name, parallel, "bandwidth", ttft, steps)


def modes(model: Model, gpu: Gpu) -> tuple[str, ...]:
    """Return the modes to try: it has measured no 4-bit kernel on these cards, and none at all on some."""
    if gpu.estimates == "kernels":
        return ("HYBRID",) if model.weights == "w4a16" else ("SILICON", "HYBRID")
    return ("SOL",) if gpu.estimates == "specifications" else ()


def _aiconfigurator(model: Model, system: str, parallel: int, batch: int, mode: str) -> Any:
    cli_estimate = import_module(_ESTIMATOR).cli_estimate
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hub_config(model)), encoding="utf-8")
        return cli_estimate(
            folder,
            system,
            mode="static",
            backend_name="vllm",
            database_mode=mode,
            isl=PROMPT_TOKENS,
            osl=ANSWER_TOKENS,
            batch_size=batch,
            tp_size=parallel,
            moe_tp_size=parallel if model.experts > 1 else None,
            moe_ep_size=1 if model.experts > 1 else None,
            gemm_quant_mode=_GEMM[model.weights],
            moe_quant_mode=_GEMM[model.weights] if model.experts > 1 else None,
            kvcache_quant_mode="bfloat16",
            fmha_quant_mode="bfloat16",
        )


def hub_config(model: Model) -> dict[str, Any]:
    """Return the `config.json` of the model's shape."""
    moe = model.experts > 1
    family, kind = ("Qwen3MoeForCausalLM", "qwen3_moe") if moe else ("LlamaForCausalLM", "llama")
    config: dict[str, Any] = {
        "architectures": [family],
        "model_type": kind,
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "intermediate_size": model.intermediate,
        "max_position_embeddings": model.context,
        "tie_word_embeddings": model.tied,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    }
    if moe:
        experts = {"num_experts": model.experts, "num_experts_per_tok": model.experts_per_token}
        config |= experts | {"moe_intermediate_size": model.intermediate}
    return config


def as_yaml(estimates: list[Estimate]) -> str:
    """Return the estimates as the catalogue reads them."""
    head = (
        f"# Estimated, not measured: `python -m bench.estimate` (aiconfigurator {VERSION}). No speculation; prompt of\n"
        f"# {PROMPT_TOKENS} tokens. `step_ms`: time of a decode step by batch size. Model, GPU, tensor parallel size.\n"
    )
    tree: dict[str, Any] = {}
    for each in estimates:
        entry = {"basis": each.basis, "ttft_ms": each.ttft_ms, "step_ms": each.step_ms}
        tree.setdefault(each.model, {}).setdefault(each.gpu, {})[each.parallel] = entry
    return head + yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=110)


def as_markdown(estimates: list[Estimate], known: Catalogue) -> str:
    """Return the table of speed, price and energy."""
    lines = [
        "# Estimated speed, price and energy",
        "",
        f"By `python -m bench.estimate` with aiconfigurator {VERSION}: **estimated, nothing here was run**. No",
        f"speculation, prompts of {PROMPT_TOKENS} tokens, static batches of 1, 8, 32 and 128. `basis` says from what:",
        "measured kernel times, the card's specifications (`ideal`: a roofline, too fast), or bytes over bandwidth",
        "(no estimate of aiconfigurator). Price and watts are the catalogue's (cluster/catalogue/gpus.yaml): list",
        "prices on demand, power limits rather than measured power, so Wh are modelled and rather too high.",
        "",
        "Not to be relied on: FP8 in blocks (the two Qwen3 MoE and Qwen3-4B) comes out slower than larger models in",
        "plain FP8, and on B200 slower than on H100; those kernel times look too long at small batches.",
        "",
        "| model | on | basis | TTFT, ms | tokens/s a stream, batch 1 / 8 / 32 / 128 | USD per 10^6 tokens | "
        "Wh per 10^6 tokens |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in estimates:
        gpu = known.gpus[each.gpu]
        total = {batch: 1000 * batch / ms for batch, ms in each.step_ms.items()}
        streams = " / ".join(f"{1000 / ms:.0f}" for ms in each.step_ms.values())
        price = gpu.price_usd_per_hour
        usd = (
            " / ".join(f"{price * each.parallel / 3600 / rate * 1e6:.2f}" for rate in total.values()) if price else "-"
        )
        energy = " / ".join(f"{gpu.active_watts * each.parallel / 3600 / rate * 1e6:.0f}" for rate in total.values())
        where = f"{each.parallel} x {each.gpu}"
        lines.append(f"| {each.model} | {where} | {each.basis} | {each.ttft_ms:.0f} | {streams} | {usd} | {energy} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
