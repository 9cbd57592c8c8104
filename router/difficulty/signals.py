"""The classifier's tables: which words and marks of a prompt speak for which category and difficulty.

Every entry names a subject or a task. None of them is a judgement on the prompt ("hard", "important", "urgent"),
the name of a tier, or the wording of a benchmark's template: what a prompt says of itself must not move its tier.
The words, weights and thresholds are this project's own choice, checked by hand on public benchmark prompts
(HumanEval, GSM8K, Spec-Bench), not learned; what is learned is in `router.difficulty.gain_curves`.

Words are written as the classifier folds them: lower case, Latin accents off, every other mark a space
("can't" is "can t"). `wide` holds terms of scripts outside Latin-1, found as substrings: some have no spaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

Category = Literal["safety_critical", "code", "math", "creative", "simple_question", "general_reasoning"]


Pair = tuple[str, str]
"""Two neighbouring words."""


class Phrase(NamedTuple):
    """Several words in a row: found when each of its neighbouring pairs is somewhere in the prompt.

    For two words that is exact. For more it may find a phrase whose pairs stand apart, which is rare and costs a
    false alarm; in exchange one pass over the words serves all phrases.
    """

    text: str
    pairs: frozenset[Pair]

    @classmethod
    def of(cls, text: str) -> Phrase:
        """The phrase with these words."""
        words = text.split()
        return cls(text, frozenset(pairwise(words)))


@dataclass(frozen=True, slots=True)
class Terms:
    """Words, phrases of several words, and terms of other scripts; any one of them is a hit."""

    words: frozenset[str]
    phrases: tuple[Phrase, ...] = ()
    pairs: frozenset[Pair] = frozenset()
    """All pairs of the phrases: a prompt with none of them is not asked for each phrase."""
    wide: tuple[bytes, ...] = ()
    """In UTF-8, lower case."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Terms that add `points`: towards a category, or to the difficulty, as the table that holds it says."""

    reason: str
    """What a hit means, in words; shown to the user together with the terms that hit."""
    points: int
    terms: Terms
    of_answer: bool = False
    """Says what kind of answer is wanted, so it means nothing where the answer is one of the options given."""


@dataclass(frozen=True, slots=True)
class SafetyRule:
    """A hit when a term of `subject` appears, together with one of `stake` where that is given."""

    reason: str
    subject: Terms
    stake: Terms | None = None


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _terms(words: str = "", phrases: tuple[str, ...] = (), wide: str = "") -> Terms:
    parsed = tuple(Phrase.of(phrase) for phrase in phrases)
    return Terms(
        words=_words(words),
        phrases=parsed,
        pairs=frozenset().union(*(phrase.pairs for phrase in parsed)),
        wide=tuple(term.encode() for term in wide.split()),
    )


# --- safety-critical ------------------------------------------------------------------------------------------------
# A miss costs more than a false alarm: a false alarm is an answer from a larger tier than needed.

_PERSON = _terms(
    "i my me mine we our us he his him she her they their son daughter baby infant newborn toddler child kid wife "
    "husband mother father mom dad partner friend patient client mi mein meine mon ma"
)
_HAZARD = _terms(
    "safe safely safety danger dangerous hazard hazardous fail fails failed failing failure malfunction collapse "
    "collapses collapsed bypass disable disabled override"
)

SAFETY_RULES: tuple[SafetyRule, ...] = (
    SafetyRule(
        "self-harm",
        _terms(
            "suicide suicidal selfharm suicidio suicidarme selbstmord suizid",
            (
                "self harm",
                "kill myself",
                "killing myself",
                "hurt myself",
                "hurting myself",
                "harm myself",
                "harming myself",
                "cut myself",
                "cutting myself",
                "end my life",
                "ending my life",
                "take my own life",
                "want to die",
                "wish i was dead",
                "wish i were dead",
                "better off dead",
                "no reason to live",
                "don t want to live",
                "do not want to live",
                "kill himself",
                "kill herself",
                "kill themselves",
                "quiero morir",
                "quitarme la vida",
                "me suicider",
                "mich umbringen",
            ),
            "自杀 自殺 自残 想死 死にたい 자살 죽고 самоубийств انتحار आत्महत्या",
        ),
    ),
    SafetyRule(
        "medical emergency",
        _terms(
            "overdose overdosed overdosing poisoned poisoning anaphylaxis anaphylactic seizure seizures unconscious "
            "unresponsive choking cpr hypothermia heatstroke sepsis tourniquet sobredosis infarto uberdosis surdose "
            "herzinfarkt vergiftung envenenamiento",
            (
                "chest pain",
                "chest pains",
                "heart attack",
                "heart attacks",
                "not breathing",
                "stopped breathing",
                "can t breathe",
                "cant breathe",
                "cannot breathe",
                "trouble breathing",
                "difficulty breathing",
                "short of breath",
                "severe bleeding",
                "heavy bleeding",
                "bleeding heavily",
                "stop the bleeding",
                "stop bleeding",
                "allergic reaction",
                "carbon monoxide",
                "having a stroke",
                "stroke symptoms",
                "signs of a stroke",
                "head injury",
                "passed out",
                "coughing blood",
                "coughing up blood",
                "snake bite",
                "swallowed a battery",
                "dolor en el pecho",
                "dolor de pecho",
                "douleur thoracique",
                "crise cardiaque",
            ),
            "胸痛 心脏病发 心臓発作 中毒 急救 救急 심장마비 가슴통증 инфаркт отравлен передозировк",
        ),
    ),
    SafetyRule(
        "medicine dosage",
        _terms(
            "dosage dosages dosificacion posologie dosierung",
            ("lethal dose", "maximum dose", "safe dose", "drug interaction", "drug interactions"),
            "剂量 劑量 用量 용량 дозировк جرعة",
        ),
    ),
    SafetyRule(
        "medicine",
        _terms(
            "ibuprofen paracetamol acetaminophen tylenol advil aspirin naproxen warfarin heparin insulin metformin "
            "lithium opioid opioids morphine fentanyl oxycodone codeine xanax valium benzodiazepine benzodiazepines "
            "ssri ssris maoi sertraline fluoxetine prednisone amoxicillin penicillin methotrexate digoxin statin "
            "statins antidepressant antidepressants antibiotic antibiotics ibuprofeno aspirina insulina",
        ),
        _terms(
            "dose doses dosing mg mcg milligram milligrams ml interact interacts interaction interactions pregnant "
            "pregnancy breastfeeding safe safely alcohol together mix mixing combine combining stop taper child "
            "children infant toddler baby kid maximum toxic prescribe prescribed take taking took give units "
            "tomar dosis",
            ("how much", "how many", "side effects"),
        ),
    ),
    SafetyRule(
        "medicine",
        _terms("medication medications medicine medicines drug drugs pill pills medicamento medicamentos medikament"),
        _terms(
            "dose doses dosing mg mcg milligram milligrams interact interacts interaction interactions contraindicated "
            "contraindication contraindications pregnant pregnancy breastfeeding alcohol taper infant toddler toxic "
            "overdose dosis",
            ("side effects", "safe to take", "stop taking", "missed a"),
        ),
    ),
    SafetyRule(
        "symptoms of a person",
        _terms(
            "fever bleeding numbness fainted fainting lump vomiting rash swelling stroke pregnant miscarriage "
            "concussion infected infection tumor tumour diagnosis symptom symptoms palpitations convulsions fiebre "
            "embarazada sintomas",
        ),
        _PERSON,
    ),
    SafetyRule(
        "violence or abuse",
        _terms(
            "raped molested",
            (
                "domestic violence",
                "sexual assault",
                "sexually assaulted",
                "child abuse",
                "being abused",
                "abusing me",
                "hitting me",
                "hits me",
                "beats me",
                "threatened to kill",
                "wants to kill me",
            ),
            "家庭暴力 家暴",
        ),
    ),
    SafetyRule(
        "legal liability",
        _terms(
            "malpractice subpoena subpoenaed indicted arraignment deportation deported",
            (
                "legal liability",
                "legally liable",
                "legally responsible",
                "held liable",
                "be sued",
                "being sued",
                "sue me",
                "sue my",
                "sue him",
                "sue her",
                "sue them",
                "i sue",
                "we sue",
                "press charges",
                "pressing charges",
                "plead guilty",
                "criminal charges",
                "statute of limitations",
                "legal consequences",
                "legal advice",
            ),
            "法律责任 法的責任 법적",
        ),
    ),
    SafetyRule(
        "legal liability",
        _terms(
            "lawsuit sued suing liable liability negligence negligent evicted eviction arrested custody warrant "
            "bankruptcy restraining demanda haftung"
        ),
        _PERSON,
    ),
    SafetyRule(
        "structural safety",
        _terms(
            "",
            (
                "load bearing",
                "structural safety",
                "structural integrity",
                "structural failure",
                "structurally sound",
                "structural engineer",
                "building collapse",
                "foundation crack",
                "foundation cracks",
                "cracks in the foundation",
            ),
            "承重 结构安全 耐震 несущ",
        ),
    ),
    SafetyRule(
        "structural safety",
        _terms(
            "beam beams joist joists girder girders truss trusses rafter rafters scaffold scaffolding balcony crane"
        ),
        _terms(
            "safe safely load loads support supports collapse collapsing crack cracks cracked remove removing fail "
            "failure strength weight hold holds carry span"
        ),
    ),
    SafetyRule(
        "electrical safety",
        _terms(
            "electrocute electrocuted electrocution rewire rewiring",
            (
                "electric shock",
                "electrical shock",
                "live wire",
                "live wires",
                "fuse box",
                "high voltage",
                "electrical fire",
                "electrical safety",
                "exposed wires",
                "exposed wiring",
                "bare wire",
                "bare wires",
            ),
            "触电 感電 감전",
        ),
    ),
    SafetyRule(
        "electrical safety",
        _terms("wire wires wiring breaker breakers outlet outlets voltage mains electrical electrician amp amps"),
        _terms(
            "shock shocked live safe safely bypass fire overheat overheating overheats hot spark sparks sparking "
            "burning install replace ground grounded grounding 110v 120v 220v 230v 240v 400v house home"
        ),
    ),
    SafetyRule(
        "dangerous substances",
        _terms(
            "",
            (
                "gas leak",
                "smell gas",
                "smells like gas",
                "smell of gas",
                "toxic fumes",
                "food poisoning",
                "safe to eat",
                "safe to drink",
                "safe for my baby",
            ),
            "煤气 漏气 ガス漏れ",
        ),
    ),
    SafetyRule(
        "dangerous substances",
        _terms("bleach ammonia chlorine propane butane pesticide pesticides asbestos lye mercury mushrooms antifreeze"),
        _terms(
            "mix mixing mixed combine inhale inhaled inhaling leak leaking fumes swallow swallowed drank drink ate eat "
            "safe safely spill spilled toxic poisonous ventilation"
        ),
    ),
    SafetyRule(
        "safety of a machine",
        _terms(
            "brake brakes airbag airbags aircraft cockpit autopilot pacemaker ventilator defibrillator reactor "
            "interlock elevator"
        ),
        _HAZARD,
    ),
)

TASK_CHARS = 1500
"""Of a longer text only the first and the last half of this many characters say what is asked (category, difficulty):
what lies between is material, and holds any word by chance. Safety-critical subjects count wherever they stand."""

# --- categories -----------------------------------------------------------------------------------------------------
# A category needs CATEGORY_THRESHOLD points; most points win, and on a tie the one named first here.

CATEGORY_THRESHOLD = 2

CODE_MARKS: tuple[str, ...] = (
    "```", "def ", "#include", "();", ") {", "){", "=> {", "std::", "console.log", "(self", "public static", " == ",
    " != ", "</", "elif ", "SELECT ", "import numpy", "Traceback (", ">>> ", "fn main", "func ",
)  # fmt: skip
"""Marks of source code as typed (case matters); one is enough."""
CODE_MARK_POINTS = 4
"""More than a word problem's points: a docstring often reads like one."""

CATEGORY_SIGNALS: dict[Category, tuple[Signal, ...]] = {
    "code": (
        Signal(
            "asks about code", 2,
            _terms(
                "code coding function functions method algorithm algorithms script bug bugs debug debugging compile "
                "compiles implement implementation regex refactor unittest pytest endpoint api programming codigo "
                "funcion programa fonction funktion programm",
                ("source code", "stack trace", "unit test", "unit tests", "pull request", "sql query", "shell command"),
                "代码 代碼 函数 函數 算法 编程 コード 関数 코드 함수 код функци алгоритм",
            ),
        ),
        Signal(
            "names a programming language or tool", 1,
            _terms(
                "python javascript typescript java kotlin golang rust ruby php perl bash sql html css react django "
                "flask numpy pandas pytorch docker kubernetes git linux postgres postgresql mysql redis c++ haskell "
                "scala swift matlab"
            ),
        ),
        Signal(
            "names a data structure or a concept of programming", 1,
            _terms(
                "array arrays list lists string strings dictionary dict hash hashmap json csv loop loops recursion "
                "recursive tree graph stack queue pointer pointers class classes thread threads async integer "
                "exception variable variables deadlock cache caching database"
            ),
        ),
    ),
    "math": (
        Signal(
            "uses terms of mathematics", 2,
            _terms(
                "equation equations integral integrals derivative derivatives theorem lemma polynomial polynomials "
                "algebra geometry calculus probability logarithm eigenvalue eigenvalues prove proof fraction fractions "
                "quadratic trigonometry divisible frac sqrt cdot hypotenuse perimeter integers prime primes "
                "ecuacion demuestra beweise demontrer gleichung",
                ("solve for", "square root", "how many ways", "least common multiple", "greatest common divisor"),
                "证明 證明 方程 积分 数学 積分 証明 증명 방정식 доказ уравнен интеграл",
            ),
        ),
    ),
    "creative": (
        Signal(
            "asks for creative writing", 2,
            _terms(
                "poem poems poetry haiku limerick sonnet lyrics screenplay fiction fanfic slogan tagline ballad "
                "storytelling parody catchy roleplay poema cuento gedicht poeme",
                (
                    "short story", "write a story", "a story about", "tell me a story", "story where", "blog post",
                    "write a song", "a song about", "write a letter", "write a speech", "write a scene",
                    "write a dialogue", "write an essay", "pretend you", "pretend to be", "imagine you",
                    "role play", "tell me a joke", "opening paragraph", "product description",
                ),
                "写诗 诗歌 一首诗 故事 詩を 物語 이야기 стих рассказ",
            ),
        ),
    ),
}  # fmt: skip

WORD_PROBLEM_TERMS = _terms(
    "calculate percent percentage total average remaining twice altogether",
    ("how many", "how much", "how long", "how far", "how old", "how fast", "how big", "what percentage"),
    "多少 いくら 몇 сколько",
)
"""A quantity is asked for; with at least two numbers that is a word problem."""
QUANTITY_TERMS = _terms(
    "km kmh mph mile miles meter meters metre metres feet hour hours minute minutes second seconds pm am cent cents "
    "dollar dollars euro euros kg grams pounds litre litres liter liters gallons kilometers kilometres",
)
QUANTITY_NUMBERS = 3
"""A question with so many numbers that speaks of such quantities is a word problem too, whatever it asks for."""
WORD_PROBLEM_POINTS = 3
WORD_PROBLEM_MAX_TOKENS = 300
"""A longer text holds numbers and a question by chance: it is a document."""

NUMBER_WORDS = _words(
    "two three four five six seven eight nine ten eleven twelve twenty thirty fifty hundred thousand half third "
    "quarter double triple twice thrice dozen"
)
ARITHMETIC_MARKS = frozenset("+*/^=×÷−√")  # noqa: RUF001 (the real signs are meant)
ARITHMETIC_POINTS = 2
ARITHMETIC_MAX_WORDS = 12

# --- difficulty -----------------------------------------------------------------------------------------------------

BASE_DIFFICULTY: dict[Category, int] = {
    "code": 4,
    "math": 4,
    "creative": 3,
    "simple_question": 1,
    "general_reasoning": 3,
}
DIFFICULTY_RANGE: dict[Category, tuple[int, int]] = {
    "safety_critical": (7, 10),
    "code": (2, 10),
    "math": (2, 10),
    "creative": (2, 10),
    "simple_question": (1, 2),
    "general_reasoning": (2, 10),
}
"""Lowest and highest difficulty of a category. A safety-critical prompt is rated as the kind of prompt it is
otherwise, but never under 7: it is not under-served, and no harder for it either."""

DIFFICULTY_SIGNALS: tuple[Signal, ...] = (
    Signal(
        "asks for a proof", 4,
        _terms(
            "prove proves proof proofs theorem lemma corollary demuestra demostrar beweise beweis demontrer",
            ("show that", "by induction", "by contradiction", "if and only if"),
            "证明 證明 証明 증명 доказ",
        ),
    ),
    Signal(
        "advanced mathematics", 2,
        _terms(
            "integral integrals derivative derivatives eigenvalue eigenvalues eigenvector polynomial polynomials "
            "modulo congruence congruent combinatorics topology topological homomorphism isomorphism isomorphic "
            "manifold differential fourier laplace stochastic bayesian martingale hyperbola ellipse logarithm frac "
            "sqrt mathbb binom cdot divisible divides matrices bijection convex convergence converges irrational",
            ("ordered pairs", "prime number", "prime numbers", "complex numbers", "real numbers", "positive integers"),
            "积分 微分 積分 интеграл",
        ),
    ),
    Signal(
        "system design", 5,
        _terms(
            "paxos sharding microservices",
            (
                "system design", "design a system", "design a distributed", "distributed system", "distributed systems",
                "high availability", "fault tolerant", "fault tolerance", "system architecture",
                "software architecture", "microservice architecture", "multi tenant", "consensus protocol",
                "event sourcing", "exactly once", "multi region", "design an architecture", "horizontally scalable",
            ),
            "系统设计 分布式 システム設計 распределен",
        ),
    ),
    Signal(
        "concurrency or algorithm design", 2,
        _terms(
            "deadlock deadlocks concurrent concurrency mutex compiler interpreter optimize optimise optimal refactor "
            "memoization asymptotic vectorize cuda simd undecidable",
            (
                "race condition", "race conditions", "lock free", "thread safe", "dynamic programming", "np hard",
                "np complete", "time complexity", "space complexity", "memory leak", "segmentation fault",
                "shortest path", "garbage collector", "o n log n",
            ),
            "并发 複雑度 动态规划",
        ),
    ),
    Signal(
        "asks to weigh or derive", 2,
        _terms(
            "analyze analyse analysis evaluate critique derive derivation justify implications tradeoff tradeoffs "
            "synthesize reconcile counterexample rigorous analiza analysiere",
            ("trade off", "trade offs", "pros and cons", "root cause", "long term effects", "case study"),
            "分析 评估 論じ 분석",
        ),
        of_answer=True,
    ),
    Signal(
        "expert subject", 1,
        _terms(
            "quantum relativity genome genomic crispr thermodynamics econometrics jurisprudence pharmacokinetics "
            "electromagnetic astrophysics biochemistry epistemology macroeconomic enzyme phosphorylation tensor "
            "transformer cryptography derivatives semiconductors metaphysics constitutional"
        ),
    ),
    Signal(
        "asks for an explanation", 1,
        _terms(
            "explain explains why compare comparison contrast discuss describe elaborate explica erklare expliquez "
            "pourquoi warum",
            ("how does", "how do", "how did", "how can", "how would", "difference between", "por que"),
            "解释 为什么 比较 なぜ 説明 설명 왜 объясни почему",
        ),
        of_answer=True,
    ),
    Signal(
        "asks for a plan or advice", 1,
        _terms(
            "plan planning itinerary strategy strategies advice recommend recommendation recommendations suggest "
            "suggestions improve negotiate roadmap proposal outline design develop",
            ("help me", "should i", "should we", "what if"),
            "计划 建议 计划书 計画 계획 план посоветуй",
        ),
        of_answer=True,
    ),
    Signal(
        "several sources or steps", 1,
        _terms(
            "summarize summarise summary according passage article document paragraphs zusammenfassen resume resumir",
            ("based on", "first then", "each of the following", "which of the following", "all of the following"),
            "总结 要約 요약",
        ),
        of_answer=True,
    ),
    Signal(
        "translation", -1,
        _terms(
            "translate translation traduce traducir traduire traduis ubersetze ubersetzen",
            (),
            "翻译 翻譯 翻訳 번역 перевод переведи",
        ),
    ),
    Signal(
        "small correction", -1,
        _terms(
            "proofread typo typos spelling misspelled rephrase reword grammar",
        ),
    ),
)  # fmt: skip

NEVER_EASIER: frozenset[Category] = frozenset(("safety_critical", "code", "math"))
"""What is learned of prompts' forms takes nothing from these: the subject, which the rules know, counts for more."""
FORM_SAYS_NOTHING: frozenset[Category] = frozenset(("creative",))
"""What is learned neither adds nor takes: the outcomes are of questions with right and wrong answers."""
FORM_HIGHEST = 8
"""What is learned lifts no prompt above this difficulty: the highest ones are for what the rules see."""
OPTION_SIGNALS = tuple(signal for signal in DIFFICULTY_SIGNALS if not signal.of_answer)
"""Those of a prompt that offers options."""
HARD_POINTS = 4
"""What is learned takes nothing from a prompt with a signal of so many points either."""
ARITHMETIC_ALONE_POINTS = -2
"""A bare sum ("12 * 7 = ?") is easier than the category's base."""

LENGTH_POINTS: tuple[tuple[int, int], ...] = ((1000, 3), (500, 2), (150, 1))
"""(at least so many estimated tokens, points), longest first."""
CONVERSATION_POINTS: tuple[tuple[int, int], ...] = ((8000, 2), (2000, 1))
"""The same for the whole conversation; milder, for its last message may be a "thanks"."""
LONG_CONTEXT_TOKENS = 2000
LONG_CONTEXT_DIFFICULTY = 8
"""Least difficulty of a prompt of LONG_CONTEXT_TOKENS or more, and of any prompt too long to be scanned whole: what
its unscanned middle holds may be safety-critical."""

# --- simple questions -----------------------------------------------------------------------------------------------

GREETINGS = _words("hi hello hey thanks thank bye goodbye hola gracias bonjour merci hallo danke ciao")
WIDE_GREETINGS: tuple[str, ...] = ("你好", "谢谢", "こんにちは", "ありがとう", "안녕", "привет", "спасибо", "مرحبا")
QUESTION_MARKS: tuple[str, ...] = ("?", "？", "؟")  # noqa: RUF001
QUESTION_WORDS = _words(
    "what whats who whose when where which name define is are was were does did has how que cual quien donde cuando "
    "was wer wo wann welche quel quelle qui quand ou quoi qual quem onde"
)
QUESTION_WORD_WITHIN = 4
"""How many words may come before the question word ("Please tell me what ...")."""
SIMPLE_MAX_WORDS = 30
SIMPLE_MAX_TOKENS = 60
"""The same limit for scripts without spaces, in estimated tokens."""
EASIEST_MAX_WORDS = 12

# --- form of a text -------------------------------------------------------------------------------------------------

FUNCTION_WORDS = _words(
    "a an the of to in on at by for from with as and or but nor if then than that this these those which who whom what "
    "when where how it its is are was were be been being has have had do does did not no he she they his her their "
    "them him i you we my your our will would can could may might should shall must there here about into over under "
    "after before between through during because so such only also very"
)

# --- words to the router, not to the model --------------------------------------------------------------------------

DIRECTIVE_TERMS = _terms(
    "h100",
    (
        "use ultra", "use the ultra", "ultra tier", "ultra mode", "ultra model", "ultra please", "to ultra",
        "performance tier", "balanced tier", "eco tier", "use eco", "use performance", "highest tier", "top tier",
        "best tier", "best model", "biggest model", "largest model", "strongest model", "most powerful",
        "max power", "maximum power", "full power", "power 100", "power to 100", "difficulty 10", "difficulty is",
        "difficulty to", "difficulty of 10", "set difficulty", "ignore your tools", "ignore the tools",
        "ignore all", "ignore previous", "ignore your", "ignore the classifier", "ignore the router",
        "disregard your", "disregard previous", "disregard all", "system prompt", "route this", "route me",
        "classify this", "rate this", "safety critical", "this is hard", "very hard", "very difficult",
        "extremely hard", "extremely difficult",
    ),
)  # fmt: skip
"""A short clause with one of these speaks to the router: it counts neither as length nor as a question."""
DIRECTIVE_MAX_CHARS = 160
"""A longer clause is kept: it also holds the task."""
DIRECTIVE_CLAUSES = 16
"""So many clauses at the beginning and at the end are looked at: that bounds the time for a text of clauses only."""


# --- what the scanner looks for -------------------------------------------------------------------------------------


def _all_terms() -> tuple[Terms, ...]:
    rules = [terms for rule in SAFETY_RULES for terms in (rule.subject, rule.stake) if terms is not None]
    categories = [signal.terms for group in CATEGORY_SIGNALS.values() for signal in group]
    difficulty = [signal.terms for signal in DIFFICULTY_SIGNALS]
    return (*rules, *categories, *difficulty, WORD_PROBLEM_TERMS, QUANTITY_TERMS, DIRECTIVE_TERMS)


KNOWN_WORDS = NUMBER_WORDS.union(*(terms.words for terms in _all_terms()))
"""Every single word of the tables: one intersection with it leaves the few words of a prompt that can matter."""
KNOWN_PAIRS = frozenset(pair for terms in _all_terms() for pair in terms.pairs)
"""The same for the pairs of the phrases."""
WIDE_LEADS = frozenset(term[:1] for terms in _all_terms() for term in terms.wide)
"""First bytes of the terms of other scripts."""
