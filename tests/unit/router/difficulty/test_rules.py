"""The rules in `rules.yaml` are written so that the classifier can find them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from router.difficulty.folding import folded_words, latin_bytes
from router.difficulty.rules import Rules, Terms, load_rules

RULES = load_rules()
ALL_TERMS = (*RULES.all_terms, RULES.about_the_router)


def folded(text: str) -> list[str]:
    return folded_words(latin_bytes(text))


def test_every_word_and_phrase_is_written_as_it_is_folded() -> None:
    words = RULES.number_words | RULES.question_words
    words = words.union(*(terms.words for terms in ALL_TERMS))
    assert [word for word in words if folded(word) != [word]] == []
    phrases = [phrase for terms in ALL_TERMS for phrase in terms.phrases]
    assert [phrase for phrase in phrases if folded(phrase) != phrase.split() or " " not in phrase] == []


def test_every_term_of_another_script_is_lower_case_and_outside_latin_1() -> None:
    terms = [term.decode() for terms in ALL_TERMS for term in terms.other_scripts]
    assert [term for term in terms if term != term.lower() or set(latin_bytes(term)) != {ord("?")}] == []


def test_terms_are_split_at_spaces_and_commas() -> None:
    terms = Terms.model_validate({"words": "a b", "phrases": "c d, e f g", "other_scripts": "天 地"})
    assert (terms.words, terms.phrases, terms.other_scripts) == (
        frozenset({"a", "b"}),
        ("c d", "e f g"),
        ("天".encode(), "地".encode()),
    )
    assert terms.pairs == frozenset({("c", "d"), ("e", "f"), ("f", "g")})


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="word"):
        Terms.model_validate({"word": "a"})
    with pytest.raises(ValidationError, match="safty"):
        Rules.model_validate({"safty": []})


def test_the_file_is_read_once() -> None:
    assert load_rules() is load_rules()
