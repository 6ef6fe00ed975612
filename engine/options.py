"""How an engine may be launched, and the same as flags of a command line: a new field is a new flag.

Knows: names, types, defaults, argparse. Does not know: torch, what an option does (`engine.launch`).
"""

import argparse
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import NODEFAULT, Meta, Struct

_NAMES = {"queue": "max-queue", "sequences": "max-sequences", "memory": "memory-mib"}
_HELP = {
    "threads": "torch threads; default: by the model's size",
    "queue": "requests that may wait",
    "sequences": "requests that run at once",
    "context": "shorten the model's window",
    "dtype": "type of the weights in memory",
    "speculate": "off, predicted (requests with a prediction), ngram (all), or a smaller model of the same vocabulary",
    "draft_tokens": "guesses per step and request",
    "tensor_parallel": "processes that share one model: one per GPU",
    "quant": "weights in fewer bits",
    "kv_dtype": "type keys and values are kept in",
    "memory": "MiB for keys and values; default: a quarter of RAM, on a GPU most of what is left",
    "device": "where the model is computed; auto: a GPU if there is one",
    "deterministic": "on a GPU: the same tokens in any batch, slower at small ones (a processor always is)",
    "graphs": "on a GPU: record decode steps and replay them",
    "step_tokens": "tokens computed in one step at most; default: 512, on a GPU 8192",
    "chunk": "tokens of a prompt in one step while others decode; default: 128, on a GPU 512",
}
_MIB = 2**20
BY_TEXT = ("off", "predicted", "ngram")  # ways to guess without another model


Count = Annotated[int, Meta(ge=1)]
Tokens = Annotated[int, Meta(ge=16)]  # a block of keys and values


class Options(Struct, frozen=True, kw_only=True):
    """`threads`: None to choose by the model's size.

    `memory`: bytes for keys and values, None for a quarter of RAM, on a GPU for nine tenths of what is left there.
    """

    threads: Count | None = None
    queue: Count = 256
    sequences: Count = 32
    context: Tokens | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quant: Literal["none", "int8", "int4", "fp8"] = "none"
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = "auto"
    memory: Count | None = None
    tensor_parallel: Count = 1
    speculate: str = "predicted"
    draft_tokens: Count = 4
    step_tokens: Tokens | None = None
    chunk: Tokens | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deterministic: bool = False
    graphs: bool = True


def add(parser: argparse.ArgumentParser) -> None:
    """A flag for every option. What was not given stays out of the namespace."""
    for field in msgspec.structs.fields(Options):
        told = "" if field.default is NODEFAULT or field.default is None else f" (default {field.default})"
        # A flag without a value may not even say that it has no name for one from Python 3.14 on.
        kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
        if field.type is not bool:
            kind = {"metavar": _metavar(field.type)}
        parser.add_argument(
            f"--{_flag(field.name)}",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=_HELP.get(field.name, field.name.replace("_", " ")) + told,
            **kind,
        )


def given(namespace: argparse.Namespace) -> Options:
    """The options that were given, the rest by default. Raises ValueError that names the flag."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(Options):
        if not hasattr(namespace, field.name):
            continue
        try:
            value = msgspec.convert(getattr(namespace, field.name), field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"--{_flag(field.name)}: {error}") from error
        values[field.name] = value * _MIB if field.name == "memory" and isinstance(value, int) else value
    return Options(**values)  # pyright: ignore[reportArgumentType] - each was converted to its field's own type


def named(values: Mapping[str, object]) -> Options:
    """The options of these names, numbers as such or as text. Raises ValueError that names the one that is wrong."""
    found: dict[str, object] = {}
    fields = {field.name: field.type for field in msgspec.structs.fields(Options)}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"There is no option {name!r}. Known: {', '.join(fields)}.")
        try:
            found[name] = msgspec.convert(value, fields[name], strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name}: {error}") from error
    return Options(**found)  # pyright: ignore[reportArgumentType] - each was converted to its field's own type


def arguments(options: Options) -> list[str]:
    """The command line that says `options`: only what differs from the defaults."""
    found: list[str] = []
    for field in msgspec.structs.fields(Options):
        value = getattr(options, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            found.append(f"--{'' if value else 'no-'}{_flag(field.name)}")
        else:
            found += [f"--{_flag(field.name)}", str(value // _MIB if field.name == "memory" else value)]
    return found


def _flag(field: str) -> str:
    return _NAMES.get(field, field.replace("_", "-"))


def _metavar(kind: object) -> str:
    """`N` for numbers, the choices of a Literal, else `NAME`."""
    choices = [one for one in get_args(kind) if isinstance(one, str)]
    if choices:
        return "|".join(choices)
    return "N" if any(one in (int, float, Count, Tokens) for one in (kind, *get_args(kind))) else "NAME"
