"""The four flows between right and wrong, drawn: old on the left, new on the right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flipguard.report.content import Square

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT, NODE, GAP, TOP = 540.0, 250.0, 12.0, 34.0, 8.0
LEFT, RIGHT = 96.0, WIDTH - 96.0 - 12.0
# A flow of one sample in a million is still to be seen.
THINNEST = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A ribbon from a stretch on the left to a stretch on the right."""

    kind: str
    title: str
    left: float
    right: float
    thickness: float

    @property
    def path(self) -> str:
        """Its outline."""
        x0, x1, middle = LEFT + NODE, RIGHT, (LEFT + NODE + RIGHT) / 2
        a, b, t = self.left, self.right, self.thickness
        return (
            f"M{x0:.1f},{a:.1f}C{middle:.1f},{a:.1f} {middle:.1f},{b:.1f} {x1:.1f},{b:.1f}"
            f"V{b + t:.1f}C{middle:.1f},{b + t:.1f} {middle:.1f},{a + t:.1f} {x0:.1f},{a + t:.1f}Z"
        )


def flows(square: Square) -> tuple[Flow, ...]:
    """The four ribbons, each as thick as it has samples."""
    scale = (HEIGHT - 2 * TOP - GAP) / square.n

    def thick(samples: int) -> float:
        return max(scale * samples, THINNEST if samples else 0.0)

    kept, broken = thick(square.both_right.samples), thick(square.negative.samples)
    mended, wrong = thick(square.positive.samples), thick(square.both_wrong.samples)
    old_wrong = TOP + kept + broken + GAP
    new_wrong = TOP + kept + mended + GAP
    return (
        Flow(
            kind="kept",
            title=f"{square.both_right.samples:,} stay right",
            left=TOP,
            right=TOP,
            thickness=kept,
        ),
        Flow(
            kind="kept",
            title=f"{square.both_wrong.samples:,} stay wrong",
            left=old_wrong + mended,
            right=new_wrong + broken,
            thickness=wrong,
        ),
        Flow(
            kind="gain",
            title=f"{square.positive.samples:,} are mended",
            left=old_wrong,
            right=TOP + kept,
            thickness=mended,
        ),
        Flow(
            kind="harm",
            title=f"{square.negative.samples:,} break",
            left=TOP + kept,
            right=new_wrong,
            thickness=broken,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One end of the flows: a model, and whether it is right."""

    name: str
    samples: int
    x: float
    y: float
    height: float


def nodes(square: Square) -> tuple[Node, ...]:
    """The two ends of old on the left, and of new on the right."""
    kept, wrong, mended, broken = flows(square)
    cells = (square.both_right, square.both_wrong, square.positive, square.negative)
    stay, lost, gain, harm = (cell.samples for cell in cells)

    def node(name: str, samples: int, x: float, y: float, *parts: Flow) -> Node:
        height = max(sum(part.thickness for part in parts), 1.0)
        return Node(name=name, samples=samples, x=x, y=y, height=height)

    return (
        node("old right", stay + harm, LEFT, TOP, kept, broken),
        node("old wrong", gain + lost, LEFT, mended.left, mended, wrong),
        node("new right", stay + gain, RIGHT, TOP, kept, mended),
        node("new wrong", harm + lost, RIGHT, broken.right, broken, wrong),
    )


def alluvial(square: Square) -> Markup:
    """The drawing; its titles are what a pointer shows."""
    from markupsafe import Markup

    ribbons = flows(square)
    parts = [
        Markup('<path class="{}" d="{}"><title>{}</title></path>').format(f.kind, f.path, f.title)
        for f in ribbons
    ]
    for node in nodes(square):
        anchor, at = ("end", node.x - 8) if node.x == LEFT else ("start", node.x + NODE + 8)
        # A thin stretch has its words beside it, not below the edge of the drawing.
        middle = min(max(node.y + node.height / 2, TOP + 8), HEIGHT - 18)
        parts.append(
            Markup(
                '<rect class="node" x="{:.0f}" y="{:.1f}" width="{:.0f}" height="{:.1f}"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
            ).format(node.x, node.y, NODE, node.height, at, middle, anchor, node.name)
        )
        parts.append(
            Markup('<text class="small" x="{:.1f}" y="{:.1f}" text-anchor="{}">{:,}</text>').format(
                at, middle + 17, anchor, node.samples
            )
        )
    told = f"Flows: {', '.join(ribbon.title for ribbon in ribbons)}."
    return Markup(
        '<svg class="alluvial" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, told, Markup("").join(parts))
