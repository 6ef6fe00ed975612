"""`nearhit prices …`."""

from urllib.parse import quote

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong

_COLUMNS = ("model", "input_usd", "output_usd", "cached_usd", "status", "source", "version")


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


def set_prices(
    model: str,
    input_usd: str,
    output_usd: str,
    *,
    cached_usd: str | None = None,
    effective_from: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Set a price in USD per million tokens. Both 0 marks the model as free.

    Parameters
    ----------
    model
        provider/model, or '*/model' for every provider.
    input_usd
        USD per million prompt tokens.
    output_usd
        USD per million answer tokens.
    cached_usd
        USD per million prompt tokens that the provider had cached. Left out: as input.
    effective_from
        A time or a date. Left out: now.
    """
    body = {
        "input_usd": input_usd,
        "output_usd": output_usd,
        "cached_usd": cached_usd,
        "effective_from": effective_from,
    }
    with control(settings_of(options)) as gateway:
        made = gateway.ask("PUT", f"/api/v1/prices/{quote(model, safe='/*')}", body=body)
    if options.json:
        show.json(made)
    else:
        show.line(f"{made['model']}: ${made['input_usd']} in, ${made['output_usd']} out per million tokens")


def check_prices(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Models in use without a price; exit code 1 when there is one."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/prices")
    if options.json:
        show.json({"unpriced": found["unpriced"]})
    if found["unpriced"]:
        names = ", ".join(found["unpriced"])
        raise Wrong(f"no price for {names}. Set one: nearhit prices set PROVIDER/MODEL INPUT_USD OUTPUT_USD")
    if not options.json:
        show.line("every model in use has a price")
