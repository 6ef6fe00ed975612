"""`nearhit prices …`."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.price_flags import RateFlags, TermFlags, body_of
from gateway.cli.wrong import Wrong

_COLUMNS = ("model", "input_usd", "output_usd", "cached_usd", "status", "source", "version")
_FROM, _UNTIL = "effective_from", "effective_until"
_PARTS = ("input", "cached", "output", "calls", "lookups", "total", "saved")


def show_prices(model: str | None = None, *, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """The price in force of every model in use, or of one, in USD per million tokens.

    Parameters
    ----------
    model
        provider/model.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/prices", params={"model": model})
    if options.json:
        show.json(found)
        return
    rows = [[show.text(row[column]) for column in _COLUMNS] for row in found["data"]]
    show.table(("model", "input", "output", "cached input", "status", "source", "version"), rows, right=_COLUMNS[1:4])
    for row in found["data"] if model else ():
        for line in _more(row):
            show.line(line)
        if row["replaced_from"]:
            show.line(f"another price, set already, from {row['replaced_from']}")
    show.line(_table(found["table"]))


def _more(row: dict[str, Any], *, begun: bool = True) -> list[str]:
    """What a price has beside its first three rates. `begun`: it is in force, so that one of its hours may be now."""
    known: dict[str, str | None] = row["rates"] or {}
    rates = {name: value for name, value in known.items() if value is not None}
    told = [f"{name.removesuffix('_usd')}: {value}" for name, value in rates.items()]
    told += [
        f"prompts above {tier['above']}: {tier['input_usd']} in, {tier['output_usd']} out" for tier in row["tiers"]
    ]
    told += [
        f"{hours['days']} {hours['start']}-{hours['end']} UTC: {hours['input_usd']} in, {hours['output_usd']} out"
        + (" (now)" if hours["now"] and begun else "")
        for hours in row["hours"]
    ]
    told += [f"service tier {name}: {percent} %" for name, percent in row["service"].items()]
    dates = [f"{word} {row[name]}" for word, name in (("from", _FROM), ("until", _UNTIL)) if row[name]]
    told += [", ".join(dates)] if dates else []
    return told + [f"stale: {why}" for why in row["stale"]]


def _table(found: dict[str, Any]) -> str:
    return f"list prices: {found['name']} {found['version']}, as of {found['as_of']} ({found['age_days']} days ago)"


def set_prices(  # noqa: PLR0913 - one name per flag
    model: str,
    input_usd: str | None = None,
    output_usd: str | None = None,
    *,
    rates: RateFlags = RateFlags(),  # noqa: B008 - frozen
    terms: TermFlags = TermFlags(),  # noqa: B008 - frozen
    file: Path | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Set a price in USD per million tokens. All rates 0 mark the model as free.

    Parameters
    ----------
    model
        provider/model, or '*/model' for every provider.
    input_usd
        USD per million prompt tokens.
    output_usd
        USD per million answer tokens.
    file
        A JSON object with all of it, as `PUT /api/v1/prices/…` takes it; flags go before it.
    """
    body = body_of((input_usd, output_usd), rates, terms, file)
    with control(settings_of(options)) as gateway:
        made = gateway.ask("PUT", f"/api/v1/prices/{quote(model, safe='/*')}", body=body)
    if options.json:
        show.json(made)
        return
    whole = made["rates"]  # what hours and tiers are a share of
    show.line(f"{made['model']}: ${whole['input_usd']} in, ${whole['output_usd']} out per million tokens")
    for line in _more(made, begun=_FROM not in body):
        show.line(line)
    if made.get("replaced_from"):
        show.line(f"only until {made['replaced_from']}: a price that begins then counts from there on")


def check_prices(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Models without a price, the most asked for first (then exit code 1), and prices that may be wrong by now."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/prices/check")
    if options.json:
        show.json(found)
    else:
        rows = [[one["model"], str(one["refused"]), show.text(one["asked"])] for one in found["unpriced"]]
        if rows:
            show.table(("without a price", "requests refused", "asked for as"), rows, right=("requests refused",))
        for one in found["stale"]:
            show.line(f"{one['model']}: {'; '.join(one['why'])}")
        show.line(_table(found["table"]))
    if found["unpriced"]:
        names = ", ".join(one["model"] for one in found["unpriced"])
        raise Wrong(f"no price for {names}. Set one: nearhit prices set PROVIDER/MODEL INPUT_USD OUTPUT_USD")
    if not options.json:
        show.line("every model in use has a price")


def engine_prices(  # noqa: PLR0913 - one name per flag
    engine: str = "local",
    model: str = "demo",
    *,
    bench: Path | None = None,
    prefill_tps: float | None = None,
    decode_tps: float | None = None,
    hour_usd: str | None = None,
    busy_share: float = 1.0,
    assumed: bool = False,
    effective_from: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Price an engine's tokens by its hour and what was measured.

    Parameters
    ----------
    engine
        Its name under `engines`.
    model
        The model it serves.
    bench
        What `nearhit engine bench` printed; its last line is the result.
    prefill_tps
        Tokens read a second, instead of the file's.
    decode_tps
        Tokens written a second, with several requests at once.
    hour_usd
        What an hour costs. Left out: as configured.
    busy_share
        Of its paid hours, how many it is expected to work.
    assumed
        The speeds are not measured; the price is labelled so.
    effective_from
        A time or a date. Left out: now.
    """
    speeds = _speeds(bench, prefill_tps, decode_tps)
    body = {**speeds, "busy_share": busy_share, "measured": not assumed}
    body |= {name: value for name, value in (("hour_usd", hour_usd), ("effective_from", effective_from)) if value}
    with control(settings_of(options)) as gateway:
        made = gateway.ask("POST", f"/api/v1/prices/engines/{quote(engine)}/{quote(model)}", body=body)
    if options.json:
        show.json(made)
    else:
        rates = f"${made['input_usd']} in, ${made['output_usd']} out per million tokens"
        show.line(f"{made['model']}: {rates} ({made['status']}), version {made['version']}")


def _speeds(bench: Path | None, prefill: float | None, decode: float | None) -> dict[str, float]:
    """From the flags, else from the last line of the file. Raises Wrong."""
    found: dict[str, Any] = {}
    if bench is not None:
        try:
            lines = bench.read_bytes().strip().splitlines()
            found = msgspec.json.decode(lines[-1] if lines else b"", type=dict[str, Any])
        except OSError as error:
            raise Wrong(f"cannot read {bench}: {error.strerror}") from error
        except msgspec.DecodeError as error:
            raise Wrong(f"the last line of {bench} is no result of `nearhit engine bench`: {error}") from error
    given = {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode}
    speeds = {name: found.get(name) if value is None else value for name, value in given.items()}
    for name, value in speeds.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong(f"{name} is missing: give --bench FILE, or --prefill-tps and --decode-tps")
    return {name: float(value) for name, value in speeds.items() if value is not None}


def breakeven_prices(
    engine: str = "local",
    *,
    prompt: int | None = None,
    completion: int | None = None,
    hours: float = 24.0,
    models: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """From which load on an engine is cheaper than each upstream model.

    Parameters
    ----------
    engine
        Its name under `engines`.
    prompt
        Tokens of a typical prompt. Left out: the mean of 30 days.
    completion
        Tokens of a typical answer. Left out: the mean of 30 days.
    hours
        Hours a day that the engine is paid for.
    models
        Upstream models to compare with, with commas between. Left out: those in use.
    """
    params = {"engine": engine, "prompt": prompt, "completion": completion, "hours": hours, "models": models}
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/prices/break-even", params=params)
    if options.json:
        show.json(found)
        return
    show.line(
        f"{found['engine']}/{found['model']} ({found['status']}): {show.usd(found['day_usd'])} a day, "
        f"at most {found['requests_per_day_at_most']} requests of {found['prompt_tokens']} + "
        f"{found['completion_tokens']} tokens ({found['mix']}), {show.usd(found['request_usd'])} each when never idle"
    )
    rows = [
        [
            one["model"],
            show.usd(one["request_usd"]),
            "never" if one["requests_per_day"] is None else str(one["requests_per_day"]),
            show.percent(one["utilization"]),
            "yes" if one["reachable"] else "no",
        ]
        for one in found["data"]
    ]
    columns = ("upstream", "a request", "cheaper from requests a day", "that is busy", "possible")
    show.table(columns, rows, right=columns[1:])


def calculate_prices(  # noqa: PLR0913 - one name per flag
    model: str,
    *,
    prompt: int,
    completion: int,
    requests: int,
    cached_share: str = "0",
    hit_rate: str = "0",
    reasoning: int = 0,
    days: int = 30,
    lookups: bool = False,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """What a use would cost a day and a month.

    Parameters
    ----------
    model
        provider/model, or a configured name.
    prompt
        Tokens of a prompt.
    completion
        Tokens of an answer.
    requests
        Requests a day.
    cached_share
        Of the prompt, what the provider's cache has, 0 to 1.
    hit_rate
        Of the requests, what this gateway's cache answers, 0 to 1.
    reasoning
        Of the answer's tokens, those thought and not said.
    days
        Days of a month.
    lookups
        Add what it costs to embed every prompt.
    """
    body = {
        "model": model,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "requests_per_day": requests,
        "cached_share": cached_share,
        "hit_rate": hit_rate,
        "reasoning_tokens": reasoning,
        "days_per_month": days,
        "lookups": lookups,
    }
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/prices/calculate", body=body)
    if options.json:
        show.json(found)
        return
    show.line(f"{found['model']} ({found['status']}): {show.usd(found['request_usd'])} a request")
    rows = [[part, show.usd(found["day"][f"{part}_usd"]), show.usd(found["month"][f"{part}_usd"])] for part in _PARTS]
    show.table(("", "a day", "a month"), rows, right=("a day", "a month"))
    if (own := found["engine"]) is not None:
        show.line(
            f"as hardware: {own['count']} engine(s) {show.percent(own['busy'])} busy, "
            f"{show.usd(own['day_usd'])} a day, {show.usd(own['month_usd'])} a month"
        )
    for line in found["assumed"]:
        show.line(f"assumed: {line}")
