"""Is an answer better, and at which price, if a stronger model goes on with it in mid-stream?

Problems with known answers (GSM8K), greedy, to this application with two models: the tier eco serves A, ultra serves B.
The first problems are not measured: A's answers to them teach the policy what is usual.

weak      A, which only advises
climb     A with `escalate: auto`: B goes on with the text
rewrite   the same, but B begins anew
strong    B from the beginning

right           share of right answers, with Wilson's 95% interval (`right_low`, `right_high`)
climbed         share of the answers that B went on with
advised         share of the answers for which that was advised, or tried
cost_usd, wh, seconds, tokens    mean of an answer, of all its parts

    python -m bench.escalation --models A,B --prompts FOLDER [--profile FILE] [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import orjson

from bench.kit.gsm8k import Problem, is_right, read_problems
from bench.load.client import Request, fetch
from bench.load.servers import application, running
from bench.load.sse import EventSplitter
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from cluster.profiles.reading import load_profile
from router.runs.statistics import highest_likely_rate

TEACHING: Final = 40
"""Problems that are not measured: more than the policy needs to know what is usual, which it slowly forgets."""
MAX_TOKENS: Final = 320
STREAMS: Final = 4
ANSWERS_WITHIN_S: Final = 900.0
WAYS: Final[dict[str, dict[str, Any]]] = {
    "weak": {"power": 0, "escalate": "advise"},
    "climb": {"power": 0, "escalate": "auto"},
    "rewrite": {"power": 0, "escalate": "auto", "rewrite": True},
    "strong": {"power": 100, "escalate": "off"},
}
"""In the order in which they run."""
Json = dict[str, Any]


@dataclass(slots=True)
class AnswerReader:
    """Keeps the text that stands at the end of a stream, and its figures."""

    ended: bool = False
    error: str | None = None
    text: str = ""
    metrics: Json = field(default_factory=dict)
    _splitter: EventSplitter = field(default_factory=EventSplitter)

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s` (monotonic clock)."""
        for payload in self._splitter.feed(data):
            event: Json = orjson.loads(payload)
            kind, given = event["type"], event["data"]
            if kind == "token":
                self.text += given["text"]
            elif kind == "escalation" and given["rewrite"]:
                self.text = ""
            elif kind == "metrics":
                self.metrics = given
            elif kind in ("done", "error"):
                self.ended = True
                self.error = given["message"] if kind == "error" else None


async def answers(port: int, problems: Sequence[Problem], way: Json) -> list[AnswerReader]:
    """Return the answers to all problems, in their order.

    Raises:
        SystemExit: one failed.
    """
    readers = [AnswerReader() for _ in problems]
    turns: Iterator[tuple[Problem, AnswerReader]] = iter(zip(problems, readers, strict=True))
    common = {"mode": "manual", "temperature": 0, "max_tokens": MAX_TOKENS, "reasoning": False}

    async def worker() -> None:
        for problem, reader in turns:
            request = Request(port, "/api/inference", common | way | {"prompt": problem.prompt}, ANSWERS_WITHIN_S)
            outcome = await fetch(request, reader)
            if outcome.error is not None:
                raise SystemExit(f"an answer failed: {outcome.error}")

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(worker())
    return readers


def row(name: str, problems: Sequence[Problem], read: Sequence[AnswerReader]) -> dict[str, Value]:
    """Return the figures of one way."""
    count = len(problems)
    right = sum(is_right(problem, answer.text) for problem, answer in zip(problems, read, strict=True))
    low, high = wilson(right, count)
    metrics = [answer.metrics for answer in read]
    return {
        "way": name,
        "answers": count,
        "right": right / count,
        "right_low": low,
        "right_high": high,
        "climbed": sum(each["escalation"] is not None and each["escalation"]["applied"] for each in metrics) / count,
        "advised": sum(each["escalation"] is not None for each in metrics) / count,
        "cost_usd": fmean(each["cost_usd"] for each in metrics),
        "wh": fmean(each["energy"]["wh"] for each in metrics),
        "seconds": fmean(each["total_ms"] for each in metrics) / 1000,
        "tokens": fmean(sum(leg["completion_tokens"] for leg in each["legs"]) for each in metrics),
    }


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return both ends of Wilson's score interval of a share."""
    share = successes / trials
    return 1 - highest_likely_rate(trials, 1 - share, z), highest_likely_rate(trials, share, z)


def arguments_of(profile: str, weak: str, strong: str) -> Json:
    """Return the application's arguments: A in all tiers but the last, which has B. No drafts, which change no text.

    Raises:
        SystemExit: the profile has no such model.
    """
    shipped = load_profile(profile)
    for model in (weak, strong):
        if model not in shipped.models:
            raise SystemExit(f"--models names {model!r}, which the profile lacks: it has {sorted(shipped.models)}")
    tiers = {}
    for name, tier in shipped.tiers.items():
        entry = tier.chain[0].model_dump(exclude_defaults=True)
        ours = {"name": "one", "target": strong if name == "ultra" else weak, "speculation": None}
        few = {"min": 1 if name in ("eco", "ultra") else 0, "max": 1}
        tiers[name] = {"chain": [entry | ours], "replicas": few, "max_ongoing_requests": 2 * STREAMS}
    return {"profile": profile, "inference_mode": "real", "tiers": tiers}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    options = parser("bench.escalation", __doc__, quick="16 measured problems")
    options.add_argument("--models", required=True, metavar="A,B", help="two keys in the profile's `models`")
    options.add_argument("--prompts", type=Path, required=True, metavar="FOLDER", help="has gsm8k.jsonl")
    options.add_argument("--profile", default="local", help="a profile's name or file (default: local)")
    given = options.parse_args(argv)
    weak, comma, strong = given.models.partition(",")
    if not comma or not weak or not strong or weak == strong:
        raise SystemExit(f"--models: got {given.models!r}, must be two different models with a comma between them")
    problems = read_problems(given.prompts / "gsm8k.jsonl", TEACHING + (16 if given.quick else 10_000))
    if len(problems) <= TEACHING:
        raise SystemExit(
            f"{given.prompts / 'gsm8k.jsonl'} has {len(problems)} problems, more than {TEACHING} are needed"
        )
    made_by = provenance()
    server = application({"/": arguments_of(given.profile, weak, strong)}, ready="/api/tiers")
    rows: list[dict[str, Value]] = []
    with running(server):
        teaching, measured = problems[:TEACHING], problems[TEACHING:]
        asyncio.run(answers(server.port, teaching, WAYS["weak"]))
        asyncio.run(answers(server.port, teaching[:1], WAYS["strong"]))  # now it is warm
        for name, way in WAYS.items():
            print(f"{name}: {len(measured)} problems", file=sys.stderr)
            rows.append(row(name, measured, asyncio.run(answers(server.port, measured, way))))
    print_report(f"{weak}, and {strong}", rows, made_by)
    if given.json is not None:
        write_json(given.json, {"models": [weak, strong], "rows": rows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
