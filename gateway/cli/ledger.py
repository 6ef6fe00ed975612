"""`nearhit ledger …`: checks and corrections of the books."""

from decimal import Decimal
from pathlib import Path

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong
from gateway.invoice_files import Shape


def verify_ledger(*, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Rebuild every balance from its entries and every charge from its tokens; exit code 1 on any difference."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/ledger/verify")
    if options.json:
        show.json(found)
    elif found["agrees"]:
        show.line("every balance follows from its entries")
    else:
        for problem in found["problems"]:
            show.line(problem)
    return 0 if found["agrees"] else 1


def reconcile_ledger(*, bill: Path, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Compare the entries with a provider's own bill; exit code 1 on any difference that no label explains.

    Parameters
    ----------
    bill
        One JSON object per line, as `nearhit scripted --bill` writes it.
    """
    try:
        content = bill.read_bytes()
    except OSError as error:
        raise Wrong(f"cannot read {bill}: {error.strerror}") from error
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/ledger/reconcile", content=content)
    if options.json:
        show.json(found)
        return 0 if found["agrees"] else 1
    show.line(
        f"{found['calls']} calls on the bill: {found['exact']} agree exactly, {found['estimated']} are estimated; "
        f"billed {show.usd(found['billed_usd'])}, posted {show.usd(found['posted_usd'])} "
        f"({show.usd(found['over_usd'])} labelled above the bill)"
    )
    for problem in found["problems"]:
        show.line(problem)
    if found["omitted"]:
        show.line(f"and {found['omitted']} more")
    return 0 if found["agrees"] else 1


def adjust_ledger(
    entry: str,
    delta_usd: str,
    *,
    reason: str,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Correct what an attempt cost by another entry beside it.

    Parameters
    ----------
    entry
        The entry's id, `REQUEST.N`.
    delta_usd
        What is added to its cost, negative to take off: a decimal such as -0.0012.
    reason
        Kept with the entry.
    """
    with control(settings_of(options)) as gateway:
        body = {"entry_id": entry, "delta_usd": delta_usd, "reason": reason}
        made = gateway.ask("POST", "/api/v1/ledger/adjust", body=body)
    if options.json:
        show.json(made)
    else:
        show.line(f"{made['id']}: booked in {made['month']}")


def invoice_ledger(  # noqa: PLR0913 - one name per flag
    provider: str,
    *,
    file: Path,
    shape: Shape = "generic",
    tolerance: float = 0.001,
    day: str | None = None,
    model: str | None = None,
    amount: str | None = None,
    alias: tuple[str, ...] = (),
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Compare the ledger with a provider's invoice, by model and day; exit code 1 on a difference nothing explains.

    Parameters
    ----------
    provider
        As `providers` in the configuration names it.
    file
        The invoice.
    shape
        openai: its cost export (CSV, or the JSON of its costs API). anthropic: its cost or usage export.
        generic: any CSV; say which columns hold what.
    tolerance
        Share of the invoice that a model may differ by on a day.
    day
        Column of the day, for the shape generic.
    model
        Column of the model.
    amount
        Column of the amount in USD.
    alias
        NAME-ON-THE-INVOICE=NAME-IN-THE-LEDGER, as often as needed.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise Wrong(f"cannot read {file}: {error.strerror}") from error
    asked = {"provider": provider, "shape": shape, "tolerance": tolerance, "day": day, "model": model, "amount": amount}
    with control(settings_of(options)) as gateway:
        found = gateway.ask(
            "POST", "/api/v1/ledger/invoice", params={**asked, "alias": list(alias) or None}, content=content
        )
    if options.json:
        show.json(found)
        return 0 if found["agrees"] else 1
    money = ("ledger_usd", "invoice_usd", "difference_usd")
    rows = [
        [row["day"], row["model"], *(show.usd(row[name]) for name in money), _percent(row["share"]), row["why"]]
        for row in found["rows"]
    ]
    rows.append(["total", "", *(show.usd(found[name]) for name in money), _percent(found["share"]), ""])
    show.table(("day", "model", "ledger", "invoice", "difference", "share", "why"), rows, right=money)
    if not any(Decimal(row["ledger_usd"]) for row in found["rows"]):
        show.line(f"the ledger has nothing of {provider!r} on these days; providers are called as in nearhit.yaml")
    show.line(f"compared: {found['first_day']} to {found['last_day']}, the days of the invoice, and no others")
    for name in found["unpriced"]:
        show.line(f"used and not priced here: {name}")
    return 0 if found["agrees"] else 1


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:+.3%}"
