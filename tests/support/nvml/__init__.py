"""A stub of NVIDIA's management library, as a shared object that vLLM's own binding loads.

with NvmlStub.built(folder) as library:
    library.show(StubCard("GPU-1", energy_mj=5000))
    subprocess.run(..., env=os.environ | library.environment)
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.tools import program


@dataclass(frozen=True)
class StubCard:
    """A card of the stub."""

    uuid: str
    energy_mj: int
    name: str = "NVIDIA-H100"
    limit_mw: int = 700_000
    mig: int = 0
    """-1: a card without MIG."""
    code: int = 0
    """What reading the counter returns; 3: it has none, 15: the card is lost."""
    power_mw: int = 0
    """By which the counter grows from when it is shown."""

    @property
    def line(self) -> str:
        """As the library reads it."""
        return f"{self.uuid} {self.name} {self.mig} {self.limit_mw} {self.energy_mj} {self.code} {self.power_mw}\n"


@dataclass(frozen=True)
class NvmlStub:
    """The built library."""

    folder: Path

    @classmethod
    def built(cls, folder: Path) -> NvmlStub:
        """Build it. Skips the test where there is no C compiler; under CI it fails."""
        compiler = program("cc", package="gcc")
        name = "libnvidia-ml.so.1"
        source = Path(__file__).with_name("stub.c")
        options = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run([str(compiler), *options, str(source)], check=True)
        return cls(folder)

    def show(self, *cards: StubCard) -> None:
        """Change what the cards show."""
        self.write("".join(card.line for card in cards))

    def write(self, content: str) -> None:
        """Change the file of the cards, as a whole."""
        new = self.folder / "cards.new"
        new.write_text(content, encoding="utf-8")
        new.replace(self.folder / "cards")

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that loads it."""
        return {"LD_LIBRARY_PATH": str(self.folder), "POWER_LEVER_NVML_STUB": str(self.folder / "cards")}
