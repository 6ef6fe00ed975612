"""Answers held to a form, on a real core: what is refused, what comes out, and that it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.api import Constraint, EngineUsage, GenerateRequest, InvalidRequest, SamplingParams, Tools
from engine.client import EngineClient
from engine.core import EngineCore
from engine.grammar import MAX_REFERENCES, Vocabulary, check_schema, from_lark, join, translate
from engine.models.decoder import Decoder
from engine.scheduler import Limits
from engine.speculation import NGram, Speculation
from engine.testing import fork_process, until_ready
from engine.tokenizer import END_OF_TURN, TextTokenizer, byte_tokenizer
from engine.toolforms import Form, form_of, grammar

decode = msgspec.json.Decoder(float_hook=str).decode  # a random model writes numbers beyond any float


@pytest.fixture(scope="module")
def text() -> TextTokenizer:
    return TextTokenizer(byte_tokenizer(), [END_OF_TURN])


@pytest.fixture(scope="module")
def vocabulary(text: TextTokenizer, decoder: Decoder) -> Vocabulary:
    return Vocabulary(text.contents(), decoder.spec.vocabulary, text.eos)


@pytest.fixture
def say(
    decoder: Decoder, vocabulary: Vocabulary, text: TextTokenizer, clock: Any, submit: Any
) -> Callable[..., tuple[str, str]]:
    """What a random model says when it is held to a grammar, and how that ended."""

    def saying(form: str, *, guess: bool = False, **changes: Any) -> tuple[str, str]:
        core = EngineCore(
            "m",
            decoder,
            blocks=64,
            limits=Limits(),
            queue=9,
            monotonic=clock,
            grammar=vocabulary,
            speculation=Speculation(NGram()) if guess else None,
        )
        given = {"temperature": 1.0, "seed": 4, "max_tokens": 200, **changes}
        closing = given.pop("closing", 100)
        request = submit([5, 6, 7], eos=text.eos, **given)
        core.submit("me", msgspec.structs.replace(request, grammar=form, closing=closing))
        tokens: list[int] = []
        finish = None
        while core.busy:
            for one in core.step():
                tokens += one.output.tokens
                finish = one.output.finish
        core.check()
        assert finish is not None
        return text.decode(tokens), finish

    return saying


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS: list[tuple[Constraint, Callable[[str], bool]]] = [
    (Constraint("json"), lambda said: isinstance(decode(said), dict)),
    (Constraint("schema", msgspec.json.encode(PERSON).decode()), lambda said: {"name", "age"} <= decode(said).keys()),
    (
        Constraint("schema", '{"type":"array","items":{"type":"boolean"},"minItems":2}'),
        lambda said: len(decode(said)) >= 2,
    ),
    (Constraint("regex", "[A-Z]{3}-[0-9]{2}"), lambda said: said[:3].isupper() and said[3] == "-" and len(said) == 6),
    (Constraint("choice", '["yes","no"]'), lambda said: said in ("yes", "no")),
    (Constraint("grammar", 'start: "a" b\nb: "b" | "c"'), lambda said: said in ("ab", "ac")),
    (Constraint("grammar", 'root ::= "x" [0-9]'), lambda said: said[0] == "x" and said[1:].isdigit()),
]


@pytest.mark.parametrize("at", range(len(FORMS)))
@pytest.mark.parametrize("guess", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(at: int, guess: bool, say: Any) -> None:
    """A program parses it: "nearly JSON" is as bad as none, and a random model shows what is left to chance."""
    constraint, obeyed = FORMS[at]
    for seed in range(2):
        said, finish = say(translate(constraint), seed=seed, guess=guess)
        assert obeyed(said), said
        assert finish == "stop"


def test_guessing_changes_no_constrained_token(say: Any) -> None:
    """Masks are made ahead for every guess; one that is off by a position would give another answer."""
    form = translate(Constraint("schema", msgspec.json.encode(PERSON).decode()))
    assert [say(form, seed=seed, guess=True) for seed in range(3)] == [say(form, seed=seed) for seed in range(3)]


def test_a_form_is_closed_before_its_tokens_run_out(say: Any) -> None:
    """Half a JSON object is worth nothing: the last tokens are spent on ending it."""
    deep = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}, "t": {"type": "string"}}}
    form = translate(Constraint("schema", msgspec.json.encode({**deep, "required": ["t", "a"]}).decode()))
    cut = 0
    for seed in range(4):
        said, finish = say(form, seed=seed, max_tokens=120, closing=60)
        assert finish == "stop"
        decode(said)
        cut += say(form, seed=seed, max_tokens=120, closing=None)[1] == "length"
    assert cut > 0, "nothing was cut short without it, so this test shows nothing"


def test_the_end_is_not_kept_from_a_form_that_is_done(say: Any) -> None:
    """`min_tokens` and a bias against the end cannot make a form longer than it is."""
    assert say(translate(Constraint("choice", '["yes"]')), min_tokens=50) == ("yes", "stop")
    assert say(translate(Constraint("choice", '["yes"]')), logit_bias={END_OF_TURN: -100.0}) == ("yes", "stop")


CHAIN = {"$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(2000)} | {"2000": {}}, "$ref": "#/$defs/0"}
BOMBS: list[tuple[str, Constraint]] = [
    ("not JSON", Constraint("schema", "{")),
    ("no object", Constraint("schema", "[]")),
    ("no type", Constraint("schema", '{"type":"objct"}')),
    ("too deep", Constraint("schema", '{"items":' * 100 + "{}" + "}" * 100)),
    ("deeper than a stack", Constraint("schema", '{"items":' * 30_000 + "{}" + "}" * 30_000)),
    ("a chain of references", Constraint("schema", msgspec.json.encode(CHAIN).decode())),
    ("huge", Constraint("schema", '{"enum":["' + "x" * 70_000 + '"]}')),
    (
        "wide",
        Constraint("schema", msgspec.json.encode({"allOf": [{"pattern": f"a{n}.*"} for n in range(400)]}).decode()),
    ),
    ("an open bracket", Constraint("regex", "((")),
    ("brackets", Constraint("regex", "(" * 9000 + ")" * 9000)),
    ("a chain of rules", Constraint("grammar", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(4000)))),
    ("an unknown rule", Constraint("grammar", "start: nobody")),
    ("no choice", Constraint("choice", "[]")),
    ("no texts", Constraint("choice", "[1]")),
]


@pytest.mark.parametrize("at", range(len(BOMBS)), ids=lambda at: BOMBS[at][0])
def test_what_could_hurt_the_compiler_is_refused(at: int, vocabulary: Vocabulary) -> None:
    """A chain of references overflows the compiler's stack and would end the whole process; some schemas take hours."""
    with pytest.raises(InvalidRequest) as refused:
        vocabulary.matcher(translate(BOMBS[at][1]))
    assert refused.value.param == "response_format"
    assert len(str(refused.value)) < 500


BEYOND = [
    ({"type": "object", "properties": {"a": {"type": "string", "format": "int64"}}, "required": ["a"]}, "int64"),
    ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}, "minItems": 1}, "uniqueItems"),
    ({"oneOf": [{"type": "boolean"}, {"enum": [True, None]}]}, "anyOf"),
    ({"type": "string", "pattern": "^(?=a)a"}, "look-around"),
]


@pytest.mark.parametrize("at", range(len(BEYOND)), ids=lambda at: BEYOND[at][1])
def test_what_no_grammar_can_hold_to_is_refused_where_it_was_promised_only(at: int, vocabulary: Vocabulary) -> None:
    """Schemas that libraries write from people's types are full of it, and at OpenAI only `strict` ones are refused."""
    schema, named = BEYOND[at]
    text = msgspec.json.encode(schema).decode()
    vocabulary.check(translate(Constraint("schema", text, strict=False)))
    with pytest.raises(InvalidRequest, match=named) as refused:
        vocabulary.check(translate(Constraint("schema", text)))
    assert "coerce" not in str(refused.value)


def test_what_is_no_schema_is_refused_however_little_was_promised(vocabulary: Vocabulary) -> None:
    """A typing error must not become an answer of any form."""
    with pytest.raises(InvalidRequest, match="objct"):
        vocabulary.check(translate(Constraint("schema", '{"type":"objct"}', strict=False)))


DEAD_ENDS = [
    Constraint("schema", '{"$ref": "#"}'),
    Constraint("regex", r"[^\x00-\x{10FFFF}]"),
    Constraint("grammar", "start: a\na: b\nb: a"),
    Constraint("grammar", 'start: start "a"'),
]


@pytest.mark.parametrize("form", DEAD_ENDS)
def test_a_form_that_no_answer_can_have_is_refused(form: Constraint, vocabulary: Vocabulary) -> None:
    """The compiler takes them. They were failures of the engine, and a few of them sent everybody away from it."""
    with pytest.raises(InvalidRequest, match="no answer can have it"):
        vocabulary.check(translate(form))


async def test_a_form_that_cannot_go_on_is_the_requests_own_fault(tmp_path: Path) -> None:
    """Found out after the first token only: told as the engine's failure it was tried again, and counted against it."""
    process = fork_process("tiny-random:qwen3", tmp_path / "e.sock")
    client = EngineClient("tiny-random:qwen3", tmp_path / "e.sock")
    await client.start()
    await until_ready(client)
    wide = Constraint("grammar", "start: " + " | ".join(f'"w{at}"' for at in range(6000)))
    sampling = SamplingParams(max_tokens=20)
    with pytest.raises(InvalidRequest) as refused:
        async for _ in client.generate(GenerateRequest(id="wide", text="x", sampling=sampling, constraint=wide)):
            pass
    assert refused.value.param == "response_format"
    assert client.usage_of("wide") == EngineUsage(prompt=1, completion=1)
    last = [delta async for delta in client.generate(GenerateRequest(id="next", text="x", sampling=sampling))][-1]
    assert last.finish_reason == "length"
    await client.stop()
    process.terminate()
    assert await process.wait() == 0


def test_a_grammar_that_becomes_too_dear_ends_its_own_request(
    decoder: Decoder, vocabulary: Any, clock: Any, submit: Any
) -> None:
    """What a compiler lets pass may still explode while tokens are drawn; the neighbours must not notice."""
    core = EngineCore("m", decoder, blocks=64, limits=Limits(), queue=9, monotonic=clock, grammar=vocabulary)
    dear = from_lark('start: a{3000}\na: b{3000}\nb: "x"{3000}')
    core.submit("dear", msgspec.structs.replace(submit([5, 6], max_tokens=5), grammar=dear))
    core.submit("other", submit([5, 6], max_tokens=5))
    ends = {}
    while core.busy:
        ends |= {one.key: one.output for one in core.step() if one.output.finish is not None}
    assert {key: one.finish for key, one in ends.items()} == {"dear": "error", "other": "length"}
    assert ends["dear"].why
    assert not ends["other"].why
    core.check()


def test_references_that_name_each_other_are_bounded() -> None:
    """The bound is on how many there are, so ordinary recursive schemas pass."""
    check_schema({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})
    with pytest.raises(InvalidRequest):
        check_schema({"anyOf": [{"$ref": "#"}] * (MAX_REFERENCES + 1)})


TEMPLATES = {"hermes": "{{ tools }} <tool_call>", "mistral": "[TOOL_CALLS]", "llama3": '{{ tools }} "parameters"'}
CALL = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}}]',
    "llama3": '{"name": "f", "parameters": {"n": 1}}',
}


def tools(**changes: Any) -> Tools:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return Tools(functions=[{"name": "f", "parameters": schema}, {"name": "g"}], **changes)


def valid(vocabulary: Vocabulary, text: TextTokenizer, rules: str, said: str) -> bool:
    tokens = text.encode(said, specials=False)
    return len(vocabulary.matcher(from_lark(rules)).valid(tokens)) == len(tokens)


@pytest.mark.parametrize("name", CALL)
def test_calls_are_held_to_their_schema(name: str, vocabulary: Vocabulary, text: TextTokenizer) -> None:
    """A required call must come, must be of a known tool, and its arguments must be what the tool takes."""
    form: Form = form_of(TEMPLATES[name])
    assert form.name == name
    required = grammar(tools(choice="required"), form, special=False)
    assert required is not None
    call = CALL[name]
    assert valid(vocabulary, text, required, call)
    for wrong in (call.replace(": 1", ': "x"'), call.replace('"f"', '"h"'), "Hello", call.replace('"n"', '"m"')):
        assert not valid(vocabulary, text, required, wrong)
    only = grammar(tools(choice="required", name="g"), form, special=False)
    assert only is not None
    assert not valid(vocabulary, text, only, call)
    auto = grammar(tools(), form, special=False)
    if name == "llama3":
        assert auto is None
        return
    assert auto is not None
    assert valid(vocabulary, text, auto, "Just text, no call.")
    assert valid(vocabulary, text, auto, "Let me see. " + call)
    assert not valid(vocabulary, text, auto, "Let me see. " + call.replace(": 1", ': "x"'))
    assert grammar(tools(choice="none"), form, special=False) is None


def test_one_grammar_may_stand_before_another(vocabulary: Vocabulary, text: TextTokenizer) -> None:
    """Models that think first do so in free text, and only then in the form."""
    form = join(
        'start: thought @answer\nthought[lazy]: /(.|\\n)*/ "</think>"',
        answer=translate(Constraint("choice", '["yes"]')),
    )
    tokens = text.encode("hm, no</think>yes", specials=False)
    assert len(vocabulary.matcher(form).valid(tokens)) == len(tokens)
    assert len(vocabulary.matcher(form).valid(text.encode("hm</think>no", specials=False))) == len("hm</think>")


def test_a_tokenizer_may_know_more_tokens_than_the_model(text: TextTokenizer) -> None:
    """Gemma 3 1B has 262,144 columns and a tokenizer of 262,145: no form could be asked of it. And ends may be odd."""
    fewer = Vocabulary(text.contents(), 250, [258, 9_999, -1]).matcher(translate(Constraint("json")))
    assert fewer.valid(text.encode('{"a": 1}', specials=False)) == text.encode('{"a": 1}', specials=False)
    with pytest.raises(InvalidRequest, match="vocabulary"):
        Vocabulary("no tokenizer", 259, [258]).matcher(translate(Constraint("json")))


def test_a_bad_pattern_is_refused_with_what_it_lacks(vocabulary: Vocabulary) -> None:
    """`regex parse error:.` was all that was said: the compiler draws the pattern over some lines and ends with why."""
    with pytest.raises(InvalidRequest, match="regex parse error: unclosed group"):
        vocabulary.check(translate(Constraint("regex", "a(b")))
