"""Place the labels of a chart's points so that none covers anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Place = tuple[float, float]
NEAR = 20  # if a label is farther away, a line leads to it
GAPS, TURNS = (8, 12, 18, 26, 38, 54, 72), 24
PASSES = 3
# Penalties, in pixels of distance.
ASTRAY, COVERING, COLLIDING, OUTSIDE = 12.0, 60.0, 200.0, 1000.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def distance(self, place: Place) -> float:
        """The distance of a place from the box; 0 inside."""
        across = max(self.left - place[0], 0, place[0] - self.right)
        return math.hypot(across, max(self.top - place[1], 0, place[1] - self.bottom))

    def nearest(self, place: Place) -> Place:
        """The point of the box that is nearest to a place."""
        return (
            min(max(place[0], self.left), self.right),
            min(max(place[1], self.top), self.bottom),
        )

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


@dataclass(frozen=True, slots=True)
class Spot:
    """A label at one of its possible places, with its penalty there, without that for other labels."""

    box: Box
    lead: tuple[Box, ...]  # the boxes of the line that leads to it
    unfitness: float


def placed(
    points: Sequence[Place], sizes: Sequence[Place], drawn: Sequence[Sequence[Box]], frame: Box
) -> list[Box]:
    """Return a box for the label of every point.

    Args:
        points: Where the points are.
        sizes: Width and height of the labels.
        drawn: The boxes that a label should not cover, per point; the boxes of no point come last.
        frame: The box in which all labels must be.

    Labels are moved one by one to their best place among the others, several times. The result
    depends on which label is first, so several orders are tried.
    """
    spots = [list(_spots(i, points, sizes[i], drawn, frame)) for i in range(len(points))]
    forwards = list(range(len(points)))
    orders = [order[i:] + order[:i] for order in (forwards, forwards[::-1]) for i in forwards]
    found = [_settled(spots, order) for order in orders]
    best = min(found, key=_trouble)
    return [best[i].box for i in forwards]


def _spots(
    i: int, points: Sequence[Place], size: Place, drawn: Sequence[Sequence[Box]], frame: Box
) -> Iterator[Spot]:
    """The possible places of a label: around its point, the nearest first."""
    (x, y), (width, height) = points[i], size
    others = [place for j, place in enumerate(points) if j != i]
    marks = [box for boxes in drawn for box in boxes]
    foreign = [box for j, boxes in enumerate(drawn) if j != i for box in boxes]
    for gap in GAPS:
        for step in range(TURNS):
            turn = 2 * math.pi * step / TURNS
            left = x + math.cos(turn) * (width / 2 + gap) - width / 2
            top = y + math.sin(turn) * (height / 2 + gap) - height / 2
            box = Box(left, top, left + width, top + height)
            away = box.distance((x, y))
            lead = tuple(_line((x, y), box.nearest((x, y)))) if away > NEAR else ()
            unfitness = away + ASTRAY * sum(box.distance(other) < away + 6 for other in others)
            unfitness += COVERING * sum(box.meets(mark) for mark in marks)
            unfitness += COVERING * sum(any(b.meets(mark) for b in lead) for mark in foreign)
            yield Spot(box, lead, unfitness + (0 if frame.holds(box) else OUTSIDE))


def _line(start: Place, end: Place) -> Iterator[Box]:
    """A line as a sequence of small boxes."""
    for step in range(12):
        x, y = (a + (b - a) * (step + 0.5) / 12 for a, b in zip(start, end, strict=True))
        yield Box(x - 1, y - 1, x + 1, y + 1)


def _settled(spots: Sequence[Sequence[Spot]], order: Sequence[int]) -> dict[int, Spot]:
    chosen: dict[int, Spot] = {}
    for _ in range(PASSES):
        for i in order:
            others = [spot for j, spot in chosen.items() if j != i]
            worth = [spot.unfitness + _collisions(spot, others) for spot in spots[i]]
            chosen[i] = spots[i][worth.index(min(worth))]
    return chosen


def _collisions(spot: Spot, others: Sequence[Spot]) -> float:
    return COLLIDING * sum(
        spot.box.meets(other.box)
        or any(spot.box.meets(part) for part in other.lead)
        or any(other.box.meets(part) for part in spot.lead)
        for other in others
    )


def _trouble(chosen: dict[int, Spot]) -> float:
    """The penalty of all labels together."""
    every = list(chosen.values())
    pairs = sum(_collisions(spot, every[:i]) for i, spot in enumerate(every))
    return pairs + sum(spot.unfitness for spot in every)
