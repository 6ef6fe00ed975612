"""From a request to what travels to the engine process, and how its answer is to be read.

Knows: a model's tokenizer, chat template, forms of tool calls and reasoning, grammars. Does not know: sockets, queues,
torch.

Everything that can be refused is refused here, beside the event loop where it may take long.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from engine.api import Constraint, GenerateRequest, InvalidRequest, ModelInfo, SamplingParams, Spelled, Tools
from engine.generation_config import GenerationConfig, load_generation_config
from engine.grammar import Unusable, Vocabulary, from_lark, join, translate
from engine.locate import locate
from engine.reasoning import CLOSE, OPEN, ThinkReader, begun, thinks
from engine.template import ChatTemplate, load_template
from engine.text import Reading
from engine.tokenizer import TextTokenizer, load_tokenizer
from engine.toolforms import check_tools, form_of
from engine.toolforms import grammar as tool_grammar
from engine.toolreader import ToolReader
from engine.validate import (
    MAX_PROMPT_CHARS,
    SHORTEN,
    TOO_LONG,
    check_prompt,
    check_sampling,
    check_tokens,
    fit,
    window_told,
)

_THREAD_CHARS = 20_000  # more than this is rendered and tokenized beside the event loop
_NO_DEFAULTS = GenerationConfig()
_ROOM_TO_CLOSE = 64  # tokens
_MAX_PREDICTION = 200_000  # characters
_CONTINUED = 8  # tokens of a text that show how the next one is spelled after them
_TEXT = "TEXT: /(.|\\n)*/\n"


class ModelText:
    """A model's files about text: `tokenizer`, `template` (None: there is none), `note` on what it is, `defaults`."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        note: str = "",
        defaults: GenerationConfig = _NO_DEFAULTS,
    ) -> None:
        self.tokenizer, self.template, self.note, self.defaults = tokenizer, template, note, defaults
        source = template.source if template is not None else ""
        self.form = form_of(source)
        self.thinks = thinks(source)
        self._vocabulary: Vocabulary | None = None

    def vocabulary(self, size: int) -> Vocabulary:
        """Its tokens as grammars see them; made when it is first asked for."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.tokenizer.contents(), size, self.tokenizer.eos)
        return self._vocabulary


class Prepared(msgspec.Struct, frozen=True):
    """A request that can be submitted. `eos`: ids that end the answer, unless they are to be ignored.

    `closing`: a form that is half said is worth nothing, so from this many tokens on it is brought to an end.
    """

    tokens: list[int]
    sampling: SamplingParams
    eos: list[int]
    grammar: str | None
    closing: int | None
    prediction: list[int]
    reading: Reading


def load_text(model: str, now: Callable[[], float]) -> ModelText:
    """Reads files. Raises EngineError."""
    source = locate(model)
    defaults = _NO_DEFAULTS if source.folder is None else load_generation_config(source.folder)
    return ModelText(load_tokenizer(source), load_template(source, now), source.note, defaults)


def takes_long(request: GenerateRequest) -> bool:
    """Whether preparing this would be felt by others on the event loop."""
    return request.constraint is not None or request.tools is not None or _size(request) > _THREAD_CHARS


def tokens_of(request: GenerateRequest, text: ModelText, info: ModelInfo, *, specials: bool | None = None) -> list[int]:
    """The prompt as the model sees it; `specials` as `engine.api` says. Raises InvalidRequest."""
    check_prompt(request)
    if request.tools is not None:
        check_tools(request.tools)
    return _tokens(request, text, info, specials)[0]


def spelled(ids: list[int], text: ModelText, info: ModelInfo) -> Spelled:
    """Raises InvalidRequest."""
    check_tokens(ids, info.vocabulary)
    return Spelled(text.tokenizer.read(ids), [text.tokenizer.spell(token) for token in ids])


def prepare(request: GenerateRequest, text: ModelText, info: ModelInfo) -> Prepared:
    """Raises InvalidRequest for whatever can never be served."""
    if request.left:
        request = replace(request, sampling=text.defaults.filled(request.sampling, request.left))
    check_prompt(request)
    check_sampling(request.sampling, info.vocabulary)
    if request.tools is not None:
        check_tools(request.tools)
    if len(request.prediction) > _MAX_PREDICTION:
        raise InvalidRequest(f"A prediction may have {_MAX_PREDICTION} characters.", param="prediction")
    tokens, prompt = _tokens(request, text, info)
    sampling = fit(request, len(tokens), info.context)
    eos = [] if sampling.ignore_eos else text.tokenizer.eos
    thinking = text.thinks and request.messages is not None and not prompt.rstrip().endswith(CLOSE)
    grammar = _grammar(request, text, info, _thought(text, info, inside=begun(prompt)) if thinking else "")
    return Prepared(
        tokens,
        sampling,
        eos,
        grammar,
        None if grammar is None or thinking or _free(request) else _closing(sampling, text.defaults),
        text.tokenizer.encode(request.prediction, specials=False) if request.prediction else [],
        Reading(
            frozenset(eos) | frozenset(sampling.stop_token_ids),
            _marks(request.tools, text),
            ThinkReader(inside=begun(prompt)) if thinking else None,
            _reader(request.tools, text),
            tokens if sampling.prompt_logprobs is not None else [],
            (request.text if request.text is not None else text.tokenizer.decode(tokens)) if request.echo else "",
            tokens[-_CONTINUED:] if request.messages is None else [],
            len(tokens),
        ),
    )


def _size(request: GenerateRequest) -> int:
    """Roughly how many characters the prompt has."""
    if request.text is not None:
        return len(request.text) + len(request.prediction)
    said = sum(len(str(value)) for message in request.messages or [] for value in message.values())  # calls, too
    return said + len(request.prediction)


def _tokens(
    request: GenerateRequest, text: ModelText, info: ModelInfo, specials: bool | None = None
) -> tuple[list[int], str]:
    """Ids and text of the prompt. Raises InvalidRequest when the template refuses or the text is hopelessly long."""
    if request.token_ids is not None:
        check_tokens(request.token_ids, info.vocabulary)
        return request.token_ids, ""
    if request.text is not None:
        prompt = request.text
    elif text.template is None:
        raise InvalidRequest("This model has no chat template: use a text completion.", param="messages")
    else:
        prompt = text.template.render(request.messages or [], request.tools, request.thinking)
    if text.tokenizer.hopeless(prompt, info.context) or len(prompt) > MAX_PROMPT_CHARS:
        message = f"{window_told(info.context)} A prompt of {len(prompt)} characters cannot fit. {SHORTEN}"
        raise InvalidRequest(message, param="messages" if request.messages else "prompt", code=TOO_LONG)
    return text.tokenizer.encode(prompt, specials=request.text is not None if specials is None else specials), prompt


def _grammar(request: GenerateRequest, text: ModelText, info: ModelInfo, opening: str) -> str | None:
    """What holds the answer to its form, checked by its own compiler. `opening`: Lark rules of `thought`, or empty."""
    try:
        return _checked(request, text, info, opening)
    except Unusable as error:
        if request.constraint is not None:
            raise
        raise InvalidRequest(f"The parameters of a tool cannot be used: {error.why}.", param="tools") from error


def _checked(request: GenerateRequest, text: ModelText, info: ModelInfo, opening: str) -> str | None:
    """Raises InvalidRequest."""
    found = _form(request.constraint, request.tools, text, info)
    if found is None:
        return None
    if opening and not _free(request):  # where any text may come, a thought may too
        found = join(f"start: thought @answer\n{opening}", answer=found)
    text.vocabulary(info.vocabulary).check(found)
    return found


def _free(request: GenerateRequest) -> bool:
    """Whether any text may come, and only calls in it have a form."""
    return request.constraint is None and request.tools is not None and request.tools.choice == "auto"


def _closing(sampling: SamplingParams, defaults: GenerationConfig) -> int:
    end = min(sampling.max_tokens, defaults.max_new_tokens or sampling.max_tokens)
    return end - min(_ROOM_TO_CLOSE, end // 2)


def _form(constraint: Constraint | None, tools: Tools | None, text: ModelText, info: ModelInfo) -> str | None:
    """Calls where they are required, else what was asked for, or calls instead of it."""
    form = None if constraint is None else translate(constraint)
    if tools is None or tools.choice == "none":
        return form
    special = _special(text, info, text.form.begin)
    if form is not None and tools.choice == "auto":
        calls = tool_grammar(replace(tools, choice="required"), text.form, special=special)
        assert calls is not None
        return join("start: @calls | @form\n", calls=from_lark(calls), form=form)
    rules = tool_grammar(tools, text.form, special=special)
    return None if rules is None else from_lark(rules)


def _thought(text: ModelText, info: ModelInfo, *, inside: bool) -> str:
    """Lark rules of a block of reasoning: whole and optional, or only the rest of one that the prompt began."""
    special = _special(text, info, CLOSE)
    rest = f"thinking: TEXT {CLOSE}\n" if special else f'thinking[lazy]: TEXT "{CLOSE}"\n'
    opening = OPEN if special else f'"{OPEN}"'
    lines = '("\\n" "\\n"?)?'  # after a thought only: without one they would be part of the answer
    return (f"thought: thinking {lines}\n" if inside else f"thought: ({opening} thinking {lines})?\n") + rest + _TEXT


def _special(text: ModelText, info: ModelInfo, mark: str) -> bool:
    token = text.tokenizer.mark(mark) if mark else None
    return token is not None and text.vocabulary(info.vocabulary).special(token)


def _marks(tools: Tools | None, text: ModelText) -> frozenset[int]:
    """Special tokens that readers look for: decoding would drop them."""
    wanted = (OPEN, CLOSE) if text.thinks else ()
    wanted += text.form.marks if tools is not None else ()
    return frozenset(token for mark in wanted if (token := text.tokenizer.mark(mark)) is not None)


def _reader(tools: Tools | None, text: ModelText) -> ToolReader | None:
    return None if tools is None or tools.choice == "none" else ToolReader(text.form, tools)
