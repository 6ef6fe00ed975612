"""`nearhit cache …`."""

from typing import Any

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.web.why import sentence


def stats_cache(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Kept answers, hit rates and the measured wrong-hit rate, per tenant and model."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/cache/stats")
    if options.json:
        show.json(found)
        return
    columns = ("team", "project", "model", "kept", "look-ups", "exact", "semantic", "hit rate", "wrong hits (95 %)")
    rows = [_row(row) for row in [*found["data"], {**found["total"], "team": "total"}]]
    show.table(columns, rows, right=columns[3:8])


def _row(row: dict[str, Any]) -> list[str]:
    counts = [str(row[name]) for name in ("entries", "lookups", "hits_exact", "hits_semantic")]
    names = [show.text(row[name]) for name in ("team", "project", "model")]
    return [*names, *counts, show.percent(row["hit_rate"]), _wrong(row["wrong_hits"])]


def _wrong(measured: dict[str, Any]) -> str:
    if not measured["judged"]:
        return "nothing judged"
    share = f"{show.percent(measured['low'])} to {show.percent(measured['high'])}"
    return f"{measured['wrong']} of {measured['judged']} ({share})"


def search_cache(
    words: str = "",
    *,
    limit: int = 20,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Kept answers whose request contains the words, newest first.

    Parameters
    ----------
    words
        Looked for anywhere in the request, ignoring case.
    limit
        How many at most.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/cache/entries", params={"contains": words or None, "limit": limit})
    if options.json:
        show.json(found["data"])
        return
    rows = [
        [
            str(row["id"]),
            f"{row['team']}/{row['project']}",
            row["model"],
            row["created"],
            show.usd(row["cost_usd"]),
            " ".join(row["text"].split())[:80],
        ]
        for row in found["data"]
    ]
    show.table(("entry", "tenant", "model", "kept", "cost afresh", "request"), rows, right=("cost afresh",))


def explain_cache(request_id: str, *, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Why a request was a hit or a miss.

    Parameters
    ----------
    request_id
        As in the answer's x-request-id header.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", f"/api/v1/requests/{request_id}")
    if options.json:
        show.json(found)
        return
    why: dict[str, Any] = found["why"] or {}
    row: dict[str, Any] = found["request"] or {}
    show.line(sentence(row.get("cache"), why.get("reason"), why.get("semantic_bar"), known=bool(found["why"])))
    candidates: list[dict[str, Any]] = why.get("candidates") or []
    if candidates:
        columns = ("entry", "similarity", "confidence", "guard")
        show.table(columns, [[show.text(one[column]) for column in columns] for one in candidates])
    for step in found["attempts"]:
        show.line(f"asked {step['provider']}/{step['model']}: {step['result']}, {show.usd(step['cost_usd'])}")


def purge_cache(
    *,
    team: str | None = None,
    project: str | None = None,
    model: str | None = None,
    contains: str | None = None,
    everything: bool = False,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Take kept answers out: those that match every filter given.

    Parameters
    ----------
    contains
        Words in the request, ignoring case.
    everything
        Needed when no filter is given.
    """
    given = {"team": team, "project": project, "model": model, "contains": contains}
    if not everything and not any(given.values()):
        show.line("give a filter, or --everything")
        return 2
    with control(settings_of(options)) as gateway:
        gone = gateway.ask("DELETE", "/api/v1/cache", params=given)
    if options.json:
        show.json(gone)
    else:
        show.line(f"{gone['purged']} kept answers are gone")
    return 0
