"""The table of a card: Markdown from its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.kit.plan import AUTO, MIXED, OFF
from bench.kit.results import Results
from bench.reporting.report import Value, markdown_table

Row = dict[str, Value]
REHEARSAL = "**A rehearsal on a CPU**: it shows that the kit works, and says nothing about a GPU."


def table(results: Results, left: int) -> str:
    """Return the whole report.

    Args:
        results: of the card.
        left: measurements that did not fit into the minutes.
    """
    machine, made_by = results.machine, results.made_by
    software = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    cards = f"{machine['cards']} x {machine['card']}" if machine["cards"] else machine["card"]
    memory = f", {machine['memory_gib']} GiB, power limit {machine['power_limit']}" if machine["cards"] else ""
    head = [f"# {cards}", ""]
    if not machine["cards"]:
        head += [REHEARSAL, ""]
    head += [
        f"Driver {machine['driver'] or 'none'}{memory}; load {made_by['load_average_before']} before; {software}; "
        f"{made_by['git']}; {made_by['date']}. `{made_by['command']}`. Greedy, one run a cell: differences under 30% "
        "are noise. The head of `bench/gpu.py` says how it is measured.",
        "",
    ]
    if left:
        head += [
            f"Not finished: {left} measurements are left. The same command goes on with them; if it begins none, give "
            "it more minutes.",
            "",
        ]
    parts: list[tuple[str, Sequence[Row]]] = [
        ("Speed by depth and load", list(speed_rows(results))),
        ("Energy by the cards' counters against the tier's watts", list(energy_rows(results))),
        ("Greedy answers against the engine without speculation", list(answer_rows(results))),
        ("Acceptance by category, at k_max", list(acceptance_rows(results))),
        ("GSM8K, exact match", list(quality_rows(results))),
        ("Start to first token", list(start_rows(results))),
        ("Through the application", [{"tier": tier, **row} for tier, row in results.application.items()]),
        ("Not measured", list(reason_rows(results))),
    ]
    for title, rows in parts:
        if rows:
            head += [f"## {title}", "", markdown_table(rows), ""]
    return "\n".join(head)


def speed_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each engine, batch size and setting, with its speed over the engine without speculation."""
    off = {
        (engine["target"], engine["label"], load["batch"]): load["tokens_per_s"]
        for engine in results.engines.values()
        if engine["role"] == "off"
        for load in _of_kind(engine, "load")
    }
    by_target = {(target, batch): speed for (target, _, batch), speed in off.items()}
    for engine in results.engines.values():
        for load in sorted(_of_kind(engine, "load"), key=lambda load: (load["batch"], _place(load["setting"]))):
            batch, speed = load["batch"], load["tokens_per_s"]
            base = off.get((engine["target"], engine["label"], batch), by_target.get((engine["target"], batch)))
            yield {
                **_who(engine),
                "batch": batch,
                "setting": load["setting"],
                "tokens_per_s": speed,
                "to_off": speed / base if base else None,
                "step_p50_ms": load["step_p50_ms"],
                "ttft_p50_ms": load["ttft_p50_ms"],
                "ttft_p99_ms": load["ttft_p99_ms"],
                "itl_p50_ms": load["itl_p50_ms"],
                "itl_p99_ms": load["itl_p99_ms"],
                "acceptance": load["acceptance_rate"],
            }


def energy_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each load whose energy was measured, and the reason once where none could be."""
    for engine in results.engines.values():
        reasons = set()
        for load in _of_kind(engine, "load"):
            who = {**_who(engine), "batch": load["batch"], "setting": load["setting"]}
            if "watts" in load:
                yield {
                    **who,
                    "watts": load["watts"],
                    "modelled_watts": load["modelled_watts"],
                    "measured_to_modelled": load["watts"] / load["modelled_watts"] if load["modelled_watts"] else None,
                    "joules_per_token": load["joules_per_token"],
                    "modelled_joules_per_token": load["modelled_joules_per_token"],
                    "busy_share": load["busy_share"],
                    "found_again": load["found_again"],
                    "reason": None,
                }
            elif (reason := load.get("energy_reason")) is not None and reason not in reasons:
                reasons.add(reason)
                figures = (
                    "watts",
                    "modelled_watts",
                    "measured_to_modelled",
                    "joules_per_token",
                    "modelled_joules_per_token",
                    "busy_share",
                    "found_again",
                )
                yield {**who, **dict.fromkeys(figures), "reason": reason.replace("|", "\\|")}


def answer_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each setting whose answers were compared."""
    for engine in results.engines.values():
        for answers in _of_kind(engine, "answers"):
            if answers["setting"] != OFF:
                equal = f"{answers['exact']} of {answers['of']}"
                yield {
                    **_who(engine),
                    "setting": answers["setting"],
                    "equal": equal,
                    "agreed_prefix": answers["agreed_prefix"],
                }


def acceptance_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each entry."""
    for engine in results.engines.values():
        for acceptance in _of_kind(engine, "acceptance"):
            yield {**_who(engine), "setting": acceptance["setting"], **acceptance["by_category"]}


def quality_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each quantised entry and each unquantised model."""
    for engine in results.engines.values():
        for quality in _of_kind(engine, "gsm8k"):
            right = f"{quality['right']} of {quality['of']}"
            yield {**_who(engine), "model": engine["target"], "right": right, "answers_cut": quality["cut"]}


def start_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each engine: seconds from its process to its first token, by the state of its caches."""
    for engine in results.engines.values():
        times = {start["setting"]: start["took_s"] for start in _of_kind(engine, "start")}
        if times:
            row = {f"{caches}_caches_s": times.get(caches) for caches in ("empty", "warm")}
            yield {**_who(engine), "engine": engine["role"], **row}


def reason_rows(results: Results) -> Iterator[Row]:
    """Yield a row for each engine that could not be measured."""
    for engine in results.engines.values():
        reason = engine["impossible"] or engine["reason"]
        if reason is not None:
            yield {**_who(engine), "engine": engine["role"], "reason": reason.replace("|", "\\|")}


def _who(engine: Mapping[str, Any]) -> Row:
    weights = f"made up: {', '.join(engine['dummy'])}" if engine["dummy"] else "real"
    return {"entry": engine["label"], "for": engine["tier_gpu"] or "CPU", "weights": weights}


def _of_kind(engine: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    return [done for done in engine["measured"].values() if done["kind"] == kind]


def _place(setting: str) -> tuple[int, int]:
    order = {OFF: 0, MIXED: 2, AUTO: 3}
    return (order.get(setting, 1), int(setting.removeprefix("K=")) if setting.startswith("K=") else 0)
