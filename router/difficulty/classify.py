"""Classify a prompt: its category, its difficulty (1-10), and why, from word lists in linear time.

The text is folded and split into words once (`scan.py`), and the rules (`rules.yaml`) look up their terms in it,
without regular expressions or I/O. The difficulty by the rules is then shifted, by a few points at most, by what was
learned from the outcomes of prompts of the same form (`gain_model.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from router.difficulty.categories import Category
from router.difficulty.features import Features, features
from router.difficulty.gain_model import GainModel, load_gain_model
from router.difficulty.rules import Signal, load_rules
from router.difficulty.scan import BYTES_PER_TOKEN, LONG_CONTEXT_TOKENS, Scan, beginning_and_end
from router.registry import DEFAULT_AUTO, AutoSettings

# Our own choices, checked by hand like the rules' words and points.

SCAN_CHARS = 8000
"""Prompts up to this many characters are scanned whole; of a longer one the first and the last half of it."""
EARLIER_CHARS = 2000
"""How much of the earlier user messages (their end) is scanned for safety-critical subjects."""
LONG_CONTEXT_DIFFICULTY = 8
"""Lowest difficulty of a prompt of LONG_CONTEXT_TOKENS or more, and of any prompt that is too long to be scanned whole:
its unscanned middle may be safety-critical."""
LENGTH_POINTS: tuple[tuple[int, int], ...] = ((1000, 3), (500, 2), (150, 1))
"""(lowest number of estimated tokens, points of difficulty), longest first."""
CONVERSATION_POINTS: tuple[tuple[int, int], ...] = ((8000, 2), (2000, 1))
"""The same for the whole conversation. Fewer points, because its last message may be a "thanks"."""

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
ARITHMETIC_DIFFICULTY = -2
"""Points of difficulty of a bare sum ("12 * 7 = ?"): it is easier than the category's base."""

QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001
QUESTION_WORD_WITHIN = 4
"""A question word must be among so many first words ("Please tell me what ...")."""
SIMPLE_MAX_WORDS = 30
SIMPLE_MAX_TOKENS = 60
"""The same limit for scripts without spaces, in estimated tokens."""
EASIEST_MAX_WORDS = 12
"""A longer simple question is a point harder."""

NEVER_EASIER: frozenset[Category] = frozenset(("safety_critical", "code", "math"))
"""The learned model takes nothing from these: their subject, which the rules know, counts for more than their form."""
HARD_POINTS = 4
"""Nor from a prompt with a signal of so many points of difficulty."""
RULES_ALONE: frozenset[Category] = frozenset(("creative",))
"""The learned model neither adds nor takes: it was trained on questions that have right and wrong answers."""
LEARNED_HIGHEST = 8
"""The learned model lifts no prompt above this difficulty: only the rules give the highest ones."""
REPORTED_SHIFT = 0.25
"""A smaller shift by the learned model, in points of difficulty, gets no reason."""


@dataclass(frozen=True, slots=True)
class Classification:
    """What kind of prompt it is, and how hard."""

    category: Category
    difficulty: int
    """1 (a greeting) to 10 (a research problem): the rounded score."""
    score: float
    """The difficulty before rounding: it orders prompts of the same difficulty."""
    reasons: tuple[str, ...]
    """Why, strongest kind first; they have words of the rules only, never other text of the prompt."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules alone say about a prompt, and the features by which the learned model may shift it."""

    category: Category
    difficulty: int
    """1-10."""
    low: int
    """No shift goes below this difficulty."""
    high: int
    """No shift goes above this difficulty."""
    reasons: tuple[str, ...]
    features: Features
    words: int
    """How many words the features were made from."""


def load_classifier() -> None:
    """Read the rules and the learned model now, so that the first prompt does not wait for the files."""
    load_rules()
    load_gain_model()


def classify_prompt(
    text: str, *, earlier: str = "", conversation_tokens: int = 0, auto: AutoSettings = DEFAULT_AUTO
) -> Classification:
    """Return category and difficulty of a user's prompt.

    Args:
        text: the prompt; any string, also an empty one or one with lone surrogates.
        earlier: what the user wrote before in the same conversation. A follow-up to a safety-critical question ("and
            how much of it?") is safety-critical too.
        conversation_tokens: estimated length of the whole conversation.
        auto: how prompts are spread over the tiers.
    """
    return shifted(rule(text, earlier=earlier, conversation_tokens=conversation_tokens), load_gain_model())


def shifted(ruling: Ruling, gain_model: GainModel) -> Classification:
    """Return the rules' difficulty, shifted by what the model learned of this form, within the ruling's bounds."""
    learned = gain_model.shift(ruling.features, ruling.words)
    score = min(max(ruling.difficulty + learned.points, ruling.low), ruling.high)
    reasons = ruling.reasons
    if learned.reasons and abs(score - ruling.difficulty) >= REPORTED_SHIFT:
        reasons += (f"form of the text: {', '.join(learned.reasons)}",)
    return Classification(ruling.category, math.floor(score + 0.5), score, reasons)


def rule(text: str, *, earlier: str = "", conversation_tokens: int = 0) -> Ruling:
    """Return what the rules say about a prompt; arguments as of `classify_prompt`."""
    rules = load_rules()
    scan = Scan.of(beginning_and_end(text, SCAN_CHARS), rules)
    safety = _safety_reasons(scan) or _safety_reasons(
        Scan.of(earlier[-EARLIER_CHARS:], rules), "earlier in the conversation"
    )
    task = scan.ends()
    directives = task.directives()
    shape = scan.without(directives)
    whole_tokens = estimate_tokens(text)
    tokens = whole_tokens - estimate_tokens("".join(directives))
    arithmetic = _is_arithmetic(shape)

    category, why = _category(task, shape, tokens, arithmetic)
    found_features = features(shape.latin, shape.words, category, rules.function_words)
    found = _found(task, rules.difficulty_with_options if found_features.options else rules.difficulty)
    harder = tuple(reason for _, reason in found)
    if category == "general_reasoning" and not harder and _is_simple(shape, tokens):
        category, why = "simple_question", ("short question or greeting",)

    difficulty = rules.base_difficulty[category] + sum(points for points, _ in found)
    if category == "simple_question" and len(shape.words) > EASIEST_MAX_WORDS:
        difficulty += 1
    if category == "math" and arithmetic:
        difficulty += ARITHMETIC_DIFFICULTY
    long_points, long_reasons = _length_points(tokens, conversation_tokens)
    difficulty += long_points
    if safety:
        category, why = "safety_critical", safety
    least, most = rules.difficulty_range[category]
    if whole_tokens >= LONG_CONTEXT_TOKENS or len(text) > SCAN_CHARS:
        least, most = LONG_CONTEXT_DIFFICULTY, max(most, LONG_CONTEXT_DIFFICULTY)
    difficulty = min(max(difficulty, least), most)
    kept = category in NEVER_EASIER or any(points >= HARD_POINTS for points, _ in found)
    low = difficulty if kept else least
    high = min(most, max(difficulty, LEARNED_HIGHEST))
    if category in RULES_ALONE:
        low = high = difficulty
    return Ruling(category, difficulty, low, high, why + harder + long_reasons, found_features, len(shape.words))


def estimate_tokens(text: str) -> int:
    """Return the estimated tokens of a text, from its UTF-8 length; see `BYTES_PER_TOKEN` for the error."""
    return len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN


def _with_hits(reason: str, hits: tuple[str, ...]) -> str:
    """Return a reason with at most three of the terms that were found."""
    return f"{reason} ({', '.join(hits[:3])})"


def _safety_reasons(scan: Scan, where: str | None = None) -> tuple[str, ...]:
    reasons = []
    for rule in scan.rules.safety:
        hits = scan.hits(rule.subject)
        if hits and (rule.stake is None or scan.hits(rule.stake)):
            reasons.append(_with_hits(rule.reason if where is None else f"{rule.reason}, {where}", hits))
    return tuple(reasons)


def _category(task: Scan, shape: Scan, tokens: int, arithmetic: bool) -> tuple[Category, tuple[str, ...]]:
    """Return the category with most points and its reasons, or general reasoning when none has enough points."""
    best: tuple[int, Category, tuple[str, ...]] = (CATEGORY_THRESHOLD - 1, "general_reasoning", ())
    for category, group in task.rules.categories.items():
        found = _marks(category, task, shape, tokens, arithmetic) + _found(task, group)
        points = sum(point for point, _ in found)
        if points > best[0]:
            best = (points, category, tuple(reason for _, reason in found))
    return best[1], best[2]


def _marks(category: Category, task: Scan, shape: Scan, tokens: int, arithmetic: bool) -> list[tuple[int, str]]:
    """Return what the form of the text, beyond its words, says for a category: (points, reason)."""
    found: list[tuple[int, str]] = []
    if category == "code" and task.has_mark(task.rules.code_marks):
        found.append((CODE_MARK_POINTS, "contains source code"))
    if category == "math" and arithmetic:
        found.append((ARITHMETIC_POINTS, "a sum in digits"))
    elif category == "math" and _is_word_problem(task, shape, tokens):
        found.append((WORD_PROBLEM_POINTS, "word problem with numbers"))
    return found


def _found(scan: Scan, group: Iterable[Signal]) -> list[tuple[int, str]]:
    return [(signal.points, _with_hits(signal.reason, hits)) for signal in group if (hits := scan.hits(signal))]


def _is_word_problem(task: Scan, shape: Scan, tokens: int) -> bool:
    numbers = shape.numbers()
    if tokens > WORD_PROBLEM_MAX_TOKENS or numbers < 2:
        return False
    if task.hits(task.rules.quantity_questions):
        return True
    return numbers >= UNIT_NUMBERS and shape.has_mark(QUESTION_MARKS) and bool(task.hits(task.rules.units))


def _is_arithmetic(shape: Scan) -> bool:
    return len(shape.words) <= ARITHMETIC_MAX_WORDS and shape.numbers() >= 2 and shape.has_mark(ARITHMETIC_MARKS)


def _is_simple(shape: Scan, tokens: int) -> bool:
    """Return whether a text is a short question for a fact or a greeting; an empty text counts as a greeting."""
    if len(shape.words) > SIMPLE_MAX_WORDS or tokens > SIMPLE_MAX_TOKENS:
        return False
    greetings, opening = shape.rules.greetings, shape.words[:QUESTION_WORD_WITHIN]
    return (
        not (shape.words or shape.non_ascii)
        or not shape.rules.question_words.isdisjoint(opening)
        or not greetings.words.isdisjoint(opening[:1])
        or shape.has_mark(QUESTION_MARKS)
        or any(greeting in shape.non_ascii for greeting in greetings.other_scripts)
    )


def _length_points(tokens: int, conversation_tokens: int) -> tuple[int, tuple[str, ...]]:
    points = _banded(LENGTH_POINTS, tokens)
    reasons = [f"long prompt (about {tokens} tokens)"] if points else []
    if more := _banded(CONVERSATION_POINTS, conversation_tokens):
        reasons.append(f"long conversation (about {conversation_tokens} tokens)")
    return points + more, tuple(reasons)


def _banded(bands: tuple[tuple[int, int], ...], value: int) -> int:
    return next((points for least, points in bands if value >= least), 0)
