"""The types of the catalogue and its reading: `gpus.yaml`, `models.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import Field

from router.registry import Frozen
from sustainability.factors import Confidence

GIB: Final = 1 << 30
_HERE: Final = Path(__file__).parent
WeightFormat = Literal["bf16", "fp8", "fp8-block", "w4a16"]
BYTES_PER_WEIGHT: Final[dict[WeightFormat, float]] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0,
    # Half a byte, and a 2-byte scale and a 4-bit zero point for each group of 128.
    "w4a16": 0.5 + 2.5 / 128,
}
"""Bytes of a weight inside the decoder layers; scales of whole rows and blocks are under 0.1%."""


class Gpu(Frozen):
    """One GPU model; its key in the catalogue is Ray's accelerator type."""

    memory_gib: float = Field(gt=0, description="Memory that CUDA reports as total, GiB.")
    bandwidth_gb_s: float = Field(gt=0, description="Memory bandwidth, GB/s (10^9).")
    bf16_tflops: float = Field(gt=0, description="Dense bf16 compute, TFLOPS.")
    fp8_tflops: float | None = Field(description="Dense fp8 compute, TFLOPS; null: it has none.")
    capability: float = Field(ge=7, description="CUDA compute capability.")
    active_watts: float = Field(gt=0, description="Power draw of the busy card, W.")
    idle_watts: float = Field(gt=0, description="Power draw of the idle card, W.")
    limit_watts: float = Field(gt=0, description="Power limit of the card (TDP), W.")
    watts_source: str = Field(min_length=1, description="Where the watts come from.")
    watts_year: int = Field(ge=2015, le=2100, description="Year that the watts are of.")
    watts_confidence: Confidence = Field(description="How much to trust the watts as those of a card that serves LLMs.")
    price_usd_per_hour: float = Field(gt=0, description="Price of one card, USD per hour.")
    price_source: str = Field(min_length=1, description="Whose price, and when.")
    price_year: int = Field(ge=2015, le=2100, description="Year that the price is of.")
    price_confidence: Confidence = Field(description="How much to trust the price.")
    system: str | None = Field(
        default=None, description="Its name in aiconfigurator, if kernel times were measured on it."
    )
    like: str | None = Field(
        default=None, description="The card that lends it the coefficients of speed that it lacks."
    )


class _Attention(Frozen):
    """What the weights and the KV cache of attention depend on."""

    hidden: int = Field(gt=0, description="Width of the residual stream.")
    heads: int = Field(gt=0, description="Query heads.")
    kv_heads: int = Field(gt=0, description="Key and value heads.")
    head_dim: int = Field(gt=0, description="Width of a head.")
    intermediate: int = Field(gt=0, description="Width of the MLP, or of one expert.")

    def kv_bytes_per_token(self, layers: int, parallel: int) -> int:
        """Return the bytes of keys and values (2 bytes each) of one token on one of `parallel` cards."""
        return 2 * 2 * layers * max(1, self.kv_heads // parallel) * self.head_dim


class Model(_Attention):
    """A target or draft model: where it is and what its config says."""

    repo: str = Field(description="Hub repository.")
    revision: str = Field(default="main", description="Hub branch, tag or commit.")
    license: str = Field(description="Licence of the weights.")
    weights: WeightFormat = Field(description="How the decoder layers' weights are stored.")
    capability: float = Field(description="Lowest CUDA compute capability that runs these weights.")
    rank: float = Field(gt=0, description="Order of size, 10^9 parameters.")
    context: int = Field(gt=0, description="Longest context, tokens.")
    tools: str = Field(description="vLLM's tool call parser for it.")
    layers: int = Field(gt=0, description="Decoder layers.")
    vocab: int = Field(gt=0, description="Tokens of the vocabulary.")
    tied: bool = Field(description="Whether the LM head is the embedding.")
    experts: int = Field(default=1, ge=1, description="Experts of a layer; 1: a dense model.")
    experts_per_token: int = Field(default=1, ge=1, description="Experts that a token passes.")
    max_parallel: int = Field(default=8, ge=1, description="Most cards that it can be split over.")
    eagle3: str | None = Field(default=None, description="Its EAGLE-3 head, a key in `eagle3_heads`.")
    source: str = Field(description="Where these numbers come from.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """What models that differ in the format of their weights only have in common."""
        return self.layers, self.hidden, self.intermediate

    def splits_over(self, cards: int) -> bool:
        """Return whether tensor parallelism over that many cards is possible."""
        heads = self.heads % cards == 0 and (self.kv_heads % cards == 0 or cards % self.kv_heads == 0)
        return heads and cards <= self.max_parallel

    def layer_weights(self, experts: int) -> int:
        """Return the weights of one decoder layer with that many of its experts."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + 3 * self.hidden * self.intermediate * experts + router

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding and the LM head."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        layers = self.layers * self.layer_weights(self.experts) * BYTES_PER_WEIGHT[self.weights]
        return layers + 2 * self.embedding_weights

    def bytes_read(self, tokens: int) -> float:
        """Return the bytes of the weights that one pass of `tokens` reads: of experts those that any token passes.

        E x (1 - (1 - k/E)^tokens) of E experts, if each token passes k of them by chance.
        """
        missed = (1 - self.experts_per_token / self.experts) ** tokens
        read = self.layer_weights(0) + (self.layer_weights(1) - self.layer_weights(0)) * self.experts * (1 - missed)
        return self.layers * read * BYTES_PER_WEIGHT[self.weights] + 2 * self.vocab * self.hidden

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with."""
        return self.layers * self.layer_weights(self.experts_per_token) + self.vocab * self.hidden


class Eagle3Head(_Attention):
    """An EAGLE-3 head: one decoder layer over the target's hidden states and a small vocabulary of its own."""

    repo: str = Field(description="Hub repository.")
    revision: str = Field(default="main", description="Hub branch, tag or commit.")
    license: str = Field(description="Licence of the weights.")
    target_hidden: int = Field(gt=0, description="Width of the target's residual stream.")
    draft_vocab: int = Field(gt=0, description="Tokens that it can draft.")
    source: str = Field(description="Where these numbers come from.")

    @property
    def weight_bytes(self) -> int:
        """Bytes in bf16: three target layers into one, attention over twice the width, MLP, LM head.

        After `vllm/model_executor/models/llama_eagle3.py`; the embedding is the target's.
        """
        merge = 3 * self.target_hidden * self.hidden
        attention = 2 * self.hidden * self.head_dim * (self.heads + 2 * self.kv_heads)
        attention += self.heads * self.head_dim * self.hidden
        return 2 * (merge + attention + 3 * self.hidden * self.intermediate + self.hidden * self.draft_vocab)


class Catalogue(Frozen):
    """All GPUs and models that the planner knows."""

    gpus: dict[str, Gpu] = Field(description="By Ray's accelerator type, least powerful first.")
    models: dict[str, Model] = Field(description="By folder name.")
    eagle3_heads: dict[str, Eagle3Head] = Field(description="By folder name.")


@cache
def catalogue() -> Catalogue:
    """Return the catalogue."""
    return Catalogue.model_validate({"gpus": _read("gpus.yaml"), **_read("models.yaml")})


def _read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((_HERE / name).read_text(encoding="utf-8")))
