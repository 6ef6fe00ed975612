"""`nearhit ledger …`: checks of the books."""

from pathlib import Path

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong


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
