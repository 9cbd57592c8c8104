"""Prompt classification: what kind of prompt it is, how hard (1-10), and why, from word tables in linear time.

The text is folded once (bytes, one table look-up a character), split once into words, and the set of its words is
intersected with the tables' words, its pairs of neighbouring words with the phrases' pairs. No regular expression, no
I/O. `router.difficulty.signals` holds every word and number of the rules. What they say of the difficulty is then
shifted, by a few points at most, by what was learned of the outcomes of prompts of this form
(`router.difficulty.gain_model`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from router.difficulty import signals
from router.difficulty.answer_form import answer_form, count_options
from router.difficulty.folding import folded_words, latin_bytes
from router.difficulty.gain_curves import GAIN_MODEL
from router.difficulty.gain_model import GainModel
from router.difficulty.signals import Category, Pair, Signal, Terms
from router.difficulty.surface import Surface, surface

SCAN_CHARS = 8000
"""Prompts up to this many characters are scanned whole; of a longer one the first and the last half of it."""
EARLIER_CHARS = 2000
"""How much of the earlier user messages (their end) is scanned for safety-critical subjects."""
BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token, a rule of thumb for byte-pair tokenizers: English about 4, and the three bytes of a CJK
character make it count for three Latin ones. Off by up to a factor of two, which the length bands bear."""

TOLD_SHIFT = 0.25
"""A smaller shift (points of difficulty) is not told."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The classifier's answer."""

    category: Category
    difficulty: int
    """1 (a greeting) to 10 (a research problem): the score, rounded."""
    score: float
    """The same as a continuous number, which orders prompts of one difficulty."""
    reasons: tuple[str, ...]
    """Why, in words, strongest kind first; holds words of the tables, never other text of the prompt."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the rules alone say of a prompt, and its form, by which what was learned may shift it."""

    category: Category
    difficulty: int
    """1-10."""
    low: int
    """No shift goes below this difficulty: the least of such prompts, or the rules' own where that must be kept."""
    high: int
    """No shift goes above this difficulty."""
    reasons: tuple[str, ...]
    form: Surface
    words: int
    """How many words the form was read from."""


def classify_prompt(
    text: str, *, earlier: str = "", conversation_tokens: int = 0, gain_model: GainModel = GAIN_MODEL
) -> Classification:
    """Category and difficulty of a user's prompt.

    `earlier` is what the user said before in the same conversation: a follow-up to a safety-critical question ("and
    how much of it?") is safety-critical too. `conversation_tokens` is the estimated length of the whole conversation.
    Any string is accepted, also an empty one, lone surrogates included.
    """
    return shifted(rule(text, earlier=earlier, conversation_tokens=conversation_tokens), gain_model)


def shifted(ruling: Ruling, gain_model: GainModel) -> Classification:
    """The rules' difficulty, shifted by what the model learned of texts of this form, within the ruling's bounds."""
    learned = gain_model.shift(ruling.form, ruling.words)
    score = min(max(ruling.difficulty + learned.points, ruling.low), ruling.high)
    reasons = ruling.reasons
    if learned.reasons and abs(score - ruling.difficulty) >= TOLD_SHIFT:
        reasons += (f"form of the text: {', '.join(learned.reasons)}",)
    return Classification(ruling.category, math.floor(score + 0.5), score, reasons)


def rule(text: str, *, earlier: str = "", conversation_tokens: int = 0) -> Ruling:
    """What the rules say of a prompt; arguments as of `classify_prompt`."""
    scan = _Scan.of(_window(text))
    safety = _safety_reasons(scan) or _safety_reasons(_Scan.of(earlier[-EARLIER_CHARS:]), "earlier in the conversation")
    task = scan.ends()
    directives = task.directives()
    shape = scan.without(directives)
    tokens = estimate_tokens(text) - estimate_tokens("".join(directives))
    arithmetic = _is_arithmetic(shape)

    category, why = _category(task, shape, tokens, arithmetic)
    form = _form(shape, category)
    found = _found(task, signals.OPTION_SIGNALS if form.options else signals.DIFFICULTY_SIGNALS)
    harder = tuple(reason for _, reason in found)
    if category == "general_reasoning" and not harder and _is_simple(shape, tokens):
        category, why = "simple_question", ("short question or greeting",)

    difficulty = signals.BASE_DIFFICULTY[category] + sum(points for points, _ in found)
    if category == "simple_question" and len(shape.words) > signals.EASIEST_MAX_WORDS:
        difficulty += 1
    if category == "math" and arithmetic:
        difficulty += signals.ARITHMETIC_ALONE_POINTS
    long_points, long_reasons = _length_points(tokens, conversation_tokens)
    difficulty += long_points
    if safety:
        category, why = "safety_critical", safety
    least, most = signals.DIFFICULTY_RANGE[category]
    if estimate_tokens(text) >= signals.LONG_CONTEXT_TOKENS or len(text) > SCAN_CHARS:
        least, most = signals.LONG_CONTEXT_DIFFICULTY, max(most, signals.LONG_CONTEXT_DIFFICULTY)
    difficulty = min(max(difficulty, least), most)
    kept = category in signals.NEVER_EASIER or any(points >= signals.HARD_POINTS for points, _ in found)
    low = difficulty if kept else least
    high = min(most, max(difficulty, signals.FORM_HIGHEST))
    if category in signals.FORM_SAYS_NOTHING:
        low = high = difficulty
    return Ruling(category, difficulty, low, high, why + harder + long_reasons, form, len(shape.words))


def estimate_tokens(text: str) -> int:
    """Estimated tokens of a text, from its UTF-8 length; see `BYTES_PER_TOKEN` for the error."""
    return len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN


def _window(text: str) -> str:
    if len(text) <= SCAN_CHARS:
        return text
    half = SCAN_CHARS // 2
    return f"{text[:half]}\n{text[-half:]}"


_DIGITS_ONLY = bytes(code if chr(code) in "0123456789" else 32 for code in range(256))
_ASCII = bytes(range(128))
_CLAUSE_ENDS = "!?;,:\n。！？、，"  # noqa: RUF001 (full-width punctuation is meant)


@dataclass(frozen=True, slots=True)
class _Scan:
    """A text, folded and split once."""

    text: str
    latin: bytes
    """The text in Latin-1, a `?` for each character outside it."""
    words: list[str]
    known: frozenset[str]
    """Those of the words that some table holds."""
    pairs: frozenset[Pair]
    """Those of the neighbouring words that some phrase holds."""
    wide: bytes
    """What is not ASCII, in lower case and UTF-8, where the text has characters outside Latin-1; else empty."""
    leads: frozenset[bytes]
    """First bytes of terms that are in `wide`: one tells the script, so that a text is searched for its own only."""

    @classmethod
    def of(cls, text: str) -> _Scan:
        latin = latin_bytes(text)
        words = folded_words(latin)
        has_wide = latin.count(b"?") > text.count("?")
        wide = _wide_part(text) if has_wide else b""
        return cls(
            text=text,
            latin=latin,
            words=words,
            known=signals.KNOWN_WORDS.intersection(words),
            pairs=signals.KNOWN_PAIRS.intersection(pairwise(words)),
            wide=wide,
            leads=frozenset(lead for lead in signals.WIDE_LEADS if lead in wide) if wide else frozenset(),
        )

    def hits(self, terms: Terms) -> tuple[str, ...]:
        """The terms found: words in order of the alphabet, then phrases, then terms of other scripts."""
        words = [] if terms.words.isdisjoint(self.known) else sorted(terms.words & self.known)
        if not terms.pairs.isdisjoint(self.pairs):
            words += [phrase.text for phrase in terms.phrases if phrase.pairs <= self.pairs]
        if self.leads:
            words += [term.decode() for term in terms.wide if term[:1] in self.leads and term in self.wide]
        return tuple(words)

    def numbers(self) -> int:
        """How many numbers the text holds, in digits or in words."""
        return len(self.latin.translate(_DIGITS_ONLY).split()) + len(signals.NUMBER_WORDS & self.known)

    def has_mark(self, marks: Iterable[str]) -> bool:
        """Whether the text, as typed, holds one of the marks."""
        return any(mark in self.text for mark in marks)

    def ends(self) -> _Scan:
        """The beginning and end of a long text, where its task stands; a short text itself."""
        if len(self.text) <= signals.TASK_CHARS:
            return self
        half = signals.TASK_CHARS // 2
        return _Scan.of(f"{self.text[:half]}\n{self.text[-half:]}")

    def directives(self) -> list[str]:
        """The short clauses that speak to the router, of those at the text's beginning and end."""
        if not self.hits(signals.DIRECTIVE_TERMS):
            return []
        clauses = _clauses(self.text)
        edge = signals.DIRECTIVE_CLAUSES
        ends = clauses if len(clauses) <= 2 * edge else clauses[:edge] + clauses[-edge:]
        return [clause for clause in ends if _is_directive(clause)]

    def without(self, clauses: list[str]) -> _Scan:
        """The text without these clauses; a long one is left as it is, for its form counts only when short."""
        if not clauses or len(self.text) > signals.TASK_CHARS:
            return self
        text = self.text
        for clause in clauses:
            text = text.replace(clause, " ")
        return _Scan.of(text)


def _wide_part(text: str) -> bytes:
    """The non-ASCII part of a text. Where it is longer than a long context, only its beginning and end: searching
    it is the costliest part of a scan, and so long a prompt is not under-served whatever its middle holds.
    """
    wide = text.lower().encode("utf-8", "surrogatepass").translate(None, _ASCII)
    half = signals.LONG_CONTEXT_TOKENS * BYTES_PER_TOKEN // 2
    return wide if len(wide) <= 2 * half else wide[:half] + wide[-half:]


def _clauses(text: str) -> list[str]:
    """The text cut after every mark that ends a clause; the marks stay, but for the full stop."""
    for end in _CLAUSE_ENDS:
        text = text.replace(end, f"{end}.")
    return text.split(".")


def _is_directive(clause: str) -> bool:
    """Whether a clause is short and speaks to the router."""
    if len(clause) > signals.DIRECTIVE_MAX_CHARS:
        return False
    terms = signals.DIRECTIVE_TERMS
    words = folded_words(latin_bytes(clause))
    pairs = terms.pairs.intersection(pairwise(words))
    return not terms.words.isdisjoint(words) or (bool(pairs) and any(phrase.pairs <= pairs for phrase in terms.phrases))


def _in_words(reason: str, hits: tuple[str, ...]) -> str:
    """A reason with at most three of the terms that hit."""
    return f"{reason} ({', '.join(hits[:3])})"


def _form(shape: _Scan, category: Category) -> Surface:
    """The outward form of a prompt, without the words that speak to the router."""
    options = count_options(shape.latin)
    return surface(shape.latin, shape.words, options, answer_form(category, options))


def _safety_reasons(scan: _Scan, where: str | None = None) -> tuple[str, ...]:
    reasons = []
    for rule in signals.SAFETY_RULES:
        hits = scan.hits(rule.subject)
        if hits and (rule.stake is None or scan.hits(rule.stake)):
            reasons.append(_in_words(rule.reason if where is None else f"{rule.reason}, {where}", hits))
    return tuple(reasons)


def _category(task: _Scan, shape: _Scan, tokens: int, arithmetic: bool) -> tuple[Category, tuple[str, ...]]:
    """The category with most points, or general reasoning when none has enough; and what gave it its points."""
    best: tuple[int, Category, tuple[str, ...]] = (signals.CATEGORY_THRESHOLD - 1, "general_reasoning", ())
    for category, group in signals.CATEGORY_SIGNALS.items():
        found = _marks(category, task, shape, tokens, arithmetic) + _found(task, group)
        points = sum(point for point, _ in found)
        if points > best[0]:
            best = (points, category, tuple(reason for _, reason in found))
    return best[1], best[2]


def _marks(category: Category, task: _Scan, shape: _Scan, tokens: int, arithmetic: bool) -> list[tuple[int, str]]:
    """What the form of the text, beyond its words, says for a category: (points, reason)."""
    found: list[tuple[int, str]] = []
    if category == "code" and task.has_mark(signals.CODE_MARKS):
        found.append((signals.CODE_MARK_POINTS, "holds source code"))
    if category == "math" and arithmetic:
        found.append((signals.ARITHMETIC_POINTS, "a sum in digits"))
    elif category == "math" and _is_word_problem(task, shape, tokens):
        found.append((signals.WORD_PROBLEM_POINTS, "word problem with numbers"))
    return found


def _found(scan: _Scan, group: Iterable[Signal]) -> list[tuple[int, str]]:
    return [(signal.points, _in_words(signal.reason, hits)) for signal in group if (hits := scan.hits(signal.terms))]


def _is_word_problem(task: _Scan, shape: _Scan, tokens: int) -> bool:
    numbers = shape.numbers()
    if tokens > signals.WORD_PROBLEM_MAX_TOKENS or numbers < 2:
        return False
    if task.hits(signals.WORD_PROBLEM_TERMS):
        return True
    asks = shape.has_mark(signals.QUESTION_MARKS)
    return asks and numbers >= signals.QUANTITY_NUMBERS and bool(task.hits(signals.QUANTITY_TERMS))


def _is_arithmetic(shape: _Scan) -> bool:
    return (
        len(shape.words) <= signals.ARITHMETIC_MAX_WORDS
        and shape.numbers() >= 2
        and shape.has_mark(signals.ARITHMETIC_MARKS)
    )


def _is_simple(shape: _Scan, tokens: int) -> bool:
    """A short question for a fact, or a greeting; nothing at all counts as a greeting."""
    if len(shape.words) > signals.SIMPLE_MAX_WORDS or tokens > signals.SIMPLE_MAX_TOKENS:
        return False
    opening = shape.words[: signals.QUESTION_WORD_WITHIN]
    return (
        not (shape.words or shape.wide)
        or not signals.QUESTION_WORDS.isdisjoint(opening)
        or not signals.GREETINGS.isdisjoint(opening[:1])
        or shape.has_mark(signals.QUESTION_MARKS)
        or any(greeting.encode() in shape.wide for greeting in signals.WIDE_GREETINGS)
    )


def _length_points(tokens: int, conversation_tokens: int) -> tuple[int, tuple[str, ...]]:
    points = _banded(signals.LENGTH_POINTS, tokens)
    reasons = [f"long prompt (about {tokens} tokens)"] if points else []
    if more := _banded(signals.CONVERSATION_POINTS, conversation_tokens):
        reasons.append(f"long conversation (about {conversation_tokens} tokens)")
    return points + more, tuple(reasons)


def _banded(bands: tuple[tuple[int, int], ...], value: int) -> int:
    return next((points for least, points in bands if value >= least), 0)
