"""How numbers, times and decisions are written for people.

Money to four significant digits with the exact amount on hover; durations in the unit that reads best; a sentence for
every reason the cache can give. Does not know: pages, the database.
"""

from datetime import UTC, datetime

from markupsafe import Markup, escape

from policies.money import dollars, nano, usd

DASH = "\N{EN DASH}"

MARKS = {
    "hit-exact": ("exact hit", "The same request was answered before; the kept answer was served."),
    "hit-semantic": ("semantic hit", "A request that means the same was answered before; its answer was served."),
    "shared": ("shared", "An identical request was already under way; both were given its one answer."),
    "miss": ("miss", "Nothing kept could be served, so a fresh answer was fetched."),
    "bypass": ("bypass", "The cache was not asked."),
    "replayed": ("replayed", "The answer made before under the same idempotency key was told again."),
    "refresh": ("refresh", "The client asked for a fresh answer, which replaced the kept one."),
}


def money(value: int | None) -> Markup:
    """`$0.0002130`, exact amount as the tooltip. Two decimals from one dollar on."""
    if value is None:
        return escape(DASH)
    return Markup('<span class="money" title="exactly ${} USD">{}</span>').format(usd(value), money_text(value))


def amount(text: str | None) -> Markup:
    """The same for an exact decimal string; a dash for what is not known."""
    return escape(DASH) if text is None else money(nano(text))


def money_text(nano: int) -> str:
    sign, value = ("-" if nano < 0 else ""), dollars(abs(nano))
    if value == 0:
        return "$0"
    if value >= 1:
        return f"{sign}${value:,.2f}"
    digits = -value.adjusted() + 3
    text = f"{value:.{digits}f}"
    return f"{sign}${text}"


def millis(value: float | None) -> str:
    """`6.1 ms`, `812 ms`, `1.24 s`, `2.5 min`."""
    if value is None:
        return DASH
    if value < 10:
        return f"{value:.1f} ms"
    if value < 1_000:
        return f"{value:.0f} ms"
    if value < 60_000:
        return f"{value / 1_000:.2f} s"
    return f"{value / 60_000:.1f} min"


def percent(share: float | None) -> str:
    """`43.2 %`; None is a dash, because nothing divided by nothing is not 0."""
    return DASH if share is None else f"{share * 100:.1f} %"


def count(value: int | None) -> str:
    return DASH if value is None else f"{value:,}".replace(",", "\u202f")


def similarity(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"


def moment(at: float | None) -> Markup:
    """A time element in UTC, which the page's script turns into the reader's own zone."""
    if at is None:
        return escape(DASH)
    when = datetime.fromtimestamp(at, UTC)
    shown = when.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" data-local>{} UTC</time>').format(when.isoformat(), shown)


def minute(at: float | None) -> Markup:
    """The same without seconds, for instants that lie far away."""
    return _as(at, "minute")


def day(at: float | None) -> Markup:
    """The day alone."""
    return _as(at, "day")


def whole(at: float | None) -> Markup:
    """The same with date and seconds, whatever day it is."""
    return _as(at, "whole")


def _as(at: float | None, form: str) -> Markup:
    return Markup(str(moment(at)).replace("data-local", f'data-local="{form}"'))  # noqa: S704 - made here


def when(text: str | None, form: str = "minute") -> Markup:
    """An instant as the API writes it (RFC 3339, UTC); `form` `day` shows the day alone."""
    if text is None:
        return escape(DASH)
    at = datetime.fromisoformat(text)
    shown = at.strftime("%Y-%m-%d" if form == "day" else "%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}" data-local="{}">{}</time>').format(at.isoformat(), form, shown)


def mark(name: str) -> str:
    return MARKS.get(name, (name, ""))[0]


def mark_meaning(name: str) -> str:
    return MARKS.get(name, ("", ""))[1]
