"""The rules of the classifier, read from `rules.yaml`: terms for what is safety-critical, and for categories."""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BeforeValidator, Field

from router.difficulty.categories import Category
from router.registry import Frozen

Pair = tuple[str, str]
"""Two neighbouring words."""


def _split_at_spaces(value: object) -> object:
    return value.split() if isinstance(value, str) else value


def _split_at_commas(value: object) -> object:
    return value.split(", ") if isinstance(value, str) else value


def _encoded(value: object) -> object:
    return value.encode().split() if isinstance(value, str) else value


Words = Annotated[frozenset[str], BeforeValidator(_split_at_spaces)]


class Terms(Frozen):
    """Words, phrases and terms of other scripts; any one of them is a hit."""

    words: Words = Field(default=frozenset(), description="Single words.")
    phrases: Annotated[tuple[str, ...], BeforeValidator(_split_at_commas)] = Field(
        default=(), description="Several words in a row."
    )
    other_scripts: Annotated[tuple[bytes, ...], BeforeValidator(_encoded)] = Field(
        default=(), description="Terms of scripts outside Latin-1 in UTF-8, lower case."
    )

    @cached_property
    def phrase_pairs(self) -> tuple[tuple[str, frozenset[Pair]], ...]:
        """Each phrase with its pairs of neighbouring words.

        A phrase counts as found when each of its pairs is somewhere in the prompt. For two words that is exact. For
        more, the pairs may stand apart; that is rare and costs a false alarm. In exchange, one pass over the words
        serves all phrases.
        """
        return tuple((phrase, frozenset(pairwise(phrase.split()))) for phrase in self.phrases)

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """All pairs of the phrases: a prompt that has none of them has none of the phrases."""
        return frozenset().union(*(pairs for _, pairs in self.phrase_pairs))


class Signal(Terms):
    """Terms that add points to a category."""

    reason: str = Field(description="What a hit means; shown to the user together with the terms that were found.")
    points: int = Field(description="Points that a hit adds.")


class SafetyRule(Frozen):
    """Terms that make a prompt safety-critical."""

    reason: str = Field(description="What a hit means; shown to the user together with the terms that were found.")
    subject: Terms = Field(description="One of these must be in the prompt.")
    stake: Terms | None = Field(default=None, description="And one of these, where given.")
    and_also: Terms | None = Field(default=None, description="And one of these too, where given.")
    unless: Terms | None = Field(
        default=None, description="A sentence with one of these does not count (a stroke's width, a boss in a game)."
    )
    same_sentence: bool = Field(
        default=False, description="Whether all must stand in one sentence; for words that long texts have by chance."
    )


class Rules(Frozen):
    """All rules of the classifier."""

    safety: tuple[SafetyRule, ...] = Field(description="What makes a prompt safety-critical.")
    categories: dict[Category, tuple[Signal, ...]] = Field(description="Points towards each category.")
    code_marks: tuple[str, ...] = Field(description="Marks of source code, as typed.")
    quantity_questions: Terms = Field(description="Ask for a quantity.")
    units: Terms = Field(description="Units of quantities.")
    number_words: Words = Field(description="Numbers in words.")
    greetings: Terms = Field(description="Greetings and thanks.")
    question_words: Words = Field(description="Words that begin a question.")
    router_directives: Terms = Field(description="Words that speak to the router.")
    about_the_router: Terms = Field(description="Words about the router; the classifier ignores them.")

    @cached_property
    def all_terms(self) -> tuple[Terms, ...]:
        """The terms of every rule."""
        parts = [terms for rule in self.safety for terms in (rule.subject, rule.stake, rule.and_also, rule.unless)]
        safety = [terms for terms in parts if terms is not None]
        categories = [signal for group in self.categories.values() for signal in group]
        return (
            *safety,
            *categories,
            self.quantity_questions,
            self.units,
            self.greetings,
            self.router_directives,
        )

    @cached_property
    def known_words(self) -> frozenset[str]:
        """Every single word of the rules: few words of a prompt are among them, so rules look at few words."""
        return self.number_words.union(*(terms.words for terms in self.all_terms))

    @cached_property
    def known_pairs(self) -> frozenset[Pair]:
        """The same for the pairs of the phrases."""
        return frozenset().union(*(terms.pairs for terms in self.all_terms))

    @cached_property
    def script_leads(self) -> frozenset[bytes]:
        """First bytes of the terms of other scripts: they tell which scripts a text has terms of."""
        return frozenset(term[:1] for terms in self.all_terms for term in terms.other_scripts)


@lru_cache(maxsize=1)
def load_rules() -> Rules:
    """Return the rules; the first call of a process reads them from the file."""
    text = Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8")
    return Rules.model_validate(yaml.safe_load(text))
