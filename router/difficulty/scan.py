"""A text, folded and split once, in which the classifier looks up the terms of its rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from router.difficulty.folding import count_numbers, folded_sentences, folded_words, latin_bytes
from router.difficulty.rules import Pair, Rules, Terms

TASK_CHARS = 1500
"""The first and the last half of this many characters say what a long text asks for (category, difficulty). What lies
between is material, which has any word by chance. Safety-critical subjects count wherever they stand."""
DIRECTIVE_MAX_CHARS = 160
"""A longer clause is kept even if it speaks to the router: it also holds the task."""
DIRECTIVE_CLAUSES = 16
"""How many clauses at either end are searched for directives. It bounds the time for a text of short clauses."""
_CLAUSE_ENDS = "!?;,:\n。！？、，"  # noqa: RUF001 (full-width punctuation is meant)
SENTENCES = 32
"""How many sentences at either end are searched one by one. It bounds the time for a text of short sentences."""
_SENTENCE_ENDS = ".!?。！？"  # noqa: RUF001 (full-width punctuation is meant)
_ASCII = bytes(range(128))


@dataclass(frozen=True, slots=True)
class Scan:
    """A text, folded and split once. Make it with `Scan.of`."""

    rules: Rules
    text: str
    latin: bytes
    """The text in Latin-1, with `?` for each character outside it."""
    words: list[str]
    known: frozenset[str]
    """Those of the words that some rule has."""
    pairs: frozenset[Pair]
    """Those of the pairs of neighbouring words that some phrase has."""
    non_ascii: bytes
    """The part that is not ASCII, in lower case and UTF-8; empty if the text has no character outside Latin-1."""
    leads: frozenset[bytes]
    """First bytes of terms that are in `non_ascii`: they tell the script, so a text is searched for its own only."""

    @classmethod
    def of(cls, text: str, rules: Rules) -> Scan:
        """Return the scan of a text."""
        latin = latin_bytes(text)
        words = folded_words(latin)
        has_other_scripts = latin.count(b"?") > text.count("?")
        non_ascii = _non_ascii_part(text) if has_other_scripts else b""
        return cls(
            rules=rules,
            text=text,
            latin=latin,
            words=words,
            known=rules.known_words.intersection(words),
            pairs=rules.known_pairs.intersection(pairwise(words)),
            non_ascii=non_ascii,
            leads=frozenset(lead for lead in rules.script_leads if lead in non_ascii) if non_ascii else frozenset(),
        )

    def hits(self, terms: Terms) -> tuple[str, ...]:
        """Return the terms found: words in alphabetical order, then phrases, then terms of other scripts."""
        if not self.leads and terms.words.isdisjoint(self.known) and terms.pairs.isdisjoint(self.pairs):
            return ()  # of most rules there is nothing
        found = sorted(terms.words & self.known) if self.known and not terms.words.isdisjoint(self.known) else []
        if self.pairs and not terms.pairs.isdisjoint(self.pairs):
            found += [phrase for phrase, pairs in terms.phrase_pairs if pairs <= self.pairs]
        if self.leads:
            found += [t.decode() for t in terms.other_scripts if t[:1] in self.leads and t in self.non_ascii]
        return tuple(found)

    def sentences(self) -> list[str]:
        """Return the sentences at the text's beginning and end, folded."""
        parts = folded_sentences(self.text)
        return parts if len(parts) <= 2 * SENTENCES else parts[:SENTENCES] + parts[-SENTENCES:]

    def outside(self, terms: Terms) -> Scan:
        """Return the text without those sentences, of its first and last ones, that have one of the terms."""
        text = self.text
        for end in _SENTENCE_ENDS:
            text = text.replace(end, f"{end}\n")
        parts = text.split("\n")
        read = range(len(parts)) if len(parts) <= 2 * SENTENCES else [*range(SENTENCES), *range(-SENTENCES, 0)]
        for place in read:
            if Scan.of(parts[place], self.rules).hits(terms):
                parts[place] = ""
        return Scan.of("\n".join(parts), self.rules)

    def numbers(self) -> int:
        """Return how many numbers the text has, in digits or in words."""
        return count_numbers(self.latin) + len(self.rules.number_words & self.known)

    def has_mark(self, marks: Iterable[str]) -> bool:
        """Return whether the text, as typed, has one of the marks."""
        return any(mark in self.text for mark in marks)

    def ends(self) -> Scan:
        """Return the beginning and end of a long text, where its task stands; a short text itself."""
        if len(self.text) <= TASK_CHARS:
            return self
        return Scan.of(beginning_and_end(self.text, TASK_CHARS), self.rules)

    def directives(self) -> list[str]:
        """Return the short clauses at the text's beginning and end that speak to the router."""
        if not self.hits(self.rules.router_directives):
            return []
        clauses = _clauses(self.text)
        if len(clauses) > 2 * DIRECTIVE_CLAUSES:
            clauses = clauses[:DIRECTIVE_CLAUSES] + clauses[-DIRECTIVE_CLAUSES:]
        return [clause for clause in clauses if _is_directive(clause, self.rules.router_directives)]

    def without(self, clauses: list[str]) -> Scan:
        """Return the text without these clauses."""
        if not clauses:
            return self
        text = self.text
        for clause in clauses:
            text = text.replace(f"{clause}.", " ").replace(clause, " ")
        return Scan.of(text.strip(), self.rules)


def beginning_and_end(text: str, chars: int) -> str:
    """Return the first and the last half of so many characters of a longer text; a shorter text itself."""
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n{text[-half:]}"


def _non_ascii_part(text: str) -> bytes:
    return text.lower().encode("utf-8", "surrogatepass").translate(None, _ASCII)


def _clauses(text: str) -> list[str]:
    """Return the text cut after every mark that ends a clause; the marks stay, except for the full stop."""
    for end in _CLAUSE_ENDS:
        text = text.replace(end, f"{end}.")
    return text.split(".")


def _is_directive(clause: str, directives: Terms) -> bool:
    """Return whether a clause is short and speaks to the router."""
    if len(clause) > DIRECTIVE_MAX_CHARS:
        return False
    words = folded_words(latin_bytes(clause))
    pairs = directives.pairs.intersection(pairwise(words))
    return not directives.words.isdisjoint(words) or (
        bool(pairs) and any(phrase <= pairs for _, phrase in directives.phrase_pairs)
    )
