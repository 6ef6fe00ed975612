"""Flags that together say a price, and a file that does: what `nearhit prices set` sends.

Knows: how terms are typed in a shell. Does not know: what they mean (`gateway.price_terms`).
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from gateway.cli.wrong import Wrong


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RateFlags:
    """USD per million tokens of classes; left out, a class costs what its whole does."""

    cached_usd: Annotated[str | None, Parameter(help="Prompt tokens that the provider had cached.")] = None
    cache_write_usd: Annotated[str | None, Parameter(help="Prompt tokens written to its cache (5 minutes).")] = None
    cache_write_1h_usd: Annotated[str | None, Parameter(help="Those written for an hour.")] = None
    reasoning_usd: Annotated[str | None, Parameter(help="Answer tokens that are thought and not said.")] = None
    audio_input_usd: Annotated[str | None, Parameter(help="Audio in the prompt.")] = None
    audio_output_usd: Annotated[str | None, Parameter(help="Audio in the answer.")] = None
    image_input_usd: Annotated[str | None, Parameter(help="Images in the prompt.")] = None
    image_output_usd: Annotated[str | None, Parameter(help="Images in the answer.")] = None
    request_usd: Annotated[str | None, Parameter(help="USD per call.")] = None
    web_search_usd: Annotated[str | None, Parameter(help="USD per search of the web by the provider.")] = None
    file_search_usd: Annotated[str | None, Parameter(help="USD per search of its files.")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TermFlags:
    """When which rates hold."""

    tier: Annotated[
        tuple[str, ...], Parameter(help="Long prompts: 200000=200% or 200000=INPUT/OUTPUT[/CACHED]; may be repeated.")
    ] = ()
    hours: Annotated[
        tuple[str, ...], Parameter(help="Hours in UTC: mon-fri@16:30-00:30=50%; may be repeated, the first counts.")
    ] = ()
    service: Annotated[tuple[str, ...], Parameter(help="Percent by service tier: batch=50%; may be repeated.")] = ()
    effective_from: Annotated[str | None, Parameter(help="A time or a date. Left out: now.")] = None
    effective_until: Annotated[str | None, Parameter(help="A time or a date. Left out: without end.")] = None


def body_of(
    base: tuple[str | None, str | None], rates: RateFlags, terms: TermFlags, file: Path | None
) -> dict[str, Any]:
    """What to send: the file, and over it what the flags say. Raises Wrong."""
    body: dict[str, Any] = {} if file is None else _file(file)
    flags = {"input_usd": base[0], "output_usd": base[1], **asdict(rates)}
    flags |= {"effective_from": terms.effective_from, "effective_until": terms.effective_until}
    body |= {name: value for name, value in flags.items() if value is not None}
    if terms.tier:
        body["tiers"] = [_tier(text) for text in terms.tier]
    if terms.hours:
        body["hours"] = [_hours(text) for text in terms.hours]
    if terms.service:
        body["service"] = dict(_pair(text, "--service batch=50%") for text in terms.service)
    return body


def _file(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise Wrong(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Wrong(f"{path} is no JSON object: {error}") from error


def _tier(text: str) -> dict[str, Any]:
    above, value = _pair(text, "--tier 200000=200%")
    if not above.isascii() or not above.isdigit():
        raise Wrong(f"--tier {text}: {above!r} is no number of tokens")
    if value.endswith("%"):
        return {"above": int(above), "percent": value}
    names = ("input_usd", "output_usd", "cached_usd")
    parts = value.split("/")
    if not 2 <= len(parts) <= len(names):
        raise Wrong(f"--tier {text}: write {above}=INPUT/OUTPUT or {above}=INPUT/OUTPUT/CACHED")
    return {"above": int(above), **dict(zip(names, parts, strict=False))}


def _hours(text: str) -> dict[str, Any]:
    when, percent = _pair(text, "--hours mon-fri@16:30-00:30=50%")
    days, _, times = when.rpartition("@")
    start, dash, end = times.partition("-")
    if not dash:
        raise Wrong(f"--hours {text}: write DAYS@START-END=PERCENT, such as mon-fri@16:30-00:30=50%")
    return {"start": start, "end": end, "percent": percent} | ({"days": days} if days else {})


def _pair(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise Wrong(f"{text!r}: write it like {example}")
    return name.strip(), value.strip()
