"""The GPUs to plan for: written as `L4:2,A100-80G:1`, or as the running cluster has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from cluster.catalogue.types import catalogue
from router.errors import ConfigError

# Up to 9 digits: more are no number of cards, and Python refuses to read thousands of them.
_ITEM: Final = re.compile(r"(?:(?P<nodes>[0-9]{1,9})x)?(?P<gpu>[A-Za-z][\w-]*):(?P<count>[0-9]{1,9})", re.ASCII)
FORM: Final = "TYPE:COUNT for the cards of one machine, 4xTYPE:COUNT for four such machines, joined by commas"
_ACCELERATOR: Final = "accelerator_type:"
_MOST: Final = 1024
_SHOWN: Final = 40
"""So many characters of what was written are shown in an error."""


@dataclass(frozen=True, slots=True)
class Cards:
    """All cards of one type."""

    gpu: str
    nodes: tuple[int, ...]
    """Cards of each node that has some."""

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.nodes)


def parse(text: str, where: str = "--gpus") -> tuple[Cards, ...]:
    """Return the cards that a text names, least powerful first.

    Args:
        text: `L4:2,A100-80G:1`.
        where: it was written, for errors.

    Raises:
        ConfigError: an unknown GPU, no cards, or another form; says what is allowed.
    """
    nodes: list[tuple[str, int]] = []
    seen: set[tuple[str, int]] = set()
    for item in (each.strip() for each in text.split(",")):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ConfigError(f"{where}: got {_short(item)!r}, allowed is {FORM}: L4:2,4xA10G:1")
        gpu, machines, count = _known(match["gpu"], where), int(match["nodes"] or 1), int(match["count"])
        if not 0 < machines * count <= _MOST - sum(each for _, each in nodes):
            raise ConfigError(f"{where}: got {item!r}, allowed are 1 to {_MOST} cards in all")
        if (gpu, count) in seen:
            raise ConfigError(f"{where}: {gpu}:{count} comes twice; write 2x{gpu}:{count} for two such machines")
        seen.add((gpu, count))
        nodes += [(gpu, count)] * machines
    return of_nodes(nodes)


def _known(name: str, where: str) -> str:
    """Return the catalogue's name of a GPU, written in capitals or not."""
    names = {gpu.upper(): gpu for gpu in catalogue().gpus}
    if name.upper() in names:
        return names[name.upper()]
    # H100-80G and H100-NVL are an H100, and no A100-80G; RTX4090 is a GeForce-RTX-4090.
    plain = {gpu.replace("-", ""): gpu for gpu in names}
    written = name.upper().replace("-", "")
    longer = sorted(filter(written.startswith, plain), key=len)[-1:] or [gpu for gpu in plain if gpu.endswith(written)]
    close = [plain[gpu] for gpu in longer] or get_close_matches(name.upper(), names, n=1)
    hint = f", did you mean {names[close[0]]}?" if close else ""
    if name.upper() == "A100":
        hint = ", did you mean A100-40G or A100-80G?"
    raise ConfigError(
        f"{where}: unknown {_short(name)}{hint}; allowed are {', '.join(names.values())}; docs/operations.md says how "
        "to plan for another card"
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def of_nodes(nodes: Iterable[tuple[str, int]]) -> tuple[Cards, ...]:
    """Return the cards of nodes, given as (type, cards); types that the catalogue lacks are left out."""
    listed = list(nodes)
    found = {gpu: tuple(count for name, count in listed if name == gpu and count) for gpu in catalogue().gpus}
    return tuple(Cards(gpu, counts) for gpu, counts in found.items() if counts)


def written(cards: Iterable[Cards]) -> str:
    """Return the cards in the form that `parse` reads."""
    items = []
    for each in cards:
        for count in sorted(set(each.nodes), reverse=True):
            machines = each.nodes.count(count)
            items.append(f"{f'{machines}x' if machines > 1 else ''}{each.gpu}:{count}")
    return ",".join(items)


def unknown_types(nodes: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the GPU types of Ray nodes, given by their resources, that the catalogue lacks; `GPU`: one says none."""
    found = set()
    for each in nodes:
        if each.get("GPU") and node_gpus(each) is None:
            found |= {key.removeprefix(_ACCELERATOR) for key in each if key.startswith(_ACCELERATOR)} or {"GPU"}
    return tuple(sorted(found))


def node_gpus(resources: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return a Ray node's GPU type and cards; None: it has no GPU, or none of a type that the catalogue knows.

    A node with an A100 of 80 GB offers `A100` and `A100-80G`; the catalogue knows only the second.
    """
    known = [gpu for gpu in catalogue().gpus if f"{_ACCELERATOR}{gpu}" in resources]
    count = int(resources.get("GPU", 0))
    return (known[-1], count) if known and count else None
