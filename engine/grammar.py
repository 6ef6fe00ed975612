"""Answers that must have a form: JSON, a schema, a regular expression, a grammar, compiled and followed by llguidance.

Knows: constraints, llguidance (github.com/guidance-ai/llguidance), bounds on what may be compiled. Does not know:
sampling, scheduling, tool calls.

Compiling happens beside the event loop of whoever asked, so a bad schema is refused before the engine hears of it. What
passes is bounded by size, depth and references (a chain of some thousand rules overflows the compiler's stack), then by
llguidance's own limits, which also hold while tokens are drawn: a grammar that becomes too dear ends its own request.
"""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import llguidance
import msgspec
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from engine.api import Constraint, InvalidRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_CHARS = 65_536
MAX_DEPTH = 64
MAX_REFERENCES = 256  # chains of references are followed by recursion
MAX_RULES = 512  # likewise
MAX_MEETINGS = 12  # patterns that must hold together: what their meeting costs doubles with each
MAX_KEY_PATTERNS = 32  # compared pair by pair
_DEAD_END = "NoExtensionBias"  # llguidance's name for it
_CLOSING = b'"}] \n'
_REFERENCE = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)"')
_JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_pattern": "[ ]?"
}  # models that may write any white space sometimes write nothing else
# For what only has to help: a keyword that is not implemented holds to nothing instead of being refused.
_LENIENT: "JsonCompileOptions" = {**_JSON_STYLE, "lenient": True, "coerce_one_of": True}
_UNREADABLE = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # looks around, or back at what was matched: no automaton can
_DATA = ("const", "enum", "default", "examples")  # keywords whose values are no schemas
_ONE_OF = re.compile(r"oneOf constraints are not supported\. Enable .*")  # an option of llguidance's, not of ours
_COMPILER = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")  # where it stands in rules that are ours
_LIMITS = llguidance.LLParserLimits(
    max_grammar_size=50_000,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
_json = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class Forked(Exception):
    """A matcher cannot go on: its grammar became too complex, or a token was not allowed."""


class Tokens:
    """A tokenizer as llguidance sees it, and which of its tokens bring JSON to an end, the most final first."""

    def __init__(self, text: str, size: int, eos: list[int]) -> None:
        # Some tokenizers know more tokens than their model has columns (Gemma 3 1B), most fewer.
        known = llguidance.LLTokenizer(text).vocab_size
        ends = [token for token in eos if 0 <= token < size]
        self.inner = llguidance.LLTokenizer(text, n_vocab=max(size, known), eos_token=ends or None)
        spelled = [self.inner.decode_bytes([token]) for token in range(size)]
        closing = [not word.strip(_CLOSING) for word in spelled]
        self._ends = _bits([token in eos for token in range(size)])
        self._closes = _bits([word[:1] in (b"}", b"]") and good for word, good in zip(spelled, closing, strict=True)])
        self._unquotes = _bits([word[:1] == b'"' and good for word, good in zip(spelled, closing, strict=True)])
        self._prose = _bits([word in (b"#", b"%", b"@") for word in spelled])

    def ending(self, allowed: bytes) -> bytes:
        """Of the tokens that `allowed` allows, those that lead to the end soonest."""
        bits = np.frombuffer(allowed, np.uint8)[: len(self._ends)]
        quoted = bool((bits & self._prose).any())  # within a string a bracket closes nothing
        for kind in (self._ends, self._unquotes) if quoted else (self._ends, self._closes, self._unquotes):
            both = bits & kind
            if both.any():
                return both.tobytes()
        return allowed


def _bits(which: list[bool]) -> NDArray[np.uint8]:
    return np.packbits(np.array(which), bitorder="little")


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, inner: llguidance.LLMatcher, tokens: Tokens) -> None:
        self._inner = inner
        self.ending = tokens.ending

    @property
    def ended(self) -> bool:
        """Whether nothing can follow but the end."""
        return self._inner.is_stopped()

    def masks(self, drafts: tuple[int, ...]) -> list[bytes]:
        """What may come next, and after each of `drafts`: one bit per token id, lowest first. Raises Forked."""
        found = [self._mask()]
        try:
            for token in drafts:
                self.accept(token)
                found.append(self._mask())
        finally:
            self._inner.rollback(len(found) - 1)
        return found

    def valid(self, drafts: list[int]) -> list[int]:
        """The first of `drafts` that the grammar allows."""
        return drafts[: self._inner.validate_tokens(drafts)]

    def accept(self, token: int) -> None:
        """Raises Forked."""
        if not self._inner.consume_token(token):
            raise Forked(self._inner.get_error())

    def _mask(self) -> bytes:
        mask = self._inner.compute_bitmask()
        if self._inner.is_error():
            raise Forked(self._inner.get_error())
        return mask


class Vocabulary:
    """A model's tokens as llguidance sees them; made in a thread, since large vocabularies take a second.

    `text`: the contents of `tokenizer.json`; `size`: columns of the model's logits; `eos`: ids that end an answer.
    """

    def __init__(self, text: str, size: int, eos: list[int]) -> None:
        maker = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokens: Future[Tokens] = maker.submit(Tokens, text, size, eos)
        maker.shutdown(wait=False)

    def matcher(self, grammar: str) -> Matcher:
        """Raises InvalidRequest when llguidance refuses the grammar."""
        tokens = self._ready()
        inner = llguidance.LLMatcher(tokens.inner, grammar, log_level=0, limits=_LIMITS)
        if inner.is_error():
            raise _refusal(inner.get_error())
        return Matcher(inner, tokens)

    def check(self, grammar: str) -> None:
        """Raises InvalidRequest when llguidance refuses the grammar, or no answer can begin as it says."""
        try:
            begins = any(self.matcher(grammar).masks(())[0])
        except Forked as error:
            raise unusable(str(error)) from error
        if not begins:
            raise unusable("no answer can have it")

    def special(self, token: int) -> bool:
        """Whether llguidance names this token instead of spelling it."""
        return self._ready().inner.is_special_token(token)

    def _ready(self) -> Tokens:
        """Raises InvalidRequest where llguidance cannot read this vocabulary: all else works without."""
        error = self._tokens.exception()
        if error is not None:
            raise _refusal(f"this model's vocabulary cannot be read for it ({error})")
        return self._tokens.result()


def translate(constraint: Constraint) -> str:
    """A constraint in llguidance's notation. Raises InvalidRequest for what is too large or no JSON."""
    text = constraint.text
    if len(text) > MAX_CHARS:
        raise _refusal(f"it has more than {MAX_CHARS} characters")
    if constraint.kind == "json":
        return json_grammar({"type": "object"})
    if constraint.kind == "schema":
        return json_grammar(_read(text), strict=constraint.strict)
    if constraint.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(text)
    if constraint.kind == "choice":
        return llguidance.LLMatcher.grammar_from_lark(_choice(_read(text)))
    if text.count(":") > MAX_RULES:
        raise _refusal(f"it has more than {MAX_RULES} rules")
    check_references(text)
    try:
        return llguidance.LLMatcher.grammar_from_lark(any_to_lark(text))
    except Exception as error:  # the translator of GBNF raises nothing narrower
        raise _refusal(str(error)) from error


def json_grammar(schema: object, *, strict: bool = True) -> str:
    """Raises InvalidRequest when the schema is no object or not bounded.

    Not `strict`: what cannot be held to is left out of account.
    """
    check_schema(schema)
    held, style = (schema, _JSON_STYLE) if strict else (_readable(schema), _LENIENT)
    return llguidance.LLMatcher.grammar_from_json_schema(_encode(held).decode(), overrides=style)


def inline_json(schema: object, *, strict: bool) -> str:
    """The same as an expression inside a Lark grammar."""
    check_schema(schema)
    held = cast("dict[str, object]", schema if strict else _readable(schema))
    return f"%json {_encode({**held, 'x-guidance': _JSON_STYLE if strict else _LENIENT}).decode()}"


def _readable(schema: object) -> object:
    """Without patterns that no grammar can follow, such as those zod writes for e-mail addresses."""
    if isinstance(schema, list):
        return [_readable(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, object] = {}
    for name, value in cast("dict[str, object]", schema).items():
        if name in _DATA:
            found[name] = value
        elif name == "patternProperties" and isinstance(value, dict):
            by_pattern = cast("dict[str, object]", value)
            found[name] = {key: _readable(one) for key, one in by_pattern.items() if not _UNREADABLE.search(key)}
        elif name != "pattern" or not isinstance(value, str) or not _UNREADABLE.search(value):
            found[name] = _readable(value)
    return found


def check_schema(schema: object) -> None:
    """Raises InvalidRequest for what is no schema, or could hurt the compiler."""
    if not isinstance(schema, dict):
        raise _refusal("a JSON schema must be an object")
    if _depth(schema) > MAX_DEPTH:
        raise _refusal(f"it is nested deeper than {MAX_DEPTH} levels")
    text = _encode(schema).decode()
    if len(text) > MAX_CHARS:
        raise _refusal(f"it has more than {MAX_CHARS} characters")
    check_references(text)
    _check_patterns(schema)


def _check_patterns(schema: object) -> None:
    meetings = keys = 0
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += cast("list[object]", one)
        elif isinstance(one, dict):
            found = cast("dict[str, object]", one)
            together = found.get("allOf")
            parts = cast("list[object]", together) if isinstance(together, list) else []
            meetings += sum(isinstance(part, dict) and "pattern" in part for part in parts)
            meetings += "pattern" in found and ("$ref" in found or "allOf" in found)
            patterns = found.get("patternProperties")
            keys += len(cast("dict[str, object]", patterns)) if isinstance(patterns, dict) else 0
            left += found.values()
    if meetings > MAX_MEETINGS or keys > MAX_KEY_PATTERNS:
        raise _refusal("too many of its patterns must hold together")


def check_references(text: str) -> None:
    if len(_REFERENCE.findall(text)) > MAX_REFERENCES:
        raise _refusal(f"it has more than {MAX_REFERENCES} references")


def join(lark: str, **parts: str) -> str:
    """A Lark grammar that refers to other grammars as `@name`, with what they are."""
    grammars: list[dict[str, object]] = [{"name": "joined", "lark_grammar": lark}]
    for name, grammar in parts.items():
        if grammar.startswith("{"):
            first, *more = cast("dict[str, list[dict[str, object]]]", _json.decode(grammar))["grammars"]
        else:  # llguidance leaves Lark as it is
            first, more = {"lark_grammar": grammar}, []
        grammars += [{**first, "name": name}, *more]
    return _encode({"grammars": grammars}).decode()


def from_lark(rules: str) -> str:
    return llguidance.LLMatcher.grammar_from_lark(rules)


def _read(text: str) -> object:
    try:
        return _json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(f"it is not JSON ({error})") from error


def _choice(options: object) -> str:
    given = cast("list[object]", options) if isinstance(options, list) else []
    if not given or not all(isinstance(one, str) and one for one in given):
        raise _refusal("a choice must be a list of texts")
    return "start: " + " | ".join(_encode(one).decode() for one in given)


def _depth(value: object) -> int:
    """Levels of nesting, counted without recursion and only until they are too many."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                inner += cast("list[object]", one)
        level = inner
    return depth


class Unusable(InvalidRequest):
    """The refusal of a form. `why` without the sentence around it."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The form asked for cannot be used: {why}.", param="response_format")
        self.why = why


def unusable(why: str) -> Unusable:
    """The refusal of a form whose answer cannot begin, or cannot go on."""
    return _refusal("no answer can have it" if _DEAD_END in why else why)


def _refusal(why: str) -> Unusable:
    first, *more = why.strip().split("\n")
    reason = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), "")
    first = _ONE_OF.sub("of its oneOf more than one may hold: say anyOf, or tell them apart", first)
    first = _COMPILER.sub("", first)  # a regular expression is drawn over some lines, and said at last what it lacks
    return Unusable(f"{first:.300}".removesuffix(".") + (f" {reason:.100}" if reason else ""))
