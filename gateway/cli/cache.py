"""`nearhit cache …`: how the cache does, what is in it, why it did what it did, and what another budget would do.

`warm` stands in `gateway.cli.warming`. Knows: what the control plane answers and how it reads best. Does not know: SQL,
the policy.
"""

from typing import Any

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.explaining import tell_why
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.warming import warm_cache as warm_cache
from gateway.web.why import ending, sentence

_DEFAULT_BUDGETS = ("0.5%", "1%", "2%", "5%")


def stats_cache(*, days: float = 7.0, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Kept answers, hit rates, the measured wrong-hit rate beside its budget, audits and what the cache is worth.

    Parameters
    ----------
    days
        Over how many days look-ups and money are counted.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/cache/stats", params={"days": days})
    if options.json:
        show.json(found)
        return
    rows = [*found["data"], {**found["total"], "team": "total"}]
    budgets = f"{share(found['max_error_rate'])} of requests, {share(found['max_wrong_hit_rate'])} of hits"
    show.line(f"mode {found['mode']}, policy {found['policy']}; wrong answers allowed: {budgets}\n")
    show.line(f"look-ups since {found['since']}")
    columns = ("team", "project", "model", "kept", "look-ups", "exact", "semantic", "shared", "hit rate")
    columns = (*columns, "wrong hits (95 %)", "")
    show.table(columns, [_hits(row) for row in rows], right=columns[3:9])
    columns = ("team", "project", "model", "audited", "wrong", "undecided", "explored", "same", "reported wrong")
    columns = (*columns, "confirmed", "aliases", "quarantined", "judge errs")
    show.line("\nmeasured, since the store was first filled")
    show.table(columns, [_trust(row) for row in rows], right=columns[3:])
    columns = (
        "team",
        "project",
        "model",
        "saved",
        "taken back",
        "audits",
        "encoder",
        "net saved",
        "shadow hits",
        "shadow saving",
    )
    show.line(f"\nmoney since {found['since']}")
    show.table(columns, [_money(row) for row in rows], right=columns[3:])


def _names(row: dict[str, Any]) -> list[str]:
    return [show.text(row[name]) for name in ("team", "project", "model")]


def _hits(row: dict[str, Any]) -> list[str]:
    counts = [str(row[name]) for name in ("lookups", "hits_exact", "hits_semantic", "hits_shared")]
    counts.insert(0, "?" if row["entries"] is None else str(row["entries"]))
    braked = "BRAKED: serves nothing by meaning" if row["braked"] else ""
    return [*_names(row), *counts, show.percent(row["hit_rate"]), _wrong(row), braked]


def _wrong(row: dict[str, Any]) -> str:
    measured, told = row["wrong_hits"], row["trust"]
    if not measured["judged"]:
        return "nothing judged"
    part = f"{show.percent(measured['low'])} to {show.percent(measured['high'])}"
    more = f", {told['reported_wrong']} reported" if told["audited"] and told["reported_wrong"] else ""
    return f"{measured['wrong']} of {measured['judged']}{more} ({part})"


def _trust(row: dict[str, Any]) -> list[str]:
    told = row["trust"]
    names = ("audited", "audited_wrong", "undecided", "explored", "explored_same", "reported_wrong", "confirmed")
    counts = [str(told[name]) for name in (*names, "aliases", "quarantined")]
    return [*_names(row), *counts, show.percent(told["judge_flip_rate"])]


def _money(row: dict[str, Any]) -> list[str]:
    told = row["money"]
    amounts = [
        show.usd(told[name]) for name in ("saved_usd", "corrected_usd", "audit_usd", "embed_usd", "net_saved_usd")
    ]
    return [*_names(row), *amounts, str(told["shadow_hits"]), show.usd(told["shadow_usd"])]


def tune_cache(
    *,
    budget: list[str] | None = None,
    wrong_hits: str | None = None,
    since: str = "7d",
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """What other error budgets would have done to the logged traffic. Changes nothing.

    Parameters
    ----------
    budget
        Wrong answers among all requests, such as 0.5% or 0.005; may be given several times.
    wrong_hits
        Wrong answers among those served from the cache (default: as configured).
    since
        A time, a date, or a duration before now such as 7d.
    """
    try:
        rates = ",".join(f"{read_share(text):.9g}" for text in budget or _DEFAULT_BUDGETS)
        per_hit = None if wrong_hits is None else read_share(wrong_hits)
    except ValueError as error:
        show.line(str(error))
        return 2
    asked = {"budget": rates, "max_wrong_hit_rate": per_hit, "since": since}
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/cache/tune", params=asked)
    if options.json:
        show.json(found)
        return 0
    show.line(
        f"{found['requests']} requests since {found['start']} asked the cache; {found['explained']} still have their\n"
        f"explanation; {found['weighed']} of these, in {found['scopes']} scopes, had an answer near that might have\n"
        f"served; {found['judged']} of those were judged right or wrong\n"
    )
    rows = [_choice("as it was", found["as_it_was"])]
    rows += [_choice(share(row["max_error_rate"]), row) for row in found["data"]]
    columns = ("wrong requests", "wrong hits", "hits", "hit rate", "expected wrong of requests (95 %)")
    columns = (*columns, "of hits (95 %)", "judged", "saved")
    show.table(columns, rows, right=columns[2:4] + columns[6:])
    for warning in found["warnings"]:
        show.line(f"\n{warning}")
    return 0


def _choice(name: str, row: dict[str, Any]) -> list[str]:
    return [
        name,
        share(row["max_wrong_hit_rate"]),
        str(row["hits"]),
        show.percent(row["hit_rate"]),
        _between(row["wrong_per_request"]),
        _between(row["wrong_per_hit"]),
        str(row["judged"]),
        show.usd(row["saved_usd"]),
    ]


def _between(found: dict[str, Any]) -> str:
    if found["rate"] is None:
        return "-"
    return f"{found['rate'] * 100:.2f} % ({found['low'] * 100:.2f} to {found['high'] * 100:.2f})"


def share(value: float) -> str:
    """`0.5 %` with no more digits than it has."""
    return f"{value * 100:.6g} %"


def read_share(text: str) -> float:
    """`0.5%` or `0.005` -> 0.005. Raises ValueError in words."""
    try:
        value = float(text.rstrip("% ")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"not a share: {text!r}. Write 0.5% or 0.005.")
    return value


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
        As in the answer's x-request-id header, or the id of its body.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", f"/api/v1/requests/{request_id}")
    if options.json:
        show.json(found)
        return
    why: dict[str, Any] = found["why"] or {}
    row: dict[str, Any] = found["request"] or {}
    ended = ending(row.get("error"), row.get("attempts") or 0)
    known = bool(found["why"])
    show.line(sentence(row.get("cache"), why.get("reason"), why.get("semantic_bar"), known=known, ended=ended))
    tell_why(why)
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
        Words in the last text of the request, ignoring case; not in what stood before it, nor in the answer.
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
