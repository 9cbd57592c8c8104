"""Fit the speed of the catalogue's GPUs to measured kernel times, without a GPU: `python -m bench.estimate`.

aiconfigurator puts a forward pass together from kernel times that were measured on GPUs. It needs an environment of
its own, and minutes:

    python3.11 -m venv /tmp/aic && /tmp/aic/bin/pip install aiconfigurator==0.12.0 aiconfigurator-core==0.12.0 scipy
    PYTHONPATH=. HF_HUB_OFFLINE=1 /tmp/aic/bin/python -m bench.estimate

Its rows (`bench/results/estimates.yaml`) are for some models, formats and cards only, and not all are to be trusted. So
the application does not read them: the coefficients of one formula (`cluster/catalogue/speed.py`) are fitted to them
for each card (`cluster/catalogue/speed.yaml`), and that formula is used for every model. `bench/results/estimates.md`
has what it says, with price and energy, and how far it is from the rows that were not used for the fit.

`--refit` does this again from the committed rows, in seconds and without aiconfigurator. No speculation, prompts of 512
tokens, answers of 256, a static batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import yaml
from scipy.optimize import nnls

from cluster.catalogue.memory import DEFAULT_UTILIZATION, MEAN_REQUEST_TOKENS, kv_cache
from cluster.catalogue.speed import (
    PROMPT_TOKENS,
    coefficients,
    decode_ms,
    prefill_ms,
    split_mb,
    step_ms,
    usd_per_million,
)
from cluster.catalogue.types import GIB, Catalogue, Gpu, Model, WeightFormat, catalogue
from router.registry import Frozen

ROOT: Final = Path(__file__).parents[1]
VERSION: Final = "0.12.0"
BATCHES: Final = (1, 8, 32, 128)
ANSWER_TOKENS: Final = 256
_ROWS: Final = "bench/results/estimates.yaml"
_FITTED: Final = "cluster/catalogue/speed.yaml"
_PAGE: Final = "bench/results/estimates.md"
_ESTIMATOR: Final = "aiconfigurator.cli.api"
_GEMM: Final = {"bf16": "bfloat16", "fp8": "fp8", "w4a16": "int4_wo"}
_MEASURED: Final = ("bf16", "fp8")
"""Formats whose kernels were measured. 4-bit kernels are modelled there (`HYBRID`): such rows check the fit only."""
_SMALL: Final = 0.04
"""A model that takes less than this share of a card is no case: nobody gives it the card."""
_HEAD: Final = f"""\
# Estimated speed, price and energy

By `python -m bench.estimate`: **estimated, nothing here was run**. One formula for every model and card
(cluster/catalogue/speed.py), its coefficients fitted for each card to what aiconfigurator {VERSION} puts together from
measured kernel times ([rows](estimates.yaml), [coefficients](../../cluster/catalogue/speed.yaml)). No speculation,
prompts of {PROMPT_TOKENS} tokens, static batches of 1, 8, 32 and 128. Price and watts are the catalogue's
(cluster/catalogue/gpus.yaml): list prices on demand, power limits rather than measured power, so Wh are modelled and
rather too high.

`check` is this formula's step over aiconfigurator's at the four batch sizes: in plain figures where that row is one of
those that were fitted to, in brackets where it is not: 4-bit weights, whose kernels aiconfigurator models, and models
with experts, compared in bf16. A card without any has no measured kernels: its coefficients are those of the next card
of its kind, its bandwidth and compute its own. FP8 in blocks is not taken from aiconfigurator: it puts Qwen3-4B on an
H100 at 10.0 ms a step in FP8 blocks and at 4.2 ms in bf16, which reads twice as much. Such models are computed as FP8.
A step takes at least what the host needs, 2.1 ms and 0.044 ms a request, measured on one machine
(docs/gpus.md); aiconfigurator has no such floor, so `check` is above 1 for small models on large cards.
"""


class Row(Frozen):
    """What aiconfigurator says of one model, in some format, on some cards."""

    weights: WeightFormat
    ttft_ms: float
    step_ms: dict[int, float]  # by batch size


Rows = dict[str, dict[str, dict[int, Row]]]
"""By model, GPU and tensor parallel size."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write all three files; return 2, and write nothing, if aiconfigurator cannot be imported."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.estimate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--refit", action="store_true", help="fit to the committed rows, without aiconfigurator")
    refit = parser.parse_args(argv).refit
    known = catalogue()
    if not refit:
        try:
            import_module(_ESTIMATOR)
        except ImportError as error:
            print(
                f"bench.estimate needs aiconfigurator ({error}): install it in a virtual environment of its own with "
                f"`pip install aiconfigurator=={VERSION} aiconfigurator-core=={VERSION} scipy`, and run this with its "
                "Python; nothing was written",
                file=sys.stderr,
            )
            return 2
        # aiconfigurator reads some 300 YAML files for each estimate, with PyYAML's slow loader.
        yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment,misc]
        (ROOT / _ROWS).write_text(estimated(known), encoding="utf-8")
    rows = read_rows()
    (ROOT / _FITTED).write_text(fitted(rows, known), encoding="utf-8")
    for cached in (coefficients, step_ms):
        cached.cache_clear()
    (ROOT / _PAGE).write_text(as_markdown(rows, known), encoding="utf-8")
    return 0


def read_rows() -> Rows:
    """Return the committed rows."""
    raw = yaml.safe_load((ROOT / _ROWS).read_text(encoding="utf-8"))
    return {
        model: {gpu: {size: Row.model_validate(row) for size, row in sizes.items()} for gpu, sizes in gpus.items()}
        for model, gpus in raw.items()
    }


# --- aiconfigurator


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


def estimated(known: Catalogue) -> str:
    """Return aiconfigurator's rows as YAML. Experts are estimated in bf16, dense models in FP8 blocks not at all."""
    tree: dict[str, Any] = {}
    for name, gpu_name, parallel in cases(known):
        model, system = known.models[name], known.gpus[gpu_name].system
        if system is None or (model.weights == "fp8-block" and model.experts == 1):
            continue
        weights = "bf16" if model.weights == "fp8-block" else model.weights
        mode = "SILICON" if weights in _MEASURED else "HYBRID"
        try:
            found = {batch: _aiconfigurator(model, weights, system, parallel, batch, mode) for batch in BATCHES}
        except Exception as error:  # noqa: BLE001 - its errors have no common class
            print(f"{name} on {parallel} x {gpu_name}, {mode}: {str(error)[:160]}", file=sys.stderr)
            continue
        steps = {batch: round(each.tpot, 2) for batch, each in found.items()}
        row = {"weights": weights, "ttft_ms": round(found[1].ttft, 1), "step_ms": steps}
        tree.setdefault(name, {}).setdefault(gpu_name, {})[parallel] = row
    head = (
        f"# aiconfigurator {VERSION}, by `python -m bench.estimate`. Model, GPU, tensor parallel size; time of a\n"
        f"# step by batch size, of the prefill of {PROMPT_TOKENS} tokens, ms. `weights`: the format estimated.\n"
    )
    return head + yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=110)


def _aiconfigurator(model: Model, weights: WeightFormat, system: str, parallel: int, batch: int, mode: str) -> Any:
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
            gemm_quant_mode=_GEMM[weights],
            moe_quant_mode=_GEMM[weights] if model.experts > 1 else None,
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


# --- the fit


def fitted(rows: Rows, known: Catalogue) -> str:
    """Return the coefficients of every card as YAML: fitted where it has rows, else those of the card `like` it."""
    own = {name: _fit(name, gpu, rows, known) for name, gpu in known.gpus.items()}
    tree: dict[str, dict[str, Any]] = {}
    for name in known.gpus:
        lenders = [name, *_lenders(name, known)]
        keys = ("bandwidth_share", "compute_share", "layer_ms", "split_ms", "split_ms_per_mb")
        taken = {key: next(each for each in lenders if key in own[each]) for key in keys}
        others = sorted({each for each in taken.values() if each != name}, key=lenders.index)
        source = name if name in taken.values() else ""
        tree[name] = {key: float(f"{own[each][key]:.3g}") for key, each in taken.items()}
        tree[name]["fitted_to"] = ", ".join(filter(None, (source, *others)))
    head = (
        "# Fitted by `python -m bench.estimate` to aiconfigurator's rows (bench/results/estimates.yaml); speed.py\n"
        "# says what each means. `fitted_to`: where kernels were measured, the second card for what the first lacks.\n"
    )
    return head + yaml.safe_dump(tree, sort_keys=False, width=110)


def _lenders(name: str, known: Catalogue) -> Iterator[str]:
    while (name := known.gpus[name].like or "") != "":
        yield name


def _fit(name: str, gpu: Gpu, rows: Rows, known: Catalogue) -> dict[str, float]:
    """Return the coefficients that the card's rows tell: least squares of the relative error, none below 0."""
    terms, targets, prefills = [], [], []
    for model_name, gpus in rows.items():
        for parallel, row in gpus.get(name, {}).items():
            if not _fits(row, known.models[model_name]):
                continue
            model = known.models[model_name].model_copy(update={"weights": row.weights})
            for batch, step in row.step_ms.items():
                terms.append([each / step for each in _terms(model, gpu, parallel, batch)])
                targets.append(1.0)
            if parallel == 1:
                tflops = gpu.fp8_tflops if row.weights == "fp8" and gpu.fp8_tflops else gpu.bf16_tflops
                prefills.append((2 * model.active_weights * PROMPT_TOKENS / (tflops * 1e9), model.layers, row.ttft_ms))
    if not terms:
        return {}
    table = np.array(terms)
    told = [column for column in range(table.shape[1]) if table[:, column].any()]
    found = dict(zip(told, nnls(table[:, told], np.array(targets))[0].tolist(), strict=True))
    layer = found[1]
    shares = [compute / (ttft - layers * layer) for compute, layers, ttft in prefills]
    coefficients = {"bandwidth_share": 1 / found[0], "layer_ms": layer, "compute_share": median(shares)}
    named = {2: "split_ms", 3: "split_ms_per_mb"}
    return coefficients | {named[column]: found[column] for column in told if column in named}


def _fits(row: Row, model: Model) -> bool:
    """Return whether a row is one to fit to; the others check the fit."""
    return row.weights in _MEASURED and model.experts == 1


def _terms(model: Model, gpu: Gpu, parallel: int, batch: int) -> tuple[float, ...]:
    """Return what a step's time is a sum of, each to be multiplied with its coefficient (the first: 1 / share)."""
    kv = batch * MEAN_REQUEST_TOKENS * model.kv_bytes_per_token(model.layers, parallel)
    read = (model.bytes_read(batch) / parallel + kv) / (gpu.bandwidth_gb_s * 1e6)
    return read, model.layers, model.layers if parallel > 1 else 0, split_mb(model, parallel, batch)


# --- the page


def as_markdown(rows: Rows, known: Catalogue) -> str:
    """Return the table of speed, price and energy."""
    lines = [
        _HEAD,
        "| model | on | TTFT, ms | tokens/s a stream, batch 1 / 8 / 32 / 128 | USD per 10^6 tokens "
        "| Wh per 10^6 tokens | check |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, gpu_name, parallel in cases(known):
        gpu = known.gpus[gpu_name]
        steps = {batch: step_ms(name, gpu_name, parallel, batch) for batch in BATCHES}
        streams = " / ".join(f"{1000 / ms:.0f}" for ms in steps.values())
        price, watts = gpu.price_usd_per_hour * parallel, gpu.active_watts * parallel
        usd = " / ".join(f"{usd_per_million(price, ms, batch):.2f}" for batch, ms in steps.items())
        energy = " / ".join(f"{watts / 3600 * ms / 1000 / batch * 1e6:.0f}" for batch, ms in steps.items())
        first = prefill_ms(known.models[name], gpu, coefficients()[gpu_name], parallel, PROMPT_TOKENS)
        check = _check(rows.get(name, {}).get(gpu_name, {}).get(parallel), name, gpu_name, parallel, known)
        lines.append(f"| {name} | {parallel} x {gpu_name} | {first:.0f} | {streams} | {usd} | {energy} | {check} |")
    return "\n".join(lines) + "\n"


def _check(row: Row | None, name: str, gpu_name: str, parallel: int, known: Catalogue) -> str:
    """Return the formula's steps over those of the row, in the format of the row."""
    if row is None:
        return "-"
    model = known.models[name].model_copy(update={"weights": row.weights})
    gpu, card = known.gpus[gpu_name], coefficients()[gpu_name]
    ratios = [decode_ms(model, gpu, card, parallel, batch) / step for batch, step in row.step_ms.items()]
    written = " ".join(f"{ratio:.2f}" for ratio in ratios)
    return written if _fits(row, model) else f"({written})"


if __name__ == "__main__":
    sys.exit(main())
