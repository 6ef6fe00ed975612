"""`python -m cache.bench.curve RESULT.json OUT.svg`: how many hits, how many of them right, from a suite's file.

One panel per stream: the policy that learns, one point per error budget, against a fixed cosine threshold at every
height. Knows the file of `gateway.bench.cache_suite` and plain SVG. Colours suit a light and a dark page; nothing is
loaded from anywhere. Does not know how anything was measured.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec
from msgspec import Struct

from cache.bench.data import Unreadable

_PANEL, _TALL, _LEFT, _TOP, _GAP = 390, 230, 72, 64, 74
_FLOOR = 0.7  # of precision: below, nobody would serve
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #3b4350 }
  .title { font-size: 14px; font-weight: 600 } .small { font-size: 10.5px }
  .axis { stroke: #8a93a0; fill: none } .grid { stroke: #8a93a0; stroke-opacity: .25 }
  .ours { stroke: #0b6e99; fill: none; stroke-width: 2 } .ours-dot { fill: #0b6e99 }
  .fixed { stroke: #c2570c; fill: none; stroke-width: 2; stroke-dasharray: 5 4 } .fixed-dot { fill: #c2570c }
  @media (prefers-color-scheme: dark) {
    text { fill: #d5dbe3 } .ours { stroke: #58b8e0 } .ours-dot { fill: #58b8e0 }
    .fixed { stroke: #f0955a } .fixed-dot { fill: #f0955a }
  }
"""


class Point(Struct, frozen=True):
    """Shares of one; `label`: the budget or the threshold. `orders`: mean of so many."""

    coverage: float
    precision: float
    label: str
    orders: int


class Panel(Struct, frozen=True):
    """One stream."""

    name: str
    ours: list[Point]
    fixed: list[Point]


class _Run(Struct):
    stream: str
    policy: str
    seed: int
    flip: float
    requests: int
    hits: int = 0
    wrong: int = 0
    budget: float = 0.0
    max_wrong_hit_rate: float = 1.0
    similarity: float = 0.0
    seen: bool = False


class _File(Struct):
    date: str
    streams: list[_Run]


def panels(runs: Sequence[_Run]) -> list[Panel]:
    """Streams that have both curves, in the order of the file."""
    found: list[Panel] = []
    for name in dict.fromkeys(run.stream for run in runs):
        mine = [run for run in runs if run.stream == name and not run.seen and run.flip == 0.0]
        ours = [run for run in mine if run.policy == "learned" and run.max_wrong_hit_rate >= 1.0]
        fixed = [run for run in mine if run.policy == "threshold"]
        if ours and fixed:
            learned, flat = _points(ours, "budget"), _points(fixed, "similarity")
            found.append(Panel(name.partition(".")[0], learned, flat))
    return found


def _points(runs: Sequence[_Run], by: str) -> list[Point]:
    """Means over orders, by budget or by threshold."""
    points: list[Point] = []
    for value in sorted({float(getattr(run, by)) for run in runs}):
        same = [run for run in runs if getattr(run, by) == value]
        hits, wrong, requests = (sum(getattr(run, name) for run in same) for name in ("hits", "wrong", "requests"))
        if hits:
            label = f"{value:.4g}" if by == "similarity" else f"{value * 100:.4g} %"
            points.append(Point(hits / requests, 1.0 - wrong / hits, label, len(same)))
    return points


def drawn(found: Sequence[Panel], date: str) -> str:
    """The picture. Raises Unreadable where there is nothing to draw."""
    if not found:
        raise Unreadable("no stream with runs of the policy that learns and of fixed thresholds")
    columns = min(2, len(found))
    wide = columns * (_PANEL + _LEFT) + 30
    tall = -(-len(found) // columns) * (_TALL + _GAP) + _TOP
    size = f'viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>Right hits against hits, {escape(date[:10])}</title><style>{_STYLE}</style>",
        *_legend(date),
    ]
    for i, panel in enumerate(found):
        x = _LEFT + (i % columns) * (_PANEL + _LEFT)
        y = _TOP + (i // columns) * (_TALL + _GAP)
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _legend(date: str) -> list[str]:
    return [
        f'<line class="ours" x1="{_LEFT}" y1="18" x2="{_LEFT + 34}" y2="18"/>',
        f'<text x="{_LEFT + 42}" y="22">nearhit, one point per budget (wrong answers per request)</text>',
        f'<line class="fixed" x1="{_LEFT + 430}" y1="18" x2="{_LEFT + 464}" y2="18"/>',
        f'<text x="{_LEFT + 472}" y="22">fixed cosine threshold · {escape(date[:10])}</text>',
    ]


def _panel(panel: Panel) -> list[str]:
    shown = [point for point in (*panel.ours, *panel.fixed) if point.precision >= _FLOOR]
    most = max((point.coverage for point in shown), default=0.1)
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / step <= 6)
    reach = step * (int(most / step) + 1)

    def at(point: Point) -> tuple[float, float]:
        return point.coverage / reach * _PANEL, (1.0 - point.precision) / (1.0 - _FLOOR) * _TALL

    parts = [f'<text class="title" x="0" y="-10">{escape(panel.name)}</text>', *_axes(step, reach)]
    for kind, points in (("fixed", panel.fixed), ("ours", panel.ours)):
        inside = [point for point in points if point.precision >= _FLOOR]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, inside))
        parts.append(f'<polyline class="{kind}" points="{line}"/>')
        for point in inside:
            x, y = at(point)
            parts.append(
                f'<circle class="{kind}-dot" cx="{x:.1f}" cy="{y:.1f}" r="{4 if kind == "ours" else 2}">'
                f"<title>{escape(point.label)}: hits {point.coverage:.1%}, right {point.precision:.1%}, "
                f"{point.orders} orders</title></circle>"
            )
            if kind == "ours" or point.label in {"0.8", "0.9", "0.95"}:
                dx, dy, anchor = (-5, 13, "end") if kind == "fixed" else (5, -8, "start")
                parts.append(
                    f'<text class="small" x="{x + dx:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}">'
                    f"{escape(point.label)}</text>"
                )
    return parts


def _axes(step: float, reach: float) -> list[str]:
    parts: list[str] = []
    for i in range(round(reach / step) + 1):
        x = i * step / reach * _PANEL
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_TALL}"/>')
        parts.append(f'<text class="small" x="{x:.1f}" y="{_TALL + 15}" text-anchor="middle">{i * step:.0%}</text>')
    for i in range(round((1.0 - _FLOOR) / 0.05) + 1):
        y = i * 0.05 / (1.0 - _FLOOR) * _TALL
        parts.append(f'<line class="grid" x1="0" y1="{y:.1f}" x2="{_PANEL}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="-6" y="{y + 4:.1f}" text-anchor="end">{1 - i * 0.05:.0%}</text>')
    middle = f"translate(-44 {_TALL / 2:.0f}) rotate(-90)"
    return [
        *parts,
        f'<path class="axis" d="M0 0V{_TALL}H{_PANEL}"/>',
        f'<text x="{_PANEL / 2:.0f}" y="{_TALL + 33}" text-anchor="middle">coverage: hits of all requests</text>',
        f'<text text-anchor="middle" transform="{middle}">precision: right of the hits</text>',
    ]


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 drawn, 1 the file cannot be used (the message says why), 2 usage."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m cache.bench.curve RESULT.json OUT.svg\n")
        return 2
    source, out = map(Path, arguments)
    try:
        read = msgspec.json.decode(source.read_bytes(), type=_File)
        picture = drawn(panels(read.streams), read.date)
    except (OSError, msgspec.DecodeError, Unreadable) as error:
        sys.stderr.write(f"{source}: {error}\n")
        return 1
    out.write_text(picture, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
