"""`nearhit usage recompute`, `coverage` and `whatif`: what charges rest on, and what if."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong


def recompute_usage(
    *,
    month: str | None = None,
    check: bool = False,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Recompute every charge from its tokens and its price version; exit code 1 on any difference.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC). Left out: this month.
    check
        Say only whether all is right, and what is not.
    start
        A time, a date, or a duration before now such as 7d, instead of a month.
    end
        The same.
    """
    params = {"month": month, "from": start, "to": end}
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/usage/recompute", params=params)
    if options.json:
        show.json(found)
        return 0 if found["agrees"] else 1
    if not check:
        columns = ("model", "price", "entries", "charged", "recomputed")
        rows = [
            [one["model"], one["price"], str(one["entries"]), show.usd(one["charged_usd"]), show.usd(one["right_usd"])]
            for one in found["data"]
        ]
        show.table(columns, rows, right=columns[2:])
    for one in found["differences"]:
        right = "unknown: its price version is not kept" if one["right_usd"] is None else f"{one['right_usd']} USD"
        show.line(f"{one['id']} ({one['model']}, {one['price']}): charged {one['charged_usd']} USD, right is {right}")
    if found["omitted"]:
        show.line(f"and {found['omitted']} more")
    if found["agrees"]:
        bounded = f"; {found['bounded']} at their reservation, as nobody counted" if found["bounded"] else ""
        show.line(
            f"{found['entries']} charges follow from their rows, {show.usd(found['charged_usd'])} in all{bounded}"
        )
    return 0 if found["agrees"] else 1


def coverage_usage(
    *,
    month: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """How much of the spend was counted, how much is estimated, and what had no price.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC). Left out: this month.
    start
        A time, a date, or a duration before now such as 7d, instead of a month.
    end
        The same.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/usage/coverage", params={"month": month, "from": start, "to": end})
    if options.json:
        show.json(found)
        return
    rows = [
        ["confirmed", show.usd(found["confirmed_usd"]), show.percent(found["confirmed_share"])],
        ["estimated", show.usd(found["estimated_usd"]), show.percent(found["estimated_share"])],
        ["all", show.usd(found["cost_usd"]), ""],
    ]
    show.table(("spend", "USD", "share"), rows, right=("USD", "share"))
    refused = show.text(found["unpriced_requests"])
    show.line(f"refused without a price: {refused} of {found['requests']} requests")
    if found["assumed"]:
        show.line(f"prices that are assumed: {', '.join(found['assumed'])}")


def whatif_usage(
    *,
    month: str | None = None,
    model: tuple[str, ...] = (),
    prices: Path | None = None,
    cache: Literal["as-it-was", "off", "exact"] = "as-it-was",
    hit_rate: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """A month once more, under other prices, models or another cache.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC). Left out: this month.
    model
        provider/model=provider/model: the second asked in place of the first; may be repeated.
    prices
        A JSON object of terms by provider/model, each as `PUT /api/v1/prices/…` takes it, without dates.
    cache
        off: every hit is asked; exact: hits by meaning are.
    hit_rate
        The share of each model's requests that is a hit, 0 to 1, instead of `cache`.
    """
    body: dict[str, Any] = {"models": dict(_swap(text) for text in model), "cache": {"mode": cache}}
    if month is not None:
        body["month"] = month
    if hit_rate is not None:
        body["cache"]["hit_rate"] = hit_rate
    if prices is not None:
        body["prices"] = _read(prices)
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/whatif", body=body)
    if options.json:
        show.json(found)
        return
    columns = ("model", "instead", "requests", "hits", "was", "would be", "difference")
    rows = [
        [
            one["model"],
            "-" if one["target"] == one["model"] else one["target"],
            str(one["requests"]),
            str(one["hits"]),
            show.usd(one["actual_usd"]),
            show.usd(one["would_usd"]),
            show.usd(one["difference_usd"]),
        ]
        for one in found["data"]
    ]
    amounts = (show.usd(found[name]) for name in ("actual_usd", "would_usd", "difference_usd"))
    show.table(columns, [*rows, ["total", "", "", "", *amounts]], right=columns[2:])
    for line in found["assumed"]:
        show.line(f"assumed: {line}")
    for name in found["unused"]:
        show.line(f"never asked in that time: {name}")


def _swap(text: str) -> tuple[str, str]:
    asked, equals, target = text.partition("=")
    if not equals or not asked or not target:
        raise Wrong(f"{text!r}: write it like openai/gpt-5=openai/gpt-5-mini")
    return asked, target


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise Wrong(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise Wrong(f"{path} is no JSON object: {error}") from error
