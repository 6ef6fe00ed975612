"""Tool calls and reasoning on the text side: what is told to templates, and what is read back, however it is cut."""

import random
from typing import Any

import msgspec
import pytest

from engine.api import Constraint, GenerateRequest, InvalidRequest, ModelInfo, SamplingParams, Tools
from engine.grammar import Vocabulary
from engine.preparing import ModelText, prepare
from engine.reasoning import ThinkReader
from engine.template import CHATML, ChatTemplate
from engine.tokenizer import END_OF_TURN, TextTokenizer, byte_tokenizer
from engine.toolforms import form_of
from engine.toolreader import ToolReader

TOOLS = Tools(functions=[{"name": "f", "parameters": {"type": "object"}}, {"name": "g"}])
HERMES = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}\n{% endfor %}{{ tools }}<tool_call>"
FORMS = {"hermes": HERMES, "mistral": "{{ tools }} [TOOL_CALLS]", "llama3": '{{ tools }} "parameters"'}
READ: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    (
        "hermes",
        'Hi. <tool_call>\n{"name": "f", "arguments": {"a": "}{\\"", "b": [{}]}}\n</tool_call>',
        "Hi. ",
        [("f", '{"a": "}{\\"", "b": [{}]}')],
    ),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g","arguments":{"x":1}}</tool_call>\n',
        "",
        [("f", "{}"), ("g", '{"x":1}')],
    ),
    ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [("f", '{"x": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    ("hermes", "a <tool b", "a <tool b", []),
    ("hermes", "<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
    (
        "hermes",
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>!',
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>!',
        [],
    ),
    ("hermes", '<tool_call>{"foo": 1}</tool_call>', '<tool_call>{"foo": 1}</tool_call>', []),
    ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "f", "arguments": {"b": "]"}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"b": "]"}'), ("g", "{}")],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
    (  # its last bracket left out
        "hermes",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call> done',
        " done",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "h", "x": {"y": 1}</tool_call> so',
        '<tool_call>{"name": "h", "x": {"y": 1}</tool_call> so',
        [],
    ),
    ("hermes", '<tool_call>{"named": {"y": 1</tool_call> so', '<tool_call>{"named": {"y": 1</tool_call> so', []),
    ("mistral", "see [1] [TOOL", "see [1] [TOOL", []),
    (
        "llama3",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    ("llama3", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    ("llama3", '{"name": "f", "name": "h", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),  # went round for ever
    (  # said twice: pieces of both were told as one
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {"b": [2, 3], "c": 4}}</tool_call>',
        "",
        [("f", '{"a": 1}')],
    ),
    ("llama3", '{"name": "f", "parameters": {"a": 1}, "arguments": {"bc": 23}}', "", [("f", '{"a": 1}')]),
    ("llama3", '{"answer": 42}', '{"answer": 42}', []),
    ("llama3", 'Hello {"name": "f"}', 'Hello {"name": "f"}', []),
]


@pytest.mark.parametrize("at", range(len(READ)))
def test_calls_are_read_however_the_text_is_cut(at: int) -> None:
    """Tokens end anywhere; what is no call of a known tool is text again, and nothing is lost."""
    name, said, text, calls = READ[at]
    for seed in range(25):
        rng, reader = random.Random(seed), ToolReader(form_of(FORMS[name]), TOOLS)
        shown, found, left = "", {}, said
        while left:
            cut = rng.randint(1, 9)
            pieces = reader.push(left[:cut])
            left = left[cut:]
            shown += "".join(pieces.text)
            for call in pieces.calls:
                before = found.get(call.index, ("", ""))
                found[call.index] = (call.name or before[0], before[1] + call.arguments)
        assert shown + reader.flush() == text
        assert [found[index] for index in sorted(found)] == calls


@pytest.mark.parametrize(
    ("inside", "said", "reasoning", "text"),
    [
        (False, "<think>\nabc </b> d\n</think>\n\nHi  there ", "abc </b> d", "Hi  there "),
        (True, "abc</think>x", "abc", "x"),
        (False, "no thought", "", "no thought"),
        (False, " <thin", "", " <thin"),
        (False, "<think>never closed </thi", "never closed </thi", ""),
        (False, "  leading", "", "  leading"),
    ],
)
def test_reasoning_is_told_apart(inside: bool, said: str, reasoning: str, text: str) -> None:
    """Clients show thoughts apart from the answer; a mark may be cut in the middle."""
    for seed in range(25):
        rng, reader, left = random.Random(seed), ThinkReader(inside=inside), said
        parts = ["", ""]
        while left:
            cut = rng.randint(1, 7)
            parts = [before + now for before, now in zip(parts, reader.push(left[:cut]), strict=True)]
            left = left[cut:]
        assert [before + now for before, now in zip(parts, reader.flush(), strict=True)] == [reasoning, text]


HISTORY: list[dict[str, object]] = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "31"},
]


def test_templates_that_know_tools_get_objects() -> None:
    """Qwen's template writes arguments as JSON itself: a string would be quoted twice."""
    told = ChatTemplate(HERMES, {}, lambda: 0.0).render(HISTORY, TOOLS)
    assert "'arguments': {'a': 1}" in told
    assert "'name': 'g'" in told
    assert "'name': 'g'" not in ChatTemplate(HERMES, {}, lambda: 0.0).render(
        HISTORY, msgspec.structs.replace(TOOLS, choice="none")
    )


def test_mistrals_ids_have_nine_letters() -> None:
    """Its templates refuse any other, and the id of a call and of its result must stay the same."""
    calls = "{% for c in m.tool_calls or [] %}<{{ c.id }}>{% endfor %}"
    source = f"[TOOL_CALLS]{{% for m in messages %}}{calls}<{{{{ m.tool_call_id }}}}>{{% endfor %}}"
    ids = [part for part in ChatTemplate(source, {}, lambda: 0.0).render(HISTORY).replace(">", "<").split("<") if part]
    known = [one for one in ids if len(one) == 9 and one.isalnum()]
    assert len(known) == 2
    assert known[0] == known[1]


def test_templates_that_know_none_are_told_in_words() -> None:
    """What was called before must reach such a model too; what may be called only when something must be."""
    template = ChatTemplate(CHATML, {}, lambda: 0.0)
    told = template.render(HISTORY, TOOLS)
    assert '<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>' in told
    assert "<tool_response>\n31\n</tool_response>" in told
    assert "<tools>" not in told
    assert "<tools>" in template.render(HISTORY, msgspec.structs.replace(TOOLS, choice="required"))


def test_results_are_one_turn_for_templates_that_know_no_tools() -> None:
    """Gemma's insists that user and model take turns, and older ones take no system message either."""
    turns = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}[{{ m.content }}]{% endfor %}"
    )
    results: list[dict[str, object]] = [
        *HISTORY,
        {"role": "tool", "tool_call_id": "call_2", "content": "32"},
        {"role": "user", "content": "and now?"},
    ]
    required = msgspec.structs.replace(TOOLS, choice="required")
    told = ChatTemplate(turns, {}, lambda: 0.0).render(results, required)
    assert told.endswith("[<tool_response>\n31\n</tool_response>\n<tool_response>\n32\n</tool_response>\nand now?]")
    assert told.startswith("[You may call")
    assert "weather?]" in told


def test_a_template_is_told_of_tools_under_the_name_it_uses() -> None:
    """SmolLM3's calls them otherwise: it was never told of any. Phi's only has a word for them in its messages."""
    smol = "{% if xml_tools %}{% for t in xml_tools[:] %}<{{ t.name }}>{% endfor %}{% endif %}<tool_call>"
    assert ChatTemplate(smol, {}, lambda: 0.0).render(HISTORY[:1], TOOLS) == "<f><g><tool_call>"
    assert ChatTemplate(smol, {}, lambda: 0.0).render(HISTORY[:1]) == "<tool_call>"
    told = ChatTemplate(smol + "{% for m in messages %}{{ m.content }}{% endfor %}", {}, lambda: 0.0).render(HISTORY)
    assert '<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>31' in told  # nor does it write earlier calls
    phi = "{% for m in messages %}{% if 'tools' in m and m['tools'] %}{{ m['tools'] }}{% endif %}{% endfor %}"
    assert not form_of(phi).native
    assert form_of("{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{ tools }}").native


def test_a_call_that_was_cut_off_ends_as_a_call() -> None:
    """Its beginning has been told already: a client that reads only `stop` would not look for it."""
    reader = ToolReader(form_of(HERMES), TOOLS)
    reader.push('<tool_call>{"name": "f", "arguments": {"a"')
    assert not reader.called
    assert reader.flush() == ""
    assert reader.called


def info() -> ModelInfo:
    return ModelInfo(
        id="m",
        architecture="a",
        dtype="d",
        context=4096,
        kv_capacity_tokens=4096,
        vocabulary=264,
        has_chat_template=True,
    )


def text_of(template: str) -> ModelText:
    return ModelText(TextTokenizer(byte_tokenizer(), [END_OF_TURN]), ChatTemplate(template, {}, lambda: 0.0))


def allowed(text: ModelText, grammar: str | None, said: str) -> bool:
    assert grammar is not None
    tokens = text.tokenizer.encode(said, specials=False)
    return len(Vocabulary(text.tokenizer.contents(), 264, text.tokenizer.eos).matcher(grammar).valid(tokens)) == len(
        tokens
    )


def ask(**changes: Any) -> GenerateRequest:
    given: dict[str, Any] = {
        "id": "r",
        "sampling": SamplingParams(max_tokens=50),
        "messages": [{"role": "user", "content": "x"}],
    }
    return GenerateRequest(**given | changes)


def test_tools_and_a_form_together() -> None:
    """OpenAI allows both: the model calls something, or it answers in the form."""
    text = text_of(HERMES)
    ready = prepare(ask(tools=TOOLS, constraint=Constraint("choice", '["yes"]')), text, info())
    assert allowed(text, ready.grammar, "yes")
    assert allowed(text, ready.grammar, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')
    assert not allowed(text, ready.grammar, "no")
    named = prepare(ask(tools=Tools(functions=[{"name": "f"}], choice="required", name="f")), text, info())
    assert named.closing == 25


THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_a_form_begins_after_the_thought() -> None:
    """A model that thinks first would be kept from it, or its thoughts would be taken for the answer."""
    text, form = text_of(THINKING), Constraint("choice", '["yes"]')
    ready = prepare(ask(constraint=form), text, info())
    assert ready.reading.thinking is not None
    assert ready.closing is None
    for said in ("yes", "<think>hm {}</think>yes", "<think>hm</think>\n\nyes"):
        assert allowed(text, ready.grammar, said), said
    assert not allowed(text, ready.grammar, "<think>hm</think>no")
    assert not allowed(text, ready.grammar, "\n\nyes")  # without a thought it is part of the answer
    calm = prepare(ask(constraint=form, thinking=False), text, info())
    assert calm.reading.thinking is None
    assert not allowed(text, calm.grammar, "<think>")
    begun = text_of(THINKING + "<think>\n")
    ready = prepare(ask(constraint=form), begun, info())
    assert ready.reading.thinking is not None
    assert ready.reading.thinking.inside
    assert allowed(begun, ready.grammar, "hm</think>yes")
    assert not allowed(begun, ready.grammar, "hm</think>no")


BAD: list[dict[str, Any]] = [
    {"tools": Tools(functions=[])},
    {"tools": Tools(functions=[{"name": "f"}] * 200)},
    {"tools": Tools(functions=[{"name": "no name"}])},
    {"tools": Tools(functions=[{"name": "f", "parameters": []}])},
    {"tools": Tools(functions=[{"name": "f"}], choice="required", name="g")},
    {"tools": Tools(functions=[{"name": "f", "parameters": {"type": "objct"}}], choice="required")},
    {"prediction": "x" * 300_000},
    {"sampling": SamplingParams(max_tokens=5, min_tokens=9)},
    {"sampling": SamplingParams(max_tokens=5, stop_token_ids=(999,))},
    {"sampling": SamplingParams(max_tokens=5, stop=tuple(map(str, range(5000))))},
    {"sampling": SamplingParams(max_tokens=5, repetition_penalty=0.0)},
    {"sampling": SamplingParams(max_tokens=0)},
    # These are numbers to Python and none to a frame: the connection was closed, and everybody's answers on it ended.
    {"sampling": SamplingParams(max_tokens=5, stop_token_ids=(True,))},
    {"sampling": SamplingParams(max_tokens=5, logit_bias={True: 1.0})},
    {"sampling": SamplingParams(max_tokens=True)},
    {"messages": None, "token_ids": [1, True]},
]


@pytest.mark.parametrize("at", range(len(BAD)))
def test_bad_requests_are_refused_before_the_engine_hears_of_them(at: int) -> None:
    """Each with the field that is wrong, so that a client can mend it."""
    with pytest.raises(InvalidRequest) as refused:
        prepare(ask(**BAD[at]), text_of(HERMES), info())
    assert refused.value.param


EMAIL = r"^(?!\.)(?!.*\.\.)[a-z]+@[a-z]+$"
ODD: list[tuple[str, dict[str, Any]]] = [
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("format", {"type": "string", "format": "path"}),
    ("propertyNames", {"type": "object", "propertyNames": {"type": "string"}}),
    ("not", {"not": {"type": "string"}}),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    ("look-around", {"type": "string", "pattern": EMAIL}),
    ("look-around", {"type": "object", "patternProperties": {EMAIL: {"type": "string"}}}),
]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("keyword", "schema"), ODD)
def test_a_tool_may_say_more_than_a_grammar_can_hold_to(choice: Any, keyword: str, schema: dict[str, Any]) -> None:
    """One tool of an MCP server or of zod with such a keyword made every request of an agent a 400."""
    parameters = {"type": "object", "properties": {"a": schema, "b": {"type": "integer"}}, "required": ["b"]}
    text = text_of(HERMES)
    offered: list[dict[str, object]] = [{"name": "f", "parameters": parameters}]
    ready = prepare(ask(tools=Tools(functions=offered, choice=choice)), text, info())
    call = '<tool_call>\n{"name": "f", "arguments": {"b": %s}}\n</tool_call>'
    assert allowed(text, ready.grammar, call % "5"), keyword
    assert not allowed(text, ready.grammar, call % '"5"'), "what can be held to still is"
    strict: list[dict[str, object]] = [{**offered[0], "strict": True}]
    with pytest.raises(InvalidRequest, match=keyword) as refused:
        prepare(ask(tools=Tools(functions=strict, choice=choice)), text, info())
    assert refused.value.param == "tools"


def test_data_in_a_schema_is_left_alone() -> None:
    """What a constant holds is no pattern, whatever its name."""
    parameters = {"type": "object", "properties": {"a": {"const": {"pattern": "(?=x)"}}}, "required": ["a"]}
    text = text_of(HERMES)
    ready = prepare(
        ask(tools=Tools(functions=[{"name": "f", "parameters": parameters}], choice="required")), text, info()
    )
    call = '<tool_call>\n{"name": "f", "arguments": {"a": {"pattern":"(?=x)"}}}\n</tool_call>'
    assert allowed(text, ready.grammar, call)
