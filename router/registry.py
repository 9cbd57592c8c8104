"""The tier registry: the types of a profile (YAML), with its tiers, their chain entries and their models."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator, model_validator

from sustainability.factors import DEFAULT_ENERGY, EnergySettings

TierName = Literal["eco", "balanced", "performance", "ultra"]
TIER_NAMES: tuple[TierName, ...] = get_args(TierName)
SpeculationMethod = Literal["draft_model", "eagle3", "p_eagle", "ngram", "ngram_gpu", "suffix"]
Runner = Literal["v1", "v2"]
"""vLLM's model runners."""
ONLY_ON_V1: Final[tuple[SpeculationMethod, ...]] = ("suffix", "p_eagle")
"""Methods that V2 cannot do right: it has no suffix drafts, and no heads that draft all tokens at once (vLLM 0.32:
config/vllm.py:2915-2953)."""
Drafts = Literal["own", "ngram"]
"""Who drafts: `own`, the chain entry's draft model or EAGLE head; `ngram`, what followed the last tokens when they
stood there before."""
DraftsChoice = Literal["own", "ngram", "auto"]
"""Who shall draft; `auto`: the controller decides, by acceptance and cost."""
Escalate = Literal["off", "advise", "auto"]
"""What happens where an answer goes wrong in mid-stream: nothing; advice; another tier goes on (`escalation.py`)."""
Power = Annotated[int, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=100)]
"""Percent."""
DraftTokens = Annotated[int, Field(ge=0, le=32, strict=True)] | Literal["auto"]
"""Draft tokens per step; `auto`: the controller decides at each step."""
Tau = Annotated[float, Field(ge=0, le=1, strict=True)] | Literal["auto"]
"""Acceptance rate (0-1) below which a request stops drafting; `auto`: below which drafts do not pay on this engine at
this load, learned by category."""


def _word_off(value: object) -> object:
    return "off" if value is False else value


YAML_OFF: Final = BeforeValidator(_word_off)
"""For a config key that may be `off`: YAML 1.1 reads the bare word as false. A request is JSON, and must say "off"."""


class Frozen(BaseModel):
    """Base of every config class: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSource(Frozen):
    """Where a model's weights come from; its key in `models` is its folder name under the models folder."""

    source: Literal["bundled", "hub", "early_exit"] = Field(
        description="`bundled`: made from an installed Python package; `hub`: downloaded from the model hub; "
        "`early_exit`: a draft, made of the first layers of the model `of`."
    )
    repo: str | None = Field(
        default=None,
        description="Hub repository (`org/name`), or for `bundled` the module that ships the GGUF file.",
    )
    revision: str = Field(
        default="main",
        description="Hub branch, tag or commit. Seeding resolves it once, and keeps the commit from then on.",
    )
    of: str | None = Field(default=None, description="Key in `models` of the model that an `early_exit` draft is for.")
    layers: int | None = Field(default=None, ge=1, description="How many of its layers an `early_exit` draft has.")
    large: bool = Field(default=False, description="Fetched only when `seed --large` is given.")
    size_gb: float = Field(default=0.0, ge=0, description="Size of the weights on disk, GB (10^9 bytes), for planning.")

    @model_validator(mode="after")
    def _fits_source(self) -> ModelSource:
        drafted = self.source == "early_exit"
        for key, needed in (("repo", not drafted), ("of", drafted), ("layers", drafted)):
            value = getattr(self, key)
            if needed != (value is not None):
                raise ValueError(f"source {self.source!r} {'needs' if needed else 'takes no'} `{key}`, got {value!r}")
        return self


class Speculation(Frozen):
    """Speculative decoding of one chain entry: how drafts are made, how many, and when they stop."""

    method: SpeculationMethod = Field(
        description="How draft tokens are proposed. `ngram` looks them up on the CPU, `ngram_gpu` on the GPU; "
        "`p_eagle` is an EAGLE-3 head that drafts all tokens at once."
    )
    draft: str | None = Field(
        default=None, description="Key in `models` of the draft (`draft_model`, `eagle3`, `p_eagle`)."
    )
    k_max: int = Field(ge=1, le=32, description="Most draft tokens per step that a request may ask for.")
    k: DraftTokens = Field(
        default="auto",
        description="Draft tokens per step of a request that asks for none; `auto`: the controller decides each step.",
    )
    tau: Tau = Field(
        default=0.0,
        description="Acceptance rate (0-1) below which a request stops drafting; `auto`: where drafts do not pay.",
    )
    drafts: DraftsChoice | None = Field(
        default=None,
        description="Who drafts for a request that does not choose: `own`, the draft model or EAGLE head; `ngram`, "
        "n-gram lookup; `auto`, the controller decides. Requests may then choose, as the worker drafts in both ways; "
        "null: it does so only for a `floor`.",
    )
    floor: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Acceptance rate (0-1) of the draft model or EAGLE head below which the tier switches to n-gram "
        "drafting; null: never.",
    )

    @model_validator(mode="after")
    def _draft_fits_method(self) -> Speculation:
        needs_draft = self.method in ("draft_model", "eagle3", "p_eagle")
        two_ways = needs_draft and self.method != "p_eagle"
        if needs_draft != (self.draft is not None):
            raise ValueError(
                f"method {self.method!r} {'needs' if needs_draft else 'takes no'} `draft`, got {self.draft!r}"
            )
        if self.floor is not None and not two_ways:
            raise ValueError(f"method {self.method!r} takes no `floor`, got {self.floor}: it drafts in one way")
        if self.drafts is not None and not two_ways:
            raise ValueError(f"method {self.method!r} takes no `drafts`, got {self.drafts!r}: it drafts in one way")
        return self

    def to_draft(self, wanted: int) -> int:
        """Return how many tokens the worker must draft where at most `wanted` are verified.

        A P-EAGLE head drafts all at once: vLLM 0.32 lays out its queries for `k_max`, and cannot take fewer
        (v1/spec_decode/llm_base_proposer.py:113-118, 629-637), except none.
        """
        return self.k_max if wanted and self.method == "p_eagle" else wanted

    @property
    def drafts_both_ways(self) -> bool:
        """Whether the worker drafts with the draft model or head and by n-gram lookup, as each request chooses."""
        return self.drafts is not None or self.floor is not None

    @property
    def default_drafts(self) -> DraftsChoice:
        """Who drafts for a request that does not choose, while no draft fallback has happened."""
        if self.method.startswith("ngram"):
            return "ngram"
        return self.drafts or "own"


SAID_ELSEWHERE: Final = {
    "model": "target",
    "served_model_name": "target",
    "max_model_len": "max_model_len",
    "quantization": "quantization",
    "tensor_parallel_size": "tiers.NAME.gpus",
    "pipeline_parallel_size": "tiers.NAME.gpus",
    "data_parallel_size": "tiers.NAME.replicas",
    "speculative_config": "speculation",
    "scheduler_cls": "speculation",
    "worker_cls": "speculation",
    "additional_config": "speculation",
}
"""Arguments of vLLM's engine that follow from other keys of the config, and from which."""


class ChainEntry(Frozen):
    """One way to run a tier. A tier tries its entries in order and keeps the first whose engine answers."""

    name: str = Field(min_length=1, description="Name shown as `fallback_step` and `active_entry`.")
    target: str = Field(description="Key in `models` of the target model.")
    quantization: str | None = Field(default=None, description="vLLM quantization method; null: as the weights say.")
    max_model_len: int = Field(ge=16, description="Context length, tokens (prompt and completion together).")
    speculation: Speculation | None = Field(default=None, description="Null: no speculative decoding.")
    runner: Runner | None = Field(
        default=None,
        description="vLLM's model runner; null: `v2` on GPUs, except for what only `v1` does right.",
    )
    engine_args: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Further arguments of vLLM's engine (`AsyncEngineArgs`) or of its OpenAI server, passed on; "
        "nested values as mappings (`compilation_config: {...}`).",
    )

    @field_validator("engine_args")
    @classmethod
    def _not_said_elsewhere(cls, engine_args: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for key in SAID_ELSEWHERE.keys() & engine_args.keys():
            raise ValueError(f"takes no {key}, which follows from `{SAID_ELSEWHERE[key]}`")
        share = engine_args.get("gpu_memory_utilization", 1)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"gpu_memory_utilization must be a number above 0 and at most 1, got {share!r}")
        return engine_args


class Replicas(Frozen):
    """How many replicas a tier may have."""

    min: int = Field(ge=0, description="Replicas kept at all times; 0: the tier scales from zero.")
    max: int = Field(ge=1, description="Most replicas at any time.")

    @model_validator(mode="after")
    def _ordered(self) -> Replicas:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must be at most max ({self.max})")
        return self


class Tier(Frozen):
    """One tier: its part of the power dial, its hardware, its price and its engine fallback chain."""

    power: tuple[Power, Power] = Field(
        description="Lowest and highest power (0-100, both included) that pick this tier."
    )
    gpu: str | None = Field(description="Ray accelerator type (`L4`, `A10G`, ...); null: runs on CPU.")
    gpus: float = Field(
        default=1.0,
        ge=0,
        description="GPUs per replica: a whole number is the tensor parallel size, on one node; below 1, a replica's "
        "share of one card, from which `gpu_memory_utilization` of its entries follows unless they say it; 0 on CPU.",
    )
    cpus: float = Field(default=1.0, ge=0, description="Ray CPUs per replica (logical; fractions allowed).")
    replicas: Replicas = Field(description="Fewest and most replicas.")
    price_usd_per_hour: float = Field(
        ge=0, description="Price of one replica (all its GPUs, or its share of one), USD per hour."
    )
    active_watts: float = Field(
        ge=0, description="Power draw of one busy replica (all its GPUs, or its share of one), W."
    )
    idle_watts: float = Field(
        ge=0, description="Power draw of one idle replica (all its GPUs, or its share of one), W."
    )
    limit_watts: float | None = Field(
        default=None,
        gt=0,
        description="Most power that the GPUs of one replica can draw (their power limit, or its share of one), W; "
        "null: not known.",
    )
    max_ongoing_requests: int = Field(
        default=64, ge=1, description="Most requests that one replica works on at a time."
    )
    max_queued_requests: int = Field(
        default=256,
        ge=0,
        description="Sequences that each ingress replica may have open at the tier beyond `max_ongoing_requests` for "
        "each of the tier's running replicas; more get a 503.",
    )
    idle_before_zero_s: float = Field(default=600.0, ge=0, description="Idle time before the tier scales down, s.")
    drain_s: float = Field(
        default=600.0, gt=0, description="Longest wait for streams in flight when a replica stops, s."
    )
    cold_start_s: float = Field(
        default=60.0,
        ge=0,
        description="Expected time from no replica to the first token, s, used until one is measured.",
    )
    expected_ttft_ms: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Time to first token of a warm and idle tier, ms, used until there are runs; null: the baseline's.",
    )
    expected_tokens_per_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Output speed of one stream, tokens/s, used until there are runs; null: the baseline's.",
    )
    escalate: Annotated[Escalate, YAML_OFF] = Field(
        default="advise",
        description="What happens where an answer of this tier goes wrong in mid-stream: `off`, nothing, and answers "
        "are not watched; `advise`, a trace step says which tier should go on; `auto`, that tier goes on. In manual "
        "mode, where the user chose the tier, `auto` only advises, unless the request says it.",
    )
    rewrite: bool = Field(
        default=False,
        description="With `auto`: whether a stronger tier begins the answer anew instead of going on with its text.",
    )
    chain: tuple[ChainEntry, ...] = Field(min_length=1, description="Engine fallback chain, best entry first.")

    @model_validator(mode="after")
    def _consistent(self) -> Tier:
        if self.power[0] > self.power[1]:
            raise ValueError(f"power {list(self.power)} must be [low, high] with low <= high")
        if (self.gpu is None) != (self.gpus == 0):
            raise ValueError(
                f"gpu {self.gpu!r} and gpus {self.gpus:g} contradict: null and 0 on CPU, a type and more than 0 on GPU"
            )
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError(f"gpus {self.gpus:g} must be a whole number, or a share of one card between 0 and 1")
        for entry in self.chain:
            # vLLM cannot prepare a step while a lookup on the CPU waits for the tokens of the step before.
            if self.gpu is not None and entry.speculation is not None and entry.speculation.method == "ngram":
                raise ValueError(
                    f"chain entry {entry.name!r} has method 'ngram', which looks drafts up on the CPU: on a GPU "
                    f"({self.gpu}) it must be 'ngram_gpu'"
                )
        names = [entry.name for entry in self.chain]
        if len(set(names)) != len(names):
            raise ValueError(f"chain entry names must differ, got {names}")
        return self

    @property
    def tensor_parallel(self) -> int:
        """GPUs that a replica splits its model over; 1 on a share of one, and on CPU."""
        return max(1, int(self.gpus))

    def most_sequences(self, entry: ChainEntry) -> int:
        """Return how many sequences an engine of the entry works on at a time: its `max_num_seqs`, else as many as a
        replica has requests."""
        said = entry.engine_args.get("max_num_seqs")
        return said if isinstance(said, int) else self.max_ongoing_requests

    def entry(self, name: str | None) -> ChainEntry:
        """Return the chain entry of that name, or the first if there is none, as while no engine has started."""
        return next((entry for entry in self.chain if entry.name == name), self.chain[0])


class Baseline(Frozen):
    """The GPU that savings are counted against: what the same answer would have taken there."""

    gpu: str = Field(description="Name of the baseline hardware.")
    active_watts: float = Field(gt=0, description="Its power draw when busy, W.")
    price_usd_per_hour: float = Field(gt=0, description="Its price, USD per hour.")
    ttft_s: float = Field(ge=0, description="Its time to first token, s.")
    tokens_per_s: float = Field(gt=0, description="Its output speed for one stream, tokens/s.")
    source: str = Field(description="Where these figures come from.")


class AutoSettings(Frozen):
    """How auto mode spreads prompts over the tiers."""

    shares: tuple[Share, Share, Share, Share] = Field(
        default=(50.0, 30.0, 15.0, 5.0),
        description="Share of the reference mix's prompts that each tier gets, weakest first, percent; the sum is 100. "
        "The tiers' boundaries are these quantiles of its scores.",
    )
    gain_model: str | None = Field(
        default=None,
        description="Absolute path of a gain model that `power-lever calibrate` wrote, the same on every node; null: "
        "the shipped one.",
    )

    @field_validator("gain_model")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        # A process of Serve's does not run in the folder of the config.
        if path is not None and not path.startswith("/"):
            raise ValueError(f"must be an absolute path, the same on every node, got {path!r}")
        return path

    @model_validator(mode="after")
    def _whole(self) -> AutoSettings:
        if abs(sum(self.shares) - 100) > 1e-6:
            raise ValueError(f"shares {list(self.shares)} must add up to 100, not {sum(self.shares):g}")
        return self


DEFAULT_AUTO: Final = AutoSettings()


class Profile(Frozen):
    """A whole tier registry: the four tiers in order of power, the models they name, the savings baseline."""

    description: str = Field(description="One line on what this profile is for.")
    tiers: dict[TierName, Tier] = Field(description="Exactly the four tiers, least powerful first.")
    models: dict[str, ModelSource] = Field(description="Every model that an entry names.")
    baseline: Baseline = Field(description="What savings are counted against.")
    auto: AutoSettings = Field(default=DEFAULT_AUTO, description="How auto mode spreads prompts over the tiers.")
    energy: EnergySettings = Field(default=DEFAULT_ENERGY, description="Where the GPUs are: overhead, water and CO2.")

    @model_validator(mode="after")
    def _complete(self) -> Profile:
        if tuple(self.tiers) != TIER_NAMES:
            raise ValueError(f"tiers must be {list(TIER_NAMES)} in this order, got {list(self.tiers)}")
        whole = sorted(key for key, source in self.models.items() if source.source != "early_exit")
        for key, source in self.models.items():
            if source.of is not None and source.of not in whole:
                raise ValueError(f"models.{key}.of names {source.of!r}, must be one of {whole}")
        expected = 0
        for name, tier in self.tiers.items():
            if tier.power[0] != expected:
                raise ValueError(
                    f"tiers.{name}.power starts at {tier.power[0]}, must start at {expected}: the ranges must cover "
                    "0-100 without gap or overlap"
                )
            expected = tier.power[1] + 1
        if expected != 101:
            raise ValueError(f"tiers.{TIER_NAMES[-1]}.power ends at {expected - 1}, must end at 100")
        for name, tier in self.tiers.items():
            for index, entry in enumerate(tier.chain):
                draft = entry.speculation.draft if entry.speculation else None
                for key, model in (("target", entry.target), ("speculation.draft", draft)):
                    if model is not None and model not in self.models:
                        raise ValueError(
                            f"tiers.{name}.chain.{index}.{key} names {model!r}, which `models` lacks: "
                            f"it has {sorted(self.models)}"
                        )
        return self

    def entry(self, tier: TierName, name: str | None) -> ChainEntry:
        """Return the tier's entry of that name, or its first entry if `name` is None (no engine has started yet)."""
        return self.tiers[tier].entry(name)
