"""The router's range of a text's tokens holds what real tokenizers count: the bundled model's, and two of Mistral's."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import mistral_common
import pytest
from jinja2 import Environment
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Tokenizer

from router.needs import NOTHING_MORE, prompt_tokens
from router.request import InferenceRequest
from router.tokens import tokens_of

TEXTS: Final = {
    "english": "The committee will meet on Thursday to discuss if the bridge is to be rebuilt or merely repaired.",
    "german": "Die Kündigungsfrist für Mietverträge über Wohnraum beträgt grundsätzlich drei Monate.",
    "french": "Pourquoi les feuilles des arbres deviennent-elles rouges à l'automne ? Comment l'expliquer ?",
    "spanish": "Escribe una demostración del teorema de Bolzano-Weierstrass y explica cada paso.",
    "polish": "Dlaczego w języku polskim przymiotnik może stać zarówno przed rzeczownikiem, jak i po nim?",
    "finnish": "Kerro lyhyesti, miksi revontulet näkyvät parhaiten talvella ja missä niitä kannattaa lähteä katsomaan.",
    "turkish": "İstanbul'da yağmurlu bir günde çocuklarla birlikte yapılabilecek beş etkinlik önerir misiniz, lütfen?",  # noqa: RUF001
    "vietnamese": "Hãy giải thích vì sao bầu trời có màu xanh vào ban ngày và màu đỏ khi mặt trời lặn.",
    "russian": "Объясните, пожалуйста, почему небо голубое днём и красное на закате, простыми словами для ребёнка.",
    "greek": "Γιατί ο ουρανός είναι γαλάζιος την ημέρα και κόκκινος στο ηλιοβασίλεμα; Εξηγήστε το απλά.",  # noqa: RUF001
    "hebrew": "מדוע השמיים כחולים ביום ואדומים בשקיעה? הסבירו במילים פשוטות.",
    "arabic": "لماذا تكون السماء زرقاء في النهار وحمراء عند الغروب؟ اشرح ذلك بكلمات بسيطة.",
    "hindi": "आसमान दिन में नीला और सूर्यास्त के समय लाल क्यों होता है? सरल शब्दों में समझाइए।",
    "thai": "ทำไมท้องฟ้าถึงเป็นสีฟ้าในตอนกลางวันและเป็นสีแดงตอนพระอาทิตย์ตก ช่วยอธิบายง่ายๆ",
    "chinese": "请用简单的语言解释一下为什么白天的天空是蓝色的,而日落时的天空是红色的。",
    "japanese": "昼の空が青く、夕焼けの空が赤いのはなぜですか。子どもにもわかるように説明してください。",
    "korean": "낮에는 하늘이 파랗고 해가 질 때는 빨간 이유를 아이도 이해할 수 있게 설명해 주세요.",
    "emoji": "🎉🚀👩‍🔬🇫🇷 Party at 8! 🍕🍕🥳 Bring 🎸 and 🪩 ❤️‍🔥",
    "code": 'def f(xs: list[int]) -> dict[str, int]:\n    return {f"{x:04d}": x**2 for x in xs if x % 3 != 0}\n',
    "json": json.dumps(
        {"id": 918273645, "tags": ["a", "b"], "price": 12.99, "nested": {"ok": True, "n": None}}, indent=2
    ),
    "numbers": "3.14159 26535 89793 23846 26433 83279 50288 41971 69399 37510 58209 74944 59230",
    "base64": base64.b64encode(random.Random(1).randbytes(400)).decode(),
    "hex": random.Random(2).randbytes(300).hex(),
    "shouting": "WHY IS THE BUILD BROKEN AGAIN? PLEASE FIX THE PIPELINE BEFORE THE RELEASE ON FRIDAY!",
    "mathematics": r"\[ \int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}, \quad \sum_{n=1}^{\infty} \frac{1}{n^2} \]",
}
_DATA: Final = Path(mistral_common.__file__).parent / "data"
Count = Callable[[str], int]


@pytest.fixture(scope="module")
def counts(bundled_model: Path) -> Mapping[str, Count]:
    """What counts a text's tokens, by tokenizer."""
    bundled = Tokenizer.from_file(str(bundled_model / "tokenizer.json"))
    large = Tekkenizer.from_file(_DATA / "tekken_240911.json")
    small = SentencePieceTokenizer(_DATA / "mistral_instruct_tokenizer_240323.model.v3")
    return {
        "bundled": lambda text: len(bundled.encode(text, add_special_tokens=False).ids),
        "131,000 tokens": lambda text: len(large.encode(text, bos=False, eos=False)),
        "32,000 tokens": lambda text: len(small.encode(text, bos=False, eos=False)),
    }


@pytest.mark.parametrize("script", TEXTS)
def test_the_range_holds_every_tokenizers_count(script: str, counts: Mapping[str, Count]) -> None:
    text = "\n".join([TEXTS[script]] * 10)
    least, most = tokens_of(text)
    for name, count in counts.items():
        assert least <= count(text) <= most, name


def test_the_most_is_not_far_above_the_bundled_models_count(counts: Mapping[str, Count]) -> None:
    text = "\n".join(TEXTS.values())
    assert tokens_of(text).most < 1.5 * counts["bundled"](text)


def test_a_chat_template_is_counted(counts: Mapping[str, Count], bundled_model: Path) -> None:
    template = Environment().from_string((bundled_model / "chat_template.jinja").read_text())
    chat = [{"role": role, "content": "Hi"} for role in ("user", "assistant") * 20] + [
        {"role": "user", "content": "Hi"}
    ]
    rendered = template.render(messages=chat, add_generation_prompt=True)
    least, most = prompt_tokens(InferenceRequest.model_validate({"messages": chat}), NOTHING_MORE)
    assert least <= counts["bundled"](rendered) <= most
