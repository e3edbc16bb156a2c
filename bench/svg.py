"""A picture as SVG text: readable in a light and in a dark page, with its colours chosen by prefers-color-scheme."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Told apart by hue and by lightness; lines by their dashes too.
_LIGHT = ("#1d5fd1", "#c2410c", "#0f766e", "#7e22ce", "#a16207", "#57606a")
_DARK = ("#6ea8fe", "#fb923c", "#2dd4bf", "#c084fc", "#facc15", "#9aa4af")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 5", "1 4")
COLOURS = len(_LIGHT)


def _colours(ground: str, ink: str, faint: str, colours: Sequence[str]) -> str:
    own = "".join(
        f".s{at}{{stroke:{colour}}}.f{at}{{fill:{colour}}}.t{at}{{fill:{colour}}}" for at, colour in enumerate(colours)
    )
    return f".ground{{fill:{ground}}}text{{fill:{ink}}}.faint{{fill:{faint}}}.grid{{stroke:{faint}}}{own}"


_STYLE = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif}.title{font-size:16px;font-weight:600}"
    ".faint{font-size:12px}.bold{font-weight:600}.grid{stroke-width:1;stroke-opacity:.35}"
    ".line{fill:none;stroke-width:2.2;stroke-linejoin:round}"
    + _colours("#ffffff", "#1f2328", "#59636e", _LIGHT)
    + f"@media (prefers-color-scheme:dark){{{_colours('#0d1117', '#e6edf3', '#9198a1', _DARK)}}}"
)


class Picture:
    """Grows by what is drawn onto it; coordinates are pixels from the upper left."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._title, self._description = title, description
        self._shapes: list[str] = []

    def text(self, x: float, y: float, said: str, *, kind: str = "", anchor: str = "start") -> None:
        """`kind`: title, faint, bold, or t0, t1 … for a colour; `anchor`: start, middle, end."""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(said)}</text>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: int) -> None:
        """Filled."""
        size = f'width="{max(width, 1):.1f}" height="{height:.1f}"'
        self._shapes.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" class="f{colour}"/>')

    def rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A line of the grid."""
        self._shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="grid"/>')

    def line(self, points: Sequence[tuple[float, float]], colour: int, *, dots: bool = False) -> None:
        """From point to point."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{_DASHES[colour]}"' if _DASHES[colour] and not dots else ""
        self._shapes.append(f'<polyline points="{path}" class="line s{colour}"{dash}/>')
        if dots:
            self._shapes += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="f{colour}"/>' for x, y in points]

    def document(self) -> str:
        """The file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}"'
            f' viewBox="0 0 {self.width} {self.height}" role="img">'
        )
        told = f"<title>{escape(self._title)}</title><desc>{escape(self._description)}</desc><style>{_STYLE}</style>"
        return "\n".join([head, told, '<rect width="100%" height="100%" class="ground"/>', *self._shapes, "</svg>\n"])
