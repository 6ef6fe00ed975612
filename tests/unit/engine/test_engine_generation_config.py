"""A model's generation config speaks where a request is silent, and nowhere else."""

from pathlib import Path

import pytest

from engine.api import CAN_BE_LEFT, GenerateRequest, SamplingParams, left_open
from engine.generation_config import GenerationConfig, load_generation_config
from engine.locate import ModelNotFound
from engine.preparing import load_text, prepare
from engine.validate import check_sampling
from tests.unit.engine.test_engine_tools import info

PLAIN = SamplingParams(max_tokens=9)
QWEN = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05)
GREEDY = GenerationConfig(do_sample=False, repetition_penalty=1.1)


def test_a_model_is_drawn_from_as_its_makers_say() -> None:
    """Qwen's models repeat themselves at temperature 1 without their top-p and top-k; vLLM obeys too."""
    assert QWEN.filled(PLAIN, left_open({})) == SamplingParams(
        max_tokens=9, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05
    )


@pytest.mark.parametrize("config", [QWEN, GREEDY])
def test_what_was_named_stands(config: GenerationConfig) -> None:
    """A client that names a value, be it OpenAI's default, means it."""
    named = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert config.filled(PLAIN, left_open(named)) == PLAIN


def test_a_model_that_is_not_to_be_drawn_from_is_answered_greedily() -> None:
    """A fact drawn at temperature 1 is a wrong one now and then, and a cache would keep it."""
    assert GREEDY.filled(PLAIN, left_open({})) == SamplingParams(max_tokens=9, temperature=0.0, repetition_penalty=1.1)


@pytest.mark.parametrize(
    "said", [{"top_p": 0.9}, {"seed": 4}, {"n": 2}, {"temperature": 1}, {"top_k": 5}, {"min_p": 0}]
)
def test_who_asks_for_draws_gets_them(said: dict[str, object]) -> None:
    """Three answers of one request, all the same, would be of no use to anybody."""
    assert GREEDY.filled(PLAIN, left_open(said)).temperature == 1.0


def test_a_request_made_by_hand_is_taken_as_it_is() -> None:
    """Who uses the engine from Python writes every field down: nothing was left open."""
    request = GenerateRequest(id="r", sampling=PLAIN, text="What is TTFT?")
    assert prepare(request, load_text("demo", lambda: 0.0), info()).sampling == PLAIN


def test_the_demo_model_is_greedy_by_itself() -> None:
    """The README's first question must not be answered by chance."""
    request = GenerateRequest(id="r", sampling=PLAIN, text="What is TTFT?", left=CAN_BE_LEFT)
    assert prepare(request, load_text("demo", lambda: 0.0), info()).sampling.temperature == 0.0


@pytest.mark.parametrize("field", ['"temperature": "hot"', '"top_p": 3', '"do_sample": "no"', '"max_new_tokens": 0'])
def test_a_file_that_says_nonsense_is_refused_with_its_field(tmp_path: Path, field: str) -> None:
    """A default that is silently another one would be found by nobody."""
    (tmp_path / "generation_config.json").write_text("{" + field + "}")
    with pytest.raises(ModelNotFound, match=field.split('"')[1]):
        load_generation_config(tmp_path)


def test_no_top_k_is_said_in_two_ways(tmp_path: Path) -> None:
    """-1 is what requests may say too: a model whose file says it would not start."""
    (tmp_path / "generation_config.json").write_text('{"top_k": -1}')
    sampling = load_generation_config(tmp_path).filled(PLAIN, left_open({}))
    check_sampling(sampling, 9)
    assert sampling.top_k == -1


def test_a_folder_without_the_file_says_nothing(tmp_path: Path) -> None:
    """Most checkpoints in tests and many outside have none."""
    assert load_generation_config(tmp_path) == GenerationConfig()
