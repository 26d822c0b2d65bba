"""Charts as SVG text, small enough to be read: axes, lines, bars and cells.

A chart is as wide as a phone, 360 units, so that its letters have about the size of the text
around it; it may be scaled up.  Lines differ in dashes as well as in colour, for eyes and printers
that see none.  Every chart is described for those who hear it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tacit.report.axes import Axis, short

WIDTH = 360
LETTER = 5.9  # a letter's width at the charts' size of 11
# Distinct for most kinds of colour vision, and dark enough on white.
COLOURS = ("#0060a8", "#b34700", "#00735a", "#8f3f79", "#5a5a5a")
DASHES = ("", "6 3", "2 3", "9 3 2 3", "1 2")


@dataclass(frozen=True)
class Line:
    """A curve and its name; a marker stands on every point."""

    name: str
    points: Sequence[tuple[float, float]]
    is_plain: bool = False  # no markers: a curve of many points


def line_chart(title: str, about: str, x: Axis, y: Axis, lines: Sequence[Line]) -> Markup:
    """Lines over two axes, with a legend below."""
    frame = Frame(left=12 + LETTER * max(len(short(tick)) for tick in y.ticks()))
    parts = [_axes(frame, x, y)]
    for number, line in enumerate(lines):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        at = [(frame.x(x.place(a)), frame.y(y.place(b))) for a, b in line.points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"'
            f' stroke-dasharray="{dash}"/>'
        )
        if not line.is_plain:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.3" fill="{colour}"/>' for a, b in at]
    legend, height = _legend([line.name for line in lines], frame.bottom + 44)
    return _svg(title, about, height, [*parts, legend])


def bar_chart(
    title: str,
    about: str,
    x: Axis,
    y: Axis,
    edges: Sequence[float],
    stacks: Sequence[tuple[str, Sequence[int]]],
) -> Markup:
    """A histogram: counts between edges, one part of each bar on the other."""
    frame = Frame(left=40)
    parts = [_axes(frame, x, y)]
    floor = [0] * (len(edges) - 1)
    for number, (_, counts) in enumerate(stacks):
        for place, count in enumerate(counts):
            if count:
                left, right = (frame.x(x.place(edge)) for edge in edges[place : place + 2])
                top = frame.y(y.place(floor[place] + count))
                height = frame.y(y.place(floor[place])) - top
                parts.append(
                    f'<rect x="{left + 0.5:.1f}" y="{top:.1f}" width="{right - left - 1:.1f}"'
                    f' height="{height:.1f}" fill="{COLOURS[number]}"/>'
                )
                floor[place] += count
    legend, height = _legend([name for name, _ in stacks], frame.bottom + 44, swatches=True)
    return _svg(title, about, height, [*parts, legend])


def level_chart(title: str, about: str, levels: Sequence[tuple[str, float, str]]) -> Markup:
    """Named values as bars from 0 to the right: name, value, and the value in words."""
    most = max([value for _, value, _ in levels] + [1e-9])
    parts = []
    for number, (name, value, said) in enumerate(levels):
        top = 4 + 34 * number
        length = max(270 * value / most, 1.0)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(
            f'<text x="2" y="{top + 11}">{escape(name)}</text>'
            f'<rect x="2" y="{top + 16}" width="{length:.1f}" height="11" fill="{colour}"/>'
            f'<text x="{length + 8:.1f}" y="{top + 25}" font-weight="600">{escape(said)}</text>'
        )
    return _svg(title, about, 8 + 34 * len(levels), parts)


def heat_map(
    title: str,
    about: str,
    columns: tuple[str, Sequence[float]],
    rows: tuple[str, Sequence[float]],
    cells: dict[tuple[float, float], tuple[float, str]],
) -> Markup:
    """A cell for every pair of a column's and a row's value: a share from 0 to 1, and its text."""
    (across, over), (down, under) = columns, rows
    left, top = 64, 20
    width, height = (WIDTH - left - 4) / len(over), 38
    parts = [
        f'<text x="{left}" y="12" class="soft">{escape(across)} across, {escape(down)} down</text>'
    ]
    for i, row in enumerate(under):
        y = top + 18 + i * height
        parts.append(
            f'<text x="{left - 8}" y="{y + 23:.1f}" text-anchor="end">{escape(short(row))}</text>'
        )
        for j, column in enumerate(over):
            x = left + j * width
            if (column, row) in cells:
                parts.append(_heat_cell(x, y, width, height, *cells[column, row]))
    for j, column in enumerate(over):
        x = left + (j + 0.5) * width
        parts.append(
            f'<text x="{x:.1f}" y="{top + 12}" text-anchor="middle">{escape(short(column))}</text>'
        )
    return _svg(title, about, top + 24 + height * len(under), parts)


def _heat_cell(x: float, y: float, width: float, height: float, share: float, said: str) -> str:
    white, full = (238, 243, 248), (0, 64, 120)
    mixed = (round(a + (b - a) * share) for a, b in zip(white, full, strict=True))
    colour = "#{:02x}{:02x}{:02x}".format(*mixed)
    ink = "#ffffff" if share > 0.45 else "#1a1a1a"
    return (
        f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2:.1f}" height="{height - 2}"'
        f' fill="{colour}"/><text x="{x + width / 2:.1f}" y="{y + 23:.1f}" text-anchor="middle"'
        f' fill="{ink}">{escape(said)}</text>'
    )


@dataclass(frozen=True)
class Frame:
    """Where the data goes inside of a chart."""

    left: float
    right: float = WIDTH - 12
    top: float = 24
    bottom: float = 200

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        return self.bottom - share * (self.bottom - self.top)


def _axes(frame: Frame, x: Axis, y: Axis) -> str:
    parts = [f'<text x="2" y="12" class="soft">{escape(y.label)}</text>']
    for tick in y.ticks():
        at = frame.y(y.place(tick))
        parts.append(
            f'<line x1="{frame.left:.1f}" x2="{frame.right}" y1="{at:.1f}" y2="{at:.1f}"'
            f' class="grid"/><text x="{frame.left - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">'
            f"{short(tick)}</text>"
        )
    for tick in x.ticks():
        at = frame.x(x.place(tick))
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{frame.bottom}" y2="{frame.bottom + 4}"'
            f' class="axis"/><text x="{at:.1f}" y="{frame.bottom + 16}" text-anchor="middle">'
            f"{short(tick)}</text>"
        )
    middle = (frame.left + frame.right) / 2
    parts.append(
        f'<line x1="{frame.left:.1f}" x2="{frame.right}" y1="{frame.bottom}" y2="{frame.bottom}"'
        f' class="axis"/><text x="{middle:.1f}" y="{frame.bottom + 31}" text-anchor="middle"'
        f' class="soft">{escape(x.label)}</text>'
    )
    return "".join(parts)


def _legend(names: Sequence[str], top: float, *, swatches: bool = False) -> tuple[str, float]:
    """Names after a piece of their line, in as many rows as it takes; and where it ends."""
    parts, x, y = [], 4.0, top + 8
    for number, name in enumerate(names):
        width = 30 + LETTER * len(name) + 12
        if x > 4 and x + width > WIDTH:
            x, y = 4.0, y + 17
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        if swatches:
            parts.append(f'<rect x="{x + 8}" y="{y - 9}" width="14" height="10" fill="{colour}"/>')
        else:
            parts.append(
                f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}"'
                f' stroke-width="2" stroke-dasharray="{dash}"/>'
            )
        parts.append(f'<text x="{x + 29:.1f}" y="{y}">{escape(name)}</text>')
        x += width
    return "".join(parts), y + 8


def _svg(title: str, about: str, height: float, parts: Sequence[str]) -> Markup:
    body = "".join(parts)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}: {escape(about)}">{body}</svg>'
    )
