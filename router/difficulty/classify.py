"""Classify a prompt: its category by rules, and its difficulty (1-10) by what was learned of prompts' outcomes.

The text is folded and split into words once (`scan.py`), and the rules (`rules.yaml`) look up their terms in it. They
say what is safety-critical, where a miss costs, and the category, which picks the sampling. The difficulty is where the
prompt's expected gain from a stronger model (`gain_model.py`) stands among those of the reference mix, so each tier
gets the share of prompts that `auto.shares` says. It is not how hard a person would find the prompt: a prompt that no
model can do gains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from router.difficulty.categories import Category
from router.difficulty.gain_model import load_gain_model
from router.difficulty.pieces import load_pieces
from router.difficulty.rules import Rules, SafetyRule, Signal, load_rules
from router.difficulty.scan import Scan, beginning_and_end
from router.registry import DEFAULT_AUTO, AutoSettings
from router.tokens import likely_tokens

# Our own choices, checked by hand like the rules' words and points.

SCAN_CHARS = 8000
"""Prompts up to this many characters are scanned whole; of a longer one the first and the last half of it."""
EARLIER_CHARS = 2000
"""How much of the earlier user messages (their end) is scanned for safety-critical subjects."""
SAFETY_DIFFICULTY = 7
"""Lowest difficulty of a safety-critical prompt, and of any prompt that is too long to be scanned whole: its unscanned
middle may be safety-critical."""
CONVERSATION_POINTS: tuple[tuple[int, int], ...] = ((8000, 2), (2000, 1))
"""(lowest number of estimated tokens of the conversation before the prompt, points of difficulty), longest first."""
DIFFICULTY_ENDS = (0.5, 3.5, 5.5, 8.5, 10.5)
"""Between these lie the difficulties of the four tiers: 1-3, 4-5, 6-8, 9-10 (`router/dials.py`)."""

CATEGORY_THRESHOLD = 2
"""Points that a category needs; with fewer a prompt is general reasoning."""
CODE_MARK_POINTS = 4
"""More than WORD_PROBLEM_POINTS: a docstring often reads like a word problem."""
WORD_PROBLEM_POINTS = 3
WORD_PROBLEM_MAX_TOKENS = 300
"""A longer text has numbers and a question by chance: it is a document."""
UNIT_NUMBERS = 3
"""A question with so many numbers that names a unit is a word problem, whatever it asks for."""
ARITHMETIC_MARKS = frozenset("+*/^=×÷−√")  # noqa: RUF001 (the real signs are meant)
ARITHMETIC_POINTS = 2
ARITHMETIC_MAX_WORDS = 12

QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001
QUESTION_WORD_WITHIN = 4
"""A question word must be among so many first words ("Please tell me what ...")."""
GREETING_MAX_WORDS = 3
GREETING_MAX_BYTES = 36
"""Of another script in UTF-8: 12 characters of Chinese, Japanese or Korean."""
SIMPLE_MAX_WORDS = 30
SIMPLE_MAX_TOKENS = 60
"""The same limit for scripts without spaces, in estimated tokens."""


class Reason(NamedTuple):
    """Why a prompt is rated so."""

    rule: str
    """In words; none of the prompt's."""
    hits: tuple[str, ...] = ()
    """Words of the rule that are in the prompt."""

    def words(self) -> str:
        """Return the reason with at most three of the words that were found."""
        return f"{self.rule} ({', '.join(self.hits[:3])})" if self.hits else self.rule


@dataclass(frozen=True, slots=True)
class Classification:
    """What kind of prompt it is, and how hard."""

    category: Category
    difficulty: int
    """1-10, by where `score` stands among the shares of the tiers; at least 7 where a miss costs."""
    score: float
    """Share of the reference mix (0-1) that is expected to gain less from a stronger model."""
    found: tuple[Reason, ...]
    """Why, strongest kind first."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons in words; of the prompt's they have only those that a rule has too."""
        return tuple(reason.words() for reason in self.found)

    @property
    def rules(self) -> tuple[str, ...]:
        """The reasons without a word of the prompt."""
        return tuple(reason.rule for reason in self.found)


def load_classifier(auto: AutoSettings = DEFAULT_AUTO) -> None:
    """Read the rules and the learned model now, so that the first prompt does not wait for the files.

    Raises:
        ConfigError: `auto.gain_model` is missing or no gain model.
    """
    load_rules()
    load_pieces()
    load_gain_model(auto.gain_model)


def classify_prompt(
    text: str, *, earlier: str = "", conversation_tokens: int = 0, auto: AutoSettings = DEFAULT_AUTO
) -> Classification:
    """Return category and difficulty of a user's prompt.

    Args:
        text: the prompt; any string, also an empty one or one with lone surrogates.
        earlier: what the user wrote before in the same conversation. A follow-up to a safety-critical question ("and
            how much of it?") is safety-critical too.
        conversation_tokens: estimated length of the conversation before the prompt.
        auto: how prompts are spread over the tiers.
    """
    rules = load_rules()
    scan = Scan.of(beginning_and_end(text, SCAN_CHARS), rules)
    task = scan.ends()
    directives = task.directives()
    shape = scan.without(directives)
    category, reasons = _category(task, shape, likely_tokens(text))
    safety = _safety_reasons(scan)
    if earlier and not safety:
        safety = _safety_reasons(Scan.of(earlier[-EARLIER_CHARS:], rules), "earlier in the conversation")
    # What speaks to the router counts for nothing, and a prompt without words is a greeting.
    rated = shape.text if directives else text
    score = 0.0 if _is_greeting(shape) else load_gain_model(auto.gain_model).score(rated)
    reasons += (Reason(f"gains more from a stronger model than {score:.0%} of prompts"),)
    difficulty = difficulty_of(score, auto.shares)
    if more := _banded(CONVERSATION_POINTS, conversation_tokens):
        difficulty += more
        reasons += (Reason(f"long conversation (about {conversation_tokens} tokens)"),)
    if len(text) > SCAN_CHARS:
        difficulty = max(difficulty, SAFETY_DIFFICULTY)
        reasons += (Reason("too long to be read whole"),)
    if safety:
        category, reasons, difficulty = "safety_critical", safety + reasons, max(difficulty, SAFETY_DIFFICULTY)
    return Classification(category, min(difficulty, 10), score, reasons)


def difficulty_of(score: float, shares: tuple[float, ...]) -> int:
    """Return the difficulty (1-10) of a score (0-1), where each tier gets its share (percent) of the scores."""
    ends = [0.0, *(share / 100 for share in accumulate(shares))]
    for low, high, least, most in zip(ends, ends[1:], DIFFICULTY_ENDS, DIFFICULTY_ENDS[1:], strict=False):
        if score < high or high >= 1 - 1e-9:
            place = (score - low) / (high - low) if high > low else 0.0
            return min(math.floor(least + min(place, 1) * (most - least) + 0.5), math.floor(most))
    raise ValueError(f"score must be 0 to 1 and shares add up to 100, got {score} and {shares}")


def _safety_reasons(scan: Scan, where: str | None = None) -> tuple[Reason, ...]:
    reasons, sentences = list[Reason](), list[str]()
    if not (scan.known or scan.pairs or scan.leads):
        return ()
    for rule in scan.rules.safety:
        hits = _safety_hits(scan, rule)
        if hits and rule.same_sentence:
            sentences = sentences or scan.sentences()
            hits = _hits_in_a_sentence(sentences, hits, rule, scan.rules)
        elif hits and rule.unless and scan.hits(rule.unless):
            hits = _safety_hits(scan.outside(rule.unless), rule)
        if hits:
            reasons.append(Reason(rule.reason if where is None else f"{rule.reason}, {where}", hits))
    return tuple(reasons)


def _safety_hits(scan: Scan, rule: SafetyRule) -> tuple[str, ...]:
    """Return the terms of the rule's subject, if what else it asks for is there too."""
    hits = scan.hits(rule.subject)
    others = (rule.stake, rule.and_also)
    return hits if hits and all(terms is None or scan.hits(terms) for terms in others) else ()


def _hits_in_a_sentence(sentences: list[str], hits: tuple[str, ...], rule: SafetyRule, rules: Rules) -> tuple[str, ...]:
    """Return the hits of the first sentence that has all that the rule asks for.

    Args:
        sentences: folded.
        hits: terms of the rule's subject in the whole text; other sentences need not be scanned.
        rule: to be found.
        rules: all.
    """
    opening = [term.partition(" ")[0] for term in hits]
    near = (Scan.of(sentence, rules) for sentence in sentences if any(word in sentence for word in opening))
    counted = (scan for scan in near if rule.unless is None or not scan.hits(rule.unless))
    return next(filter(None, (_safety_hits(scan, rule) for scan in counted)), ())


def _category(task: Scan, shape: Scan, tokens: int) -> tuple[Category, tuple[Reason, ...]]:
    """Return the category with most points and its reasons; with too few it is a simple question or general."""
    best: tuple[int, Category, tuple[Reason, ...]] = (CATEGORY_THRESHOLD - 1, "general_reasoning", ())
    for category, group in task.rules.categories.items():
        found = _marks(category, task, shape, tokens) + _found(task, group)
        points = sum(point for point, _ in found)
        if points > best[0]:
            best = (points, category, tuple(reason for _, reason in found))
    if best[1] == "general_reasoning" and _is_simple(shape):
        return "simple_question", (Reason("short question or greeting"),)
    return best[1], best[2]


def _marks(category: Category, task: Scan, shape: Scan, tokens: int) -> list[tuple[int, Reason]]:
    """Return what the form of the text, beyond its words, says for a category: (points, reason)."""
    found: list[tuple[int, Reason]] = []
    if category == "code" and task.has_mark(task.rules.code_marks):
        found.append((CODE_MARK_POINTS, Reason("contains source code")))
    if category == "math" and _is_arithmetic(shape):
        found.append((ARITHMETIC_POINTS, Reason("a sum in digits")))
    elif category == "math" and _is_word_problem(task, shape, tokens):
        found.append((WORD_PROBLEM_POINTS, Reason("word problem with numbers")))
    return found


def _found(scan: Scan, group: Iterable[Signal]) -> list[tuple[int, Reason]]:
    return [(signal.points, Reason(signal.reason, hits)) for signal in group if (hits := scan.hits(signal))]


def _is_word_problem(task: Scan, shape: Scan, tokens: int) -> bool:
    numbers = shape.numbers()
    if tokens > WORD_PROBLEM_MAX_TOKENS or numbers < 2:
        return False
    if task.hits(task.rules.quantity_questions):
        return True
    return numbers >= UNIT_NUMBERS and shape.has_mark(QUESTION_MARKS) and bool(task.hits(task.rules.units))


def _is_arithmetic(shape: Scan) -> bool:
    return len(shape.words) <= ARITHMETIC_MAX_WORDS and shape.numbers() >= 2 and shape.has_mark(ARITHMETIC_MARKS)


def _is_simple(shape: Scan) -> bool:
    """Return whether a text is a short question for a fact or a greeting; an empty text counts as a greeting."""
    if len(shape.words) > SIMPLE_MAX_WORDS or likely_tokens(shape.text) > SIMPLE_MAX_TOKENS:
        return False
    greetings, opening = shape.rules.greetings, shape.words[:QUESTION_WORD_WITHIN]
    return (
        not (shape.words or shape.non_ascii)
        or not shape.rules.question_words.isdisjoint(opening)
        or not greetings.words.isdisjoint(opening[:1])
        or shape.has_mark(QUESTION_MARKS)
        or any(greeting in shape.non_ascii for greeting in greetings.other_scripts)
    )


def _is_greeting(shape: Scan) -> bool:
    """Return whether a text is a greeting or thanks of a few words, or has no word at all."""
    greetings = shape.rules.greetings
    if len(shape.words) > GREETING_MAX_WORDS or len(shape.non_ascii) > GREETING_MAX_BYTES:
        return False
    if shape.non_ascii:
        return not shape.words and any(greeting in shape.non_ascii for greeting in greetings.other_scripts)
    opening = shape.words[:1]
    return (
        not any(map(str.isalnum, shape.text))
        or not greetings.words.isdisjoint(opening)
        or " ".join(shape.words[:2]) in greetings.phrases
    )


def _banded(bands: tuple[tuple[int, int], ...], value: int) -> int:
    return next((points for least, points in bands if value >= least), 0)
