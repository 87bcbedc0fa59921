"""The article's pictures as SVG, drawn from numbers by key: real text in the page's language, colours from the page's CSS.

Each is drawn twice, for a wide and for a narrow page, so that its text keeps its size; the CSS shows one of them. Lengths are
CSS pixels. A picture has a title and a description; its numbers stand as links in the table below it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from spillway.paper.format import number, with_unit
from spillway.paper.markup import Marked
from spillway.paper.view import Numbers

WIDE, NARROW = 660, 340
MODEL = "independent (binomial)"
Point = tuple[float, float]


@dataclass
class Drawing:
    """SVG elements on an area of some size."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def add(self, element: str, css: str = "", text: str | None = None, **attributes: float | str) -> None:
        """One element; numbers are rounded to a tenth of a pixel, `_` in names becomes `-`."""
        shown = "".join(f' {name.replace("_", "-")}="{_short(value)}"' for name, value in attributes.items())
        shown = (f' class="{css}"' if css else "") + shown
        self.parts.append(f"<{element}{shown}/>" if text is None else f"<{element}{shown}>{escape(text)}</{element}>")

    def text(self, x: float, y: float, text: str, css: str = "", anchor: str = "start") -> None:
        self.add("text", css, text, x=x, y=y, text_anchor=anchor)

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        self.add("line", css, x1=x1, y1=y1, x2=x2, y2=y2)

    def path(self, points: Iterable[Point], css: str) -> None:
        self.add("polyline", css, points=" ".join(f"{_short(x)},{_short(y)}" for x, y in points))

    def svg(self, name: str, title: str, description: str, css: str) -> str:
        """The picture, with its text alternative; `name` is unique in the page."""
        box = f"{_short(self.width)} {_short(self.height)}"
        return (
            f'<svg class="{css}" role="img" viewBox="0 0 {box}" aria-labelledby="{name}-title" aria-describedby="{name}-desc">'
            f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
            + "".join(self.parts)
            + "</svg>"
        )


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Speed:
    """Agents at once, and the numbers that say how fast the median turn and all but the slowest twentieth are: key, groups."""

    streams: float
    median: tuple[str, ...]
    p5: tuple[str, ...]


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(high: float, most: int) -> list[float]:
    """Round values from 0 to at most `high`, no more than `most` steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * most >= high)
    return [step * index for index in range(int(high / step + 1e-9) + 1)]


class Charts:
    """The pictures of one page: `numbers` prints plain text, `sentence` says a sentence without links, `label` reads a name."""

    def __init__(self, numbers: Numbers, sentence: Callable[[str], str], label: Callable[[str], str]) -> None:
        self.numbers, self.sentence, self.label = numbers, sentence, label

    def experts(self) -> Marked:
        """The experts of one layer, those at work for one token lit; which ones is an example."""
        total, active = (round(self._value(f"published.experts_per_{of}")) for of in ("layer", "token"))
        # Steps of the golden ratio spread any count of them over the field without a pattern.
        lit = {int(total * ((0.11 + 0.618034 * index) % 1)) for index in range(active)}

        def draw(width: float) -> Drawing:
            columns = 32 if width == WIDE else 24
            cell = width / columns
            drawing = Drawing(width, cell * math.ceil(total / columns))
            for index in range(total):
                x, y = cell * (index % columns), cell * (index // columns)
                size, css = (0.86, "lit") if index in lit else (0.62, "idle")
                inset = (1 - size) / 2 * cell
                drawing.add("rect", css, x=x + inset, y=y + inset, width=size * cell, height=size * cell, rx=0.15 * cell)
            return drawing

        return self._both("experts.chart", draw)

    def memory(self) -> Marked:
        """Weights on a card without and with the plan, and what a card holds."""
        card = self._value("published.card")
        bars = [("without", "published.card_without"), ("with", "published.card_with")]

        def draw(width: float) -> Drawing:
            drawing = Drawing(width, 168)
            x = Scale(0, 1.06 * max(card, *(self._value(key) for _, key in bars)), 0, width)
            for index, (name, key) in enumerate(bars):
                y, value = 44 + 58 * index, self._value(key)
                drawing.text(0, y, self.sentence(f"memory.chart.{name}"), "label")
                drawing.add("rect", "published-fill", x=0, y=y + 8, width=x(min(value, card)), height=28)
                if value > card:
                    drawing.add("rect", "over", x=x(card), y=y + 8, width=x(value) - x(card), height=28)
                drawing.text(x(min(value, card)) - 8, y + 27, self.numbers.u(key), "on-fill", "end")
            drawing.line(x(card), 18, x(card), 150, "limit")
            told = f"{self.sentence('memory.chart.card')}: {self.numbers.u('published.card')}"
            drawing.text(x(card), 12, told, "label", "end")
            return drawing

        return self._both("memory.chart", draw)

    def agents(self, measured: bool) -> Marked:
        """Speed of one agent against the agents at work: the article's, and beside it ours, a panel for each arm."""
        floor = self._value("published.floor")
        panels = [("published", self.sentence("stools.chart.published"), self._published_speeds())]
        if measured:
            arms = self.numbers.parts("agents.median", 0)
            panels += [("ours", self.arm_heading(arm), self._own_speeds(arm)) for arm in arms]

        def draw(width: float) -> Drawing:
            columns = 2 if width == WIDE and len(panels) > 1 else 1
            each, height = (width - 32 * (columns - 1)) / columns, 270
            drawing = Drawing(width, (height + 24) * math.ceil(len(panels) / columns) - 24)
            for index, (whose, heading, speeds) in enumerate(panels):
                left, top = (each + 32) * (index % columns), (height + 24) * (index // columns)
                drawing.text(left, top + 13, heading, f"heading {whose}-ink")
                self._speeds(drawing, whose, speeds, floor, (left, top, each, height))
            return drawing

        return self._both("stools.chart", draw)

    def arm_heading(self, arm: str) -> str:
        """What stands above the speeds measured here; of an arm, if the experiment has some."""
        ours = self.sentence("stools.chart.ours")
        return f"{ours}: {self.label(arm)}" if arm else ours

    def published_streams(self) -> list[int]:
        """The numbers of agents at once for which the article states a median, smallest first."""
        groups = self.numbers.groups("published.agents")
        found = [group.removeprefix("agents.s").removesuffix("_median") for group in groups if group.endswith("_median")]
        return sorted(int(streams) for streams in found)

    def _published_speeds(self) -> list[Speed]:
        keys = [(streams, ("published.agents", f"agents.s{streams}_")) for streams in self.published_streams()]
        return [Speed(float(streams), (key, group + "median"), (key, group + "p5")) for streams, (key, group) in keys]

    def _own_speeds(self, arm: str) -> list[Speed]:
        cells = self.numbers.rising("agents.streams", arm)
        return [
            Speed(self._value("agents.streams", arm, cell), ("agents.median", arm, cell), ("agents.p5", arm, cell))
            for cell in cells
        ]

    def _speeds(
        self, drawing: Drawing, whose: str, speeds: Sequence[Speed], floor: float, area: tuple[float, float, float, float]
    ) -> None:
        left, top, width, height = area
        medians = [(speed.streams, self._value(*speed.median)) for speed in speeds]
        # The 5th percentile of few turns is no number but a word that says so, and is not drawn.
        slow = [(speed.streams, self.numbers.raw(*speed.p5)) for speed in speeds]
        slowest = [(streams, float(value)) for streams, value in slow if not isinstance(value, str)]
        most = max(streams for streams, _ in medians)
        high = 1.12 * max(floor, *(value for _, value in medians))
        x, y = Scale(0.7, most + 0.3, left + 34, left + width - 2), Scale(0, high, top + height - 40, top + 38)
        drawing.text(left, top + 30, self.sentence("stools.chart.y"), "note")
        self._rows(drawing, y, ticks(high, 5), left, left + width)
        for streams, _ in medians:
            drawing.text(x(streams), top + height - 22, self._digits(streams), "note", "middle")
        drawing.text(left + width, top + height - 4, self.sentence("stools.chart.x"), "note", "end")
        drawing.line(left + 34, y(floor), left + width, y(floor), "limit")
        crowded = abs(y(medians[0][1]) - y(floor)) < 25  # the first point's label stands where the line's would
        named_at, anchor = (left + width, "end") if crowded else (left + 38, "start")
        drawing.text(named_at, y(floor) - 5, self.sentence("stools.chart.floor"), "note strong halo", anchor)
        for points, radius, css in ((slowest, 2.5, " dashed"), (medians, 4, "")):
            drawing.path([(x(streams), y(value)) for streams, value in points], f"line {whose}-line{css}")
            for streams, value in points:
                drawing.add("circle", f"{whose}-fill", cx=x(streams), cy=y(value), r=radius)
        for speed, (streams, value) in zip(speeds, medians, strict=True):
            last = streams == most  # its label would stand outside
            at = (x(streams) + (2 if last else 6), y(value) - (10 if last else 7))
            drawing.text(*at, self.numbers.n(*speed.median), "value halo", "end" if last else "start")

    def overload_developers(self) -> list[str]:
        """The numbers of developers that the chart shows: until the clock's share passes its upper edge."""
        groups = self.numbers.groups("seats.overload_clock")
        edge = 1.2 * self._value("seats.level_loose")
        return list(itertools.takewhile(lambda group: self._value("seats.overload_clock", group) <= edge, groups))

    def overload(self) -> Marked:
        """Share of the time with more agents busy than there is room for, by the clock and as felt, with the levels."""
        groups = self.overload_developers()
        levels = [self._value(f"seats.level_{name}") for name in ("strict", "loose")]
        top = 1.2 * levels[-1]
        curves = {
            name: [(float(group), self._value(f"seats.overload_{name}", group)) for group in groups]
            for name in ("clock", "felt")
        }

        def draw(width: float) -> Drawing:
            drawing = Drawing(width, 330)
            x, y = Scale(0, len(groups) + 1, 44, width - 6), Scale(0, top, 282, 34)
            drawing.text(0, 14, self.sentence("guests.chart.y"), "note")
            for name, level in zip(("strict", "loose"), levels, strict=True):
                drawing.line(44, y(level), width, y(level), "limit")
                if width == WIDE:
                    told = f"{self.sentence('guests.chart.level')} {self.numbers.u(f'seats.level_{name}')}"
                    drawing.text(48, y(level) - 6, told, "note strong")
            self._rows(drawing, y, ticks(top, 6), 0, width, "%")
            for developers in ticks(len(groups), 6 if width == WIDE else 4):
                drawing.text(x(developers), 300, self._digits(developers), "note", "middle")
            drawing.text(width, 322, self.sentence("guests.chart.x"), "note", "end")
            for name, points in curves.items():
                drawing.path(
                    [(x(n), y(share)) for n, share in _up_to(points, top)], f"line ours-line{' dashed' * (name == 'felt')}"
                )
            for name, key in (("clock", "seats.clock"), ("felt", "seats.experienced")):
                seats = self._value(key, MODEL)
                share = dict(curves[name])[seats]
                drawing.line(x(seats), y(0), x(seats), y(share), "drop")
                drawing.add("circle", "ours-fill", cx=x(seats), cy=y(share), r=5)
                drawing.text(x(seats), y(levels[0]) - 10, self.numbers.n(key, MODEL), "big halo", "middle")
                height, side, anchor = (0.25 * top, 12, "start") if name == "clock" else (0.7 * top, -10, "end")
                beside = x(_up_to(curves[name], height)[-1][0]) + side
                drawing.text(beside, y(height) + 4, self.sentence(f"guests.chart.{name}"), "label halo", anchor)
            return drawing

        return self._both("guests.chart", draw)

    def assumptions_by_seats(self) -> list[str]:
        """The changed assumptions, the one that leaves the fewest seats last."""
        groups = self.numbers.groups("seats.assumed")
        return sorted(groups, key=lambda group: self._value("seats.assumed", group), reverse=True)

    def assumptions(self) -> Marked:
        """Seats if one assumption changes, with the unchanged count and the break-even."""
        groups = self.assumptions_by_seats()
        base, pays = self._value("seats.clock", MODEL), self._value("published.break_even")
        most = max(self._value("seats.assumed", group) for group in groups)

        def draw(width: float) -> Drawing:
            beside = width == WIDE
            row, left = (25, 318.0) if beside else (42, 0.0)
            top, bar = 44, 15
            drawing = Drawing(width, top + row * len(groups))
            x = Scale(0, most, left, width - 26)
            pays_told, base_told = self.numbers.n("published.break_even"), self.numbers.n("seats.clock", MODEL)
            for name, value, told, css, y, anchor in (
                ("break_even", pays, pays_told, "limit", 34, "end"), ("unchanged", base, base_told, "base", 14, "middle")
            ):  # fmt: skip
                drawing.line(x(value), y + 6, x(value), drawing.height, css)
                drawing.text(x(value), y, f"{self.sentence(f'breaks.chart.{name}')}: {told}", "note strong halo", anchor)
            for index, group in enumerate(groups):
                y, seats = top + row * index, self._value("seats.assumed", group)
                under, css = y + (0 if beside else 18), "ours-fill" if seats >= pays else "ours-weak"
                end = (left - 12, "end") if beside else (0, "start")
                drawing.text(end[0], y + 12, self.label(group), "label halo", end[1])
                drawing.add("rect", css, x=left, y=under, width=x(seats) - left, height=bar)
                drawing.text(x(seats) + 6, under + 12, self.numbers.n("seats.assumed", group), "value halo")
            return drawing

        return self._both("breaks.chart", draw)

    def bar(self) -> Marked:
        """The bar: as many stools as agents fit, and as many guests as developers, as many of them seated as are busy."""
        stools, guests = (round(self._value(key)) for key in ("published.capacity", "published.seats_strict"))
        seated = min(stools, round(guests * self._value("published.q") / 100))
        return self._both("guests.picture", lambda width: draw_bar(width, stools, guests, seated))

    def _rows(self, drawing: Drawing, y: Scale, at: Iterable[float], left: float, right: float, unit: str = "") -> None:
        for value in at:
            drawing.line(left + 34 + (10 if unit else 0), y(value), right, y(value), "grid")
            told = with_unit(self._digits(value), unit, self.numbers.language)
            drawing.text(left + 28 + (8 if unit else 0), y(value) + 4, told, "note", "end")

    def _digits(self, value: float) -> str:
        return number(value, 0, self.numbers.language)

    def _value(self, key: str, *parts: str) -> float:
        return float(self.numbers.raw(key, *parts))

    def _both(self, key: str, draw: Callable[[float], Drawing]) -> Marked:
        title, description = self.sentence(f"{key}.title"), self.sentence(f"{key}.desc")
        name = key.replace(".", "-")
        return Marked(
            "\n".join(
                draw(width).svg(f"{name}-{css}", title, description, css) for width, css in ((WIDE, "wide"), (NARROW, "narrow"))
            )
        )


def _up_to(points: Sequence[Point], top: float) -> list[Point]:
    """The part of a rising curve below `top`, cut where it crosses."""
    below = [point for point in points if point[1] <= top]
    if len(below) < len(points):
        (x0, y0), (x1, y1) = points[len(below) - 1], points[len(below)]
        below.append((x0 + (x1 - x0) * (top - y0) / (y1 - y0), top))
    return below


def draw_bar(width: float, stools: int, guests: int, seated: int) -> Drawing:
    """A counter with stools, some taken, and the other guests standing about, in rows behind one another."""
    wide = width == WIDE
    drawing = Drawing(width, 238 if wide else 366)
    bar_end, floor = (0.54 * width if wide else width), 234.0
    _shelves(drawing, bar_end)
    drawing.add("rect", "counter", x=8, y=120, width=bar_end - 16, height=floor - 120)
    drawing.add("rect", "plank", x=0, y=110, width=bar_end, height=13, rx=4)
    step = bar_end / stools
    for index in range(stools):
        middle = step * (index + 0.5)
        if index < seated:
            drawing.add("path", "glass", d=f"M{middle + 22:.1f} 92 h13 l-2 18 h-9 z")
            _person(drawing, middle, 176, "lit")
        _stool(drawing, middle, 174, floor)
    drawing.line(0, floor, width, floor, "ground")
    standing, columns = guests - seated, 6 if wide else 9
    left, right = (bar_end + 26, width - 4) if wide else (12, width - 12)
    rows = math.ceil(standing / columns)
    for row in range(rows):
        here = min(columns, standing - row * columns)
        baseline = (floor if wide else drawing.height - 4) - 36 * (rows - 1 - row)
        for column in range(here):
            x = left + (right - left) * (column + 0.5 + (0.22 if row % 2 else -0.22)) / columns
            # Nobody stands in line, and people are of different heights.
            _person(
                drawing,
                x + (0, 5, -4, 2, -6)[(3 * row + column) % 5],
                baseline,
                "idle",
                (1, 1.08, 0.94, 1.04)[(row + column) % 4],
            )
    return drawing


def _shelves(drawing: Drawing, bar_end: float) -> None:
    """Boards of bottles behind the counter; heights repeat, so that every build draws the same."""
    for board, (y, heights) in enumerate(((40, (26, 20, 30, 22, 34, 18)), (86, (22, 30, 18, 26, 20, 32)))):
        drawing.line(28, y, bar_end - 28, y, "board")
        x, index = 40.0 + 9 * board, 0
        while x < bar_end - 46:
            body, slope, neck = (part * heights[index % len(heights)] for part in (0.6, 0.15, 0.25))
            outline = f"M{x:.1f} {y - 2} v-{body:.1f} l3 -{slope:.1f} v-{neck:.1f} h5 v{neck:.1f} l3 {slope:.1f} v{body:.1f} z"
            drawing.add("path", "bottle", d=outline)
            x, index = x + (18 if index % 5 else 32), index + 1


def _stool(drawing: Drawing, x: float, seat: float, floor: float) -> None:
    for side in (-1, 1):
        drawing.line(x + 11 * side, seat + 5, x + 17 * side, floor, "legs")
    drawing.line(x - 15, seat + 36, x + 15, seat + 36, "legs")
    drawing.add("rect", "seat", x=x - 19, y=seat, width=38, height=8, rx=4)


def _person(drawing: Drawing, x: float, y: float, css: str, tall: float = 1.0) -> None:
    """Somebody from behind, standing or sitting on `y`."""
    torso = 48 * tall
    drawing.add(
        "path", f"person {css}", d=f"M{x - 13:.1f} {y} l1 -{torso - 15:.1f} q0 -15 12 -15 q12 0 12 15 l1 {torso - 15:.1f} z"
    )
    drawing.add("circle", f"person {css}", cx=x, cy=y - torso - 10, r=9)
