"""Where chat templates run: Jinja's immutable sandbox, in which time and memory are bounded too.

Knows: Jinja's syntax tree, what makes text. Does not know: messages, models, what a template is for.

Every operation that makes a text or a list pays for its size, before it is made, out of one budget per rendering. So
neither a width of a billion nor `x ~ x` sixty times over nor a list that holds another one twice, sixty levels deep,
gets far. Loops share a budget of turns. What is not bounded: comparing and sorting values that hold one another many
times over.
"""

import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_TURNS = 1_000_000  # loop iterations in all
MAX_MADE = 100_000_000  # characters and elements that all operations make together
_MAX_NUMBER = 1_000_000
_WIDTH = re.compile(r"\d+")
_NESTED = re.compile(r"\*|\{[^{}]*\{")  # a width that an argument says
_TAB = 8
_ELEMENT = 8  # an element of a list takes as much as so many characters
_LOOK = 200  # what a call and a look at a value within another cost, in characters that could have been made meanwhile
# What makes much of little, or bytes, whose methods nobody watches; and nothing that a prompt is made with.
_METHODS = ("encode", "expandtabs", "fromkeys", "to_bytes", "translate")
_FILTERS = ("urlize", "wordwrap")
_FREE = ("count", "d", "default", "first", "last", "length")  # look at no more than an end of what they get


class TooMuch(TemplateError):
    """The template used up its budget."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the answer for training; for prompts it means nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Budget(threading.local):
    """Long prompts are rendered in threads; each rendering counts for itself."""

    turns = 0
    made = 0


class _Tolls(NodeTransformer):
    """What no hook of Jinja's sees pays through a filter: `~`, slices, the turns of loops and the text in them."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  (as Jinja names them)
        self.generic_visit(node)
        return _through("joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  (the same)
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through("paid", node.node)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the same)
        self.generic_visit(node)
        said = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        node.iter = _through("paced", cast("nodes.Expr", node.iter), nodes.Const(said))
        return node


def _through(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [*args], [], None, None, lineno=value.lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """As transformers sets its own up, with bounds. `begin` before each rendering."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=self._shown)
        self._budget = _Budget()
        filters = cast("dict[str, Any]", self.filters)
        filters |= {name: self._tolled(name, plain) for name, plain in filters.items() if name not in _FREE}
        filters |= {"paced": self._paced, "paid": self._paid, "joined": self._joined, "tojson": self._to_json}
        del cast("dict[str, Any]", self.globals)["lipsum"]

    def begin(self) -> None:
        """A new budget."""
        self._budget.turns = self._budget.made = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return cast("nodes.Template", _Tolls().visit(super()._parse(source, name, filename)))

    def _pay(self, size: int) -> None:
        self._budget.made += size
        if self._budget.made > MAX_MADE:
            raise TooMuch(f"it makes more than {MAX_MADE} characters on the way")

    def _paid(self, value: object) -> object:
        self._pay(_extent(value))
        return value

    def _paced(self, items: Iterable[object], said: int) -> Iterator[object]:
        for item in items:
            self._budget.turns += 1
            if self._budget.turns > MAX_TURNS:
                raise TooMuch("too many loop turns")
            self._pay(said)
            yield item

    def _shown(self, value: object) -> object:
        """Anything but a text becomes one: it pays for all that is in it, however often it is in there."""
        left = [value]
        while left:
            one = left.pop()
            self._pay(_extent(one) + _LOOK)
            if isinstance(one, Mapping):
                found = cast("Mapping[object, object]", one)
                left += [*found.keys(), *found.values()]
            elif isinstance(one, Collection) and not isinstance(one, str):
                left += cast("Collection[object]", one)
            elif isinstance(one, Namespace):
                raise TooMuch("a namespace is shown")
        return value

    def _joined(self, parts: list[object]) -> str:
        return "".join([str(self._shown(part)) for part in parts])

    def _to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """As transformers' filter of this name, to the space: models were trained on just these prompts."""
        if (indent is not None and indent > _TAB) or max(map(len, separators or ("",))) > _TAB:
            raise TooMuch("an indentation or a separator is too wide")
        return json.dumps(
            self._shown(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Numbers must be small, and nothing but numbers is multiplied."""
        if isinstance(left, int | float) and isinstance(right, int | float):
            if max(abs(left), abs(right)) >= _MAX_NUMBER and operator in ("*", "**"):
                raise TooMuch(f"operands of {operator} are too large")
            if operator == "**" and right > 16:
                raise TooMuch("an exponent is too large")
        elif operator == "%" and isinstance(left, str):
            self._format(left, right)
        elif operator == "+":
            self._pay(_extent(left) + _extent(right))
        elif operator in ("*", "**"):
            raise TooMuch(f"{operator} of something else than numbers")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  (as Jinja names them)
        method, given = getattr(__obj, "__wrapped__", __obj), [*args, *kwargs.values()]  # `format` comes wrapped
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is not None and name in _METHODS:
            raise TooMuch(f"{name} is not offered")
        copied = given[:1] if isinstance(__obj, type) else []  # `dict(x)`
        __self._pay(_LOOK + sum(map(_extent, (owner, given, *copied))))
        if isinstance(owner, str):
            __self._method(owner, name, given)
        return super().call(__context, __obj, *args, **kwargs)

    def _method(self, owner: str, name: str, given: list[Any]) -> None:
        """A method of a text pays for what it may make of it."""
        self._pay(("split" in name) * _ELEMENT * len(owner) + _widths(given))
        if name == "replace" and len(given) > 1:
            self._replace(owner, given[0], given[1])
        elif name == "join" and given:
            self._join(given[0], owner)
        elif name in ("format", "format_map"):
            self._format(owner, given)

    def _replace(self, text: object, old: object, new: object, *_: object) -> None:
        said, before = str(self._shown(text)), str(old)
        self._pay((said.count(before) if before else len(said) + 1) * len(str(new)))

    def _join(self, items: object, between: object = "", *_: object, **__: object) -> None:
        self._shown(items)
        self._pay(_extent(items) * _extent(between))

    def _format(self, form: object, *given: object, **named: object) -> None:
        """Every place may hold everything that is given; widths are numbers in the text."""
        said = str(form)
        if _NESTED.search(said):
            raise TooMuch("a width that is not written out")
        self._pay(sum(min(int(found[:12]), MAX_MADE) for found in _WIDTH.findall(said)))
        before = self._budget.made
        self._shown([*given, *named.values()])
        self._pay((self._budget.made - before) * (said.count("{") + said.count("%")))

    def _indent(self, text: object, width: object = 4, *_: object, **__: object) -> None:
        lines = str(text).count("\n") + 1
        self._pay(lines * (abs(width) if isinstance(width, int) else _extent(width)))

    def _tolled(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that pays for what it is given, with all widths, and for what it makes where that is more."""
        first = 1 if hasattr(plain, "jinja_pass_arg") else 0  # Jinja hands some filters the context first
        more = {"replace": self._replace, "join": self._join, "format": self._format, "indent": self._indent}.get(name)

        def tolled(*args: Any, **kwargs: Any) -> Any:
            value, *given = args[first:]
            if name in _FILTERS:
                raise TooMuch(f"{name} is not offered")
            self._pay(_extent(value) + _widths([*given, *kwargs.values()]))
            if name == "list" and isinstance(value, str):
                self._pay(_ELEMENT * len(value))
            if name in ("string", "pprint", "escape", "e", "forceescape", "xmlattr", "urlencode", "sum"):
                self._shown(value)
            if more is not None:
                more(value, *given, **kwargs)
            return plain(*args, **kwargs)

        if first:
            cast("Any", tolled).jinja_pass_arg = cast("Any", plain).jinja_pass_arg
        return tolled


def _extent(value: object) -> int:
    """Characters, or elements at their size."""
    if isinstance(value, str):
        return len(value)
    return _ELEMENT * len(cast("Collection[object]", value)) if isinstance(value, Collection) else 0


def _widths(given: Iterable[object]) -> int:
    """What numbers may ask for when they are widths or counts."""
    return sum(abs(one) for one in given if isinstance(one, int))
