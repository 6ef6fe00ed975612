"""Techniques and wishes that have tests of their own, all at once: every answer must be the one that is given alone."""

import random
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from engine.api import Constraint, SamplingParams
from engine.core import EngineCore
from engine.frames import Output, Submit, merge
from engine.grammar import Vocabulary, translate
from engine.handover import Held, take
from engine.locate import locate
from engine.models import loader
from engine.models.decoder import Decoder
from engine.runner import EagerRunner
from engine.scheduler import Limits
from engine.selfcheck import reproducible
from engine.speculation import DraftModel, NGram, Speculation
from engine.tokenizer import END_OF_TURN, TextTokenizer, byte_tokenizer
from tests.proofs import keep
from tests.unit.engine.traffic import Uneven

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3", "phi3")
WEIGHTS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("float32", "int4"))
CACHES = ("float32", "bfloat16", "int8", "fp8")
FORMS = (
    Constraint("json"),
    Constraint("schema", '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","yz",null]}}}'),
    Constraint("regex", "[a-z]{3,9}( [0-9]+)*"),
    Constraint("choice", '["yes","no","maybe so"]'),
)
ORDINARY = 20
FULL = 500
GROUPS = 2
MOST_STEPS = 20_000
TEXT = TextTokenizer(byte_tokenizer(), [END_OF_TURN])


@cache
def decoder(family: str, dtype: str = "float32", quant: str = "none") -> Decoder:
    return loader.load(locate(f"tiny-random:{family}?seed=3"), dtype, 512, quant)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(TEXT.contents(), decoder("qwen3").spec.vocabulary, TEXT.eos)


@dataclass
class Seen:
    """What the scenarios met: one that never meets a technique proves nothing about it."""

    requests: int = 0
    preemptions: int = 0
    hit: int = 0
    accepted: int = 0
    divided: int = 0
    handed: int = 0
    aborted: int = 0
    kinds: set[str] = field(default_factory=set[str])


class Scenario:
    """One machine, one model, and requests that ask for several things each."""

    def __init__(self, seed: int, clock: Callable[[], float]) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = clock
        self.seed = seed
        self.family, (self.dtype, self.quant), self.kv = rng.choice(FAMILIES), rng.choice(WEIGHTS), rng.choice(CACHES)
        self.decoder = decoder(self.family, self.dtype, self.quant)
        letters = [rng.randrange(256) for _ in range(rng.choice([2, 2, 40]))]
        self.begins = [[rng.choice(letters) for _ in range(rng.choice([1, 16, 33, 64, 100]))] for _ in range(3)]
        self.asked = [request for _ in range(rng.randint(3, 6)) for request in self._request(letters)]

    def _request(self, letters: list[int]) -> list[Submit]:
        rng = self.rng
        prompt = rng.choice(self.begins) + [rng.choice(letters) for _ in range(rng.randint(0, 20))]
        most = rng.randint(1, 40)
        form = rng.choice([None, None, *FORMS])
        drawn = rng.random() < 0.4
        wishes: dict[str, Any] = {"temperature": rng.choice([0.3, 1.0, 1.7]) if drawn else 0.0}
        usual: dict[str, list[Any]] = {
            "top_p": [0.1, 0.9],
            "top_k": [1, 5],
            "min_p": [0.05, 1.0],
            "presence_penalty": [-2.0, 1.5],
            "frequency_penalty": [-1.0, 2.0],
            "repetition_penalty": [0.7, 1.3],
            "logit_bias": [{letters[0]: 5.0, letters[-1]: -100.0}],
            "stop_token_ids": [(letters[0],)],
            "min_tokens": [min(3, most), most],
            "logprobs": [0, 3],
            "prompt_logprobs": [0, 2],
        }
        wishes |= {name: rng.choice(values) for name, values in usual.items() if rng.random() < 0.2}
        sampling = SamplingParams(max_tokens=most, **wishes)
        return [
            Submit(
                handle=0,
                tokens=prompt,
                sampling=sampling,
                seed=self.seed + copy,
                eos=TEXT.eos if rng.random() < 0.7 else [],
                salt=rng.choice("ab"),
                priority=rng.choice([0, 0, -1, 1]),
                deadline_ms=None,
                grammar=None if form is None else translate(form),
                closing=None if form is None else most - min(64, most // 2),
                prediction=rng.choice([[], prompt[::-1], prompt * 2]),
            )
            for copy in range(rng.choice([1, 1, 3]))
        ]

    def alone(self, request: Submit) -> Output:
        """By a core that has nothing else to do, all room, and no tricks."""
        [(_, output)] = play(self._core(64, Limits(), None), {0: request}).items()
        return output

    def crowded(self) -> EngineCore:
        """Few blocks, small steps, guesses, parts of blocks: as much of each as the dice say."""
        rng = self.rng
        limits = Limits(
            step_tokens=rng.choice([24, 40, 200]),
            sequences=rng.choice([2, 5, 8]),
            chunk=rng.choice([16, 23, 64]),
            watermark=rng.choice([0, 1, 3]),
        )
        kind = rng.choice(["none", "ngram", "model"])
        guess = None
        if kind != "none":
            drafter = NGram() if kind == "ngram" else DraftModel(decoder("qwen3"), rng.choice([6, 40]), chunk=32)
            guess = Speculation(drafter, rng.choice([1, 3, 6]))
        made = self._core(rng.choice([11, 14, 30]), limits, guess)
        made._pace = Uneven(self.seed)
        return made

    def _core(self, blocks: int, limits: Limits, guess: Speculation | None) -> EngineCore:
        return EngineCore(
            "m",
            self.decoder,
            blocks=blocks,
            limits=limits,
            queue=99,
            monotonic=self.clock,
            runner=EagerRunner(self.decoder, blocks, self.kv),
            grammar=vocabulary(),
            speculation=guess,
        )


def play(
    core: EngineCore, asked: dict[int, Submit], rng: random.Random | None = None, seen: Seen | None = None
) -> dict[Hashable, Output]:
    """What became of each. With `rng` they come when they like, and some leave. Raises AssertionError."""
    waiting, steps = dict(asked), 0
    said: dict[Hashable, Output] = {}
    while waiting or core.busy:
        steps += 1
        assert steps < MOST_STEPS, "nobody gets on"
        while waiting and (rng is None or rng.random() < 0.4):
            key, request = waiting.popitem()
            core.submit(key, request)
            said[key] = Output(handle=0, tokens=[])
        flight = core.launch()
        if rng is not None and seen is not None:
            seen.divided += core._read is not None
            if said and rng.random() < 0.02:
                key = rng.choice(list(said))
                left = core.cancel(key, "abort")
                if left is not None:
                    seen.aborted += 1
                    merge(said[key], left)
        for one in core.collect(flight):
            merge(said[one.key], one.output)
        core.check()
    assert core.stats().kv_used == 0, "blocks are lost"
    return said


def differs(mine: Output, right: Output) -> str:
    """What of an answer is not as it is alone; of one that was left, of what it had come to."""
    assert mine.usage is not None
    assert right.usage is not None
    left = mine.finish == "abort"
    pairs: list[tuple[str, list[Any], list[Any]]] = [
        ("tokens", mine.tokens, right.tokens),
        ("choices", mine.choices or [], right.choices or []),
        ("scores", mine.scores or [], right.scores or []),
    ]
    for name, got, wanted in pairs:
        if got != (wanted[: len(got)] if left else wanted):
            return name
    if not left and (mine.finish, mine.usage.prompt, mine.why) != (right.finish, right.usage.prompt, right.why):
        return "end"
    return "" if mine.usage.completion == len(mine.tokens) else "usage"


def scenario(seed: int, clock: Callable[[], float], seen: Seen) -> None:
    one = Scenario(seed, clock)
    assert reproducible(one.decoder, one.kv), "this processor computes a row otherwise in company"
    core, asked = one.crowded(), dict(enumerate(one.asked))
    if one.rng.random() < 0.5:  # a prompt that another process has read
        other, first = one._core(64, Limits(), None), one.asked[0]
        play(other, {0: replace(first, sampling=SamplingParams(max_tokens=1), grammar=None)})
        held = Held(other, first.tokens, first.salt)
        seen.handed += take(core, first.tokens, first.salt, held.path)
        held.close()
    said = play(core, asked, one.rng, seen)
    wrong = {key: found for key, request in asked.items() if (found := differs(said[key], one.alone(request)))}
    assert not wrong, f"scenario {seed}: {one.family} {one.dtype} {one.quant} {one.kv}: {wrong}"
    stats = core.stats()
    seen.requests += len(asked)
    seen.preemptions += stats.preemptions
    seen.accepted += stats.accepted_tokens
    seen.hit += core.pool.hit
    seen.kinds |= {one.family, one.dtype, one.quant, one.kv}


@pytest.mark.parametrize("group", range(GROUPS))
def test_whatever_is_combined_the_answer_is_the_one_given_alone(group: int, clock: Any) -> None:
    """Guesses, preemption, shared prefixes, fewer bits, forms, penalties: each is right alone; here they meet."""
    seen = Seen()
    for seed in range(group, ORDINARY, GROUPS):
        scenario(seed, clock, seen)
    met = ("preemptions", "hit", "accepted", "divided", "handed", "aborted")
    assert all(getattr(seen, name) for name in met), f"what is never met is not tested: {seen}"


@pytest.mark.proof
@pytest.mark.timeout(3_600)
def test_hundreds_of_combinations(clock: Any) -> None:
    """Two of some twenty wishes meet often, three of them seldom."""
    seen = Seen()
    for seed in range(FULL):
        scenario(seed, clock, seen)
    assert seen.kinds == {*FAMILIES, *CACHES, "none", "int4"}
    counted = {name: value for name, value in asdict(seen).items() if name != "kinds"}
    keep("engine_combinations", scenarios=FULL, wrong=0, lost_blocks=0, **counted)
