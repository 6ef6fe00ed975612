"""Chat templates: what models expect is honoured, what attackers would like is not."""

from pathlib import Path

import msgspec
import pytest

from engine import sandbox
from engine.api import InvalidRequest, Tools
from engine.locate import ModelNotFound, locate
from engine.template import CHATML, ChatTemplate, Message, load_template, plain
from engine.testing import write_checkpoint
from tests.proofs import wanted


def growing(first: str, next: str, turns: int = 60) -> str:
    """A template that makes something of `n.x` out of itself, again and again."""
    return f"{{% set n = namespace(x={first}) %}}{{% for i in range({turns}) %}}{{% set n.x = {next} %}}{{% endfor %}}"


HELLO: list[Message] = [{"role": "user", "content": "Hello"}]
NOON = 1_700_000_000.0  # 14 November 2023


def render(source: str, messages: list[Message] = HELLO, **marks: str) -> str:
    return ChatTemplate(source, marks, lambda: NOON).render(messages)


def test_chatml() -> None:
    """The built-in form, byte by byte: models are trained on exactly this."""
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    assert render(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>Hello"),
        ("{% for m in messages %}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}", "Hello"),
        ("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}", "  user\n"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ {'a': '<b>', 'c': [1, 'é']} | tojson }}", '{"a": "<b>", "c": [1, "é"]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ 'a' ~ 1 ~ none ~ [2] }}{{ 'b' + 'c' }}{{ '%s-%d' % ('x', 3) }}", "a1None[2]bcx-3"),
        ("{{ '{}{}'.format(1, 2) }}{{ '{:>4}'.format('a') }}", "12   a"),
        ("{{ messages[-1:][0].content[1:3] }}{{ ['a', 'b'] | join(', ') }}{{ 'a\nb' | indent(2) }}", "ela, ba\n  b"),
        ("{{ 'aXbX'.replace('X', '-') }}{{ 'aXb' | replace('X', '') }}{{ 'ab'.split('b')[0] }}", "a-b-aba"),
        ("{{ strftime_now('%d %b %Y') }}", "14 Nov 2023"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro say(x) %}[{{ x }}]{% endmacro %}{{ say(messages[0].content) }}", "[Hello]"),
        ("{% if tools is defined and tools %}tools{% else %}none{% endif %}", "none"),
        ("{{ messages | length }}{{ 3 * 4 }}{{ 2 ** 8 }}", "112256"),
        ("{% for m in messages %}{{ loop.length }}{{ loop.revindex }}{% endfor %}", "11"),
        ("{{ messages[0].content.upper() }}{{ messages[0].content | trim }}", "HELLOHello"),
    ],
)
def test_what_real_templates_use(source: str, wanted: str) -> None:
    """Each line is something a published model's template does."""
    assert render(source, bos_token="<s>") == wanted


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self._TemplateReference__context }}{{ self.__init__ }}{{ ''.format_map }}{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """Templates of downloaded models have run shell commands in other servers (CVE-2024-34359)."""
    messages: list[Message] = [{"role": "user", "content": "Hello"}]
    try:
        shown = render(source, messages)
    except InvalidRequest:
        shown = ""
    assert "uid=" not in shown
    assert "class" not in shown
    assert "code object" not in shown
    assert messages == HELLO


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ messages[0].content * 999999999 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ range(10 ** 9) | list }}",
        growing("'x'", "n.x ~ n.x"),
        growing("'x'", "n.x + n.x"),
        growing("[1]", "n.x + n.x"),
        growing("[1]", "[n.x, n.x]") + "{{ n.x }}",
        growing("[1]", "[n.x, n.x]") + "{{ n.x | tojson }}",
        growing("[1]", "[n.x, n.x]") + "{{ 'a' ~ n.x }}",
        growing("'xx'", "n.x.replace('x', n.x)"),
        growing("'xx'", "n.x | replace('x', n.x)"),
        growing("'xx'", "[n.x, n.x] | join"),
        growing("'xx'", "n.x.join(['a', 'b', n.x])"),
        "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        growing("[]", "[n.x, messages[0].content[1:], messages[0].content[2:]]", 99999),
        growing("[]", "[n.x, messages[0].content | list]", 99999),
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x\nx' | indent(999999999) }}",
        "{{ '\t'.expandtabs(999999999) }}",
        "{{ {'a': 1} | tojson(indent=999999999) }}",
        "{{ lipsum(n=999999) }}",
        "{% set x = ''.ljust(200000000) %}",
        growing("'xx'", "''.join([n.x, n.x])", 27),
        "{{ 'x'.encode() }}",
        "{{ (0).to_bytes(200000000, 'big') | length }}",
        growing("[1]", "[n.x, n.x]", 20) + "{{ n }}",
        growing("[1]", "[n.x, n.x]", 20) + "{{ {'a': n.x}.values() }}",
        growing("[]", "[n.x, n.x]", 20) + "{% for a in n.x recursive %}{% set b = loop(a) %}{% endfor %}",
        "{% macro m(d) %}{% if d %}{% set a = m(d - 1) %}{% set b = m(d - 1) %}{% endif %}{% endmacro %}{{ m(20) }}",
        growing("[]", "[n.x, range(99999) | list]", 200),
        "{{ {}.fromkeys(range(9)) }}",
        "{% set r = range(99999) | list %}" + growing("[]", "[n.x, r.copy()]", 200),
        "{% set r = range(99999) | list %}" + growing("[]", "[n.x, cycler(*r)]", 200),
        "{% set r = range(10000) | list | batch(2) | list %}" + growing("[]", "[n.x, dict(r)]", 2600),
        "{% set r = [range(99999) | list] %}" + growing("[]", "[n.x, r | sum(start=[])]", 20),
        "{{ 'ab' | wordwrap(1, true, 'x') }}",
        "{{ [1, 2] | tojson(separators=(messages[0].content, ':')) }}",
        "{{ [1] | batch(999999999, 0) | list }}",
    ],
)
@pytest.mark.reduced
def test_time_and_size_are_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template must not be able to hold the event loop or the memory.

    In an ordinary run with a tenth of what is allowed: whatever stops it at all stops it sooner then.
    """
    if not wanted():
        for bound in ("MAX_TURNS", "MAX_MADE"):
            monkeypatch.setattr(sandbox, bound, getattr(sandbox, bound) // 10)
    with pytest.raises(InvalidRequest):
        render(source, [{"role": "user", "content": "x" * 1000}])


def test_a_long_conversation_is_no_attack() -> None:
    """Qwen3's template asks each turn how many there are: 3,600 messages were refused as too much."""
    source = "{% for m in messages %}{% if loop.index != messages | length %}{{ m.content }}{% endif %}{% endfor %}"
    assert len(render(source, HELLO * 20_000)) == 5 * 19_999


def test_each_rendering_has_its_own_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that runs down over requests would end with refusing everybody."""
    monkeypatch.setattr(sandbox, "MAX_TURNS", 5)
    made = ChatTemplate(CHATML, {}, lambda: NOON)
    for _ in range(10):
        made.render(HELLO * 3)
    with pytest.raises(InvalidRequest):
        made.render(HELLO * 6)


def test_a_refusal_is_the_clients_to_mend() -> None:
    """Templates raise when roles do not alternate; the client must read why."""
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('Start with a user!') }}{% endif %}"
    with pytest.raises(InvalidRequest, match="Start with a user!") as refused:
        render(source, [{"role": "assistant", "content": "Hi"}])
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("messages[0].content | truncate(2)", "expected length >= 3"),  # jinja2 asserts
        ("cycler()", "at least one item"),  # a RuntimeError
        ("messages[0].content.index('x')", "substring not found"),
        ("[1, 'a'] | sort(case_sensitive=true)", "not supported between"),
        ("messages | length / 0", "division"),
    ],
)
def test_whatever_a_template_raises_is_told(fault: str, why: str) -> None:
    """Filters assert and methods raise what they like: a 500 would blame the engine for the model's template."""
    with pytest.raises(InvalidRequest, match=why) as refused:
        render(f"{{{{ {fault} }}}}", HELLO * 2)
    assert refused.value.param == "messages"


def test_whatever_a_broken_template_raises_is_told() -> None:
    """A number of 5,000 digits is Python's to refuse, not Jinja's: the model must be, in words."""
    with pytest.raises(ModelNotFound, match="does not parse"):
        ChatTemplate(f"{{{{ {'1' * 5_000} }}}}", {}, lambda: NOON)


def test_messages_become_plain() -> None:
    """Templates are written for strings; OpenAI's clients send parts, nulls and a newer role."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert plain([{"role": "developer", "content": parts}]) == [{"role": "system", "content": "Hello"}]
    assert plain([{"role": "assistant", "content": None}]) == [{"role": "assistant", "content": ""}]
    sent_back: Message = {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None, "audio": None}
    assert plain([sent_back, {**sent_back, "tool_calls": []}]) == [{"role": "assistant", "content": "x"}] * 2
    bad: list[Message] = [
        {"content": "x"},
        {"role": 5, "content": "x"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "user", "content": ["text"]},
        {"role": "assistant", "tool_calls": [{"function": "x"}]},
    ]
    for message in bad:
        with pytest.raises(InvalidRequest):
            plain([message])


def test_where_templates_lie(tmp_path: Path) -> None:
    """Two places and three forms are in use; the file beside the model goes first."""
    folder = write_checkpoint(tmp_path, "tiny-random:qwen3")
    source = locate(str(folder))

    def loaded() -> ChatTemplate | None:
        return load_template(source, lambda: NOON)

    made = loaded()
    assert made is not None
    assert made.render(HELLO) == render(CHATML)
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }} default"}]
    config = {"eos_token": {"content": "</s>"}, "chat_template": several}
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    made = loaded()
    assert made is not None
    assert made.render(HELLO) == "</s> default"
    (folder / "chat_template.jinja").write_text("file")
    made = loaded()
    assert made is not None
    assert made.render(HELLO) == "file"
    (folder / "chat_template.jinja").write_text("{% if")
    with pytest.raises(ModelNotFound):
        loaded()
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelNotFound):
        loaded()
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"chat_template": [1, {"name": "other"}]}')
    assert loaded() is None
    (folder / "tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(ModelNotFound):
        loaded()
    (folder / "tokenizer_config.json").unlink()
    assert loaded() is None


def test_transformers_renders_the_same(tmp_path: Path) -> None:
    """Our environment against the one models are published for, on a template with the usual tricks."""
    transformers = pytest.importorskip("transformers")
    folder = write_checkpoint(tmp_path, "tiny-random:qwen3")
    source = (
        "{%- if messages[0].role == 'system' %}\n    {{- '<sys>' + messages[0].content + '</sys>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {%- if message.role == 'user' %}\n"
        "        {{- '[' + loop.index0|string + ']' + message.content | trim }}\n"
        "    {%- elif 'tool_calls' in message %}\n        {{- message.tool_calls[0].function.arguments | tojson }}\n"
        "    {%- elif message.role == 'assistant' %}\n"
        "        {%- generation %}{{ message.content }}{% endgeneration %}\n    {%- endif %}\n{%- endfor %}\n"
        "{%- for tool in tools or [] %}\n    {{- tool | tojson }}{{- tool | tojson(indent=4) }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<go>' }}\n{%- endif %}\n"
    )
    (folder / "chat_template.jinja").write_text(source)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages: list[Message] = [
        {"role": "system", "content": "S <b>&"},
        {"role": "user", "content": " one "},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"], "b": {}}}}],
        },
    ]
    functions: list[dict[str, object]] = [{"name": "f", "parameters": {"type": "object", "properties": {}}}]
    made = load_template(locate(str(folder)), lambda: NOON)
    assert made is not None
    offered = [{"type": "function", "function": one} for one in functions]
    wanted = theirs.apply_chat_template(messages, tools=offered, tokenize=False, add_generation_prompt=True)
    assert made.render(messages, Tools(functions=functions)) == wanted
