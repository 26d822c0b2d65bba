"""Draw which package of tacit imports which, from the source itself.

    python docs/package_graph.py           # writes docs/images/packages.svg and packages.tsv
    python docs/package_graph.py --check   # exits with 1 if the picture is out of date

The picture leaves out arrows that follow from two others.  `packages.tsv` holds the arrows that it
shows, one to a line, and `--check` compares those and not the pixels.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "packages.svg"
TABLE = PICTURE.with_suffix(".tsv")
PAPERS = "tacit_papers"  # a package of its own, on top
LEFT_OUT = {"recipes", "__init__", "__main__"}  # TOML files; no parts of their own

Edge = tuple[str, str]


def edges(src: Path = ROOT / "src") -> set[Edge]:
    """Every arrow of the source: (importing package, imported package)."""
    graph: set[Edge] = set()
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        owner = _package(".".join(parts))
        targets = {_package(name) for name in _imported(path)}
        graph.update((owner, target) for target in targets - {owner, ""} if owner)
    return graph


def _package(module: str) -> str:
    """The package directly under tacit that a module belongs to; empty for all others."""
    top, _, rest = module.partition(".")
    if top == PAPERS:
        return PAPERS
    package = rest.partition(".")[0]
    return package if top == "tacit" and package not in LEFT_OUT else ""


def _imported(path: Path) -> set[str]:
    """Dotted names of all that a module imports, at any depth; `from tacit import x` is tacit.x."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if not name.startswith("tacit.__")}


def reduced(graph: set[Edge]) -> set[Edge]:
    """The arrows that do not follow from two others: enough to see who stands on whom."""

    @cache
    def below(package: str) -> frozenset[str]:
        direct = {target for owner, target in graph if owner == package}
        return frozenset(direct.union(*(below(target) for target in direct)))

    return {
        (owner, target)
        for owner, target in graph
        if not any(
            target in below(other) for start, other in graph if start == owner and other != target
        )
    }


def levels(graph: set[Edge]) -> dict[str, int]:
    """How many packages stand on top of each other below a package, at most."""

    @cache
    def level(package: str) -> int:
        return 1 + max((level(target) for owner, target in graph if owner == package), default=-1)

    return {package: level(package) for edge in graph for package in edge}


def draw(graph: set[Edge], file: Path) -> None:
    """A box for each package, foundations at the bottom; an arrow points at what is imported."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "tacit", "svg.fonttype": "none", "font.family": "sans-serif"}
    from matplotlib import pyplot

    arrows, position = reduced(graph), _positions(graph)
    rows = 1 + max(height for _, height in position.values())
    figure, axes = pyplot.subplots(figsize=(8, 0.8 * rows + 0.4))
    box = {"boxstyle": "round,pad=0.4", "facecolor": "#eef3fb", "edgecolor": "#4c6ea8"}
    labels = {
        package: axes.text(x, y, package, ha="center", va="center", fontsize=11, bbox=box)
        for package, (x, y) in position.items()
    }
    figure.canvas.draw()  # the boxes have their sizes now, so that arrows can end at them
    for owner, target in sorted(arrows):
        axes.annotate(
            "",
            xy=position[target],
            xytext=position[owner],
            arrowprops={
                "arrowstyle": "-|>",
                "color": "#8a94a6",
                "patchA": labels[owner].get_bbox_patch(),
                "patchB": labels[target].get_bbox_patch(),
                "shrinkA": 0,
                "shrinkB": 1,
                "connectionstyle": f"arc3,rad={_bend(position[owner], position[target])}",
            },
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.5, rows - 0.5)
    axes.axis("off")
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _positions(graph: set[Edge]) -> dict[str, tuple[float, int]]:
    """(x, level) of each package; in a row they stand in the order of those that import them."""
    heights, arrows = levels(graph), reduced(graph)
    position: dict[str, tuple[float, int]] = {}

    def middle(package: str) -> float:
        above = [position[owner][0] for owner, target in arrows if target == package]
        return sum(above) / len(above) if above else 0.5

    for height in sorted(set(heights.values()), reverse=True):
        row = sorted(package for package, own in heights.items() if own == height)
        row.sort(key=middle)
        position |= {
            package: ((index + 1) / (len(row) + 1), height) for index, package in enumerate(row)
        }
    return position


def _bend(start: tuple[float, int], end: tuple[float, int]) -> float:
    """Arrows straight down that pass a row go around the box that is in their way."""
    return 0.5 if start[1] - end[1] > 1 and abs(start[0] - end[0]) < 0.05 else 0.0


def stored(table: Path = TABLE) -> set[Edge]:
    """The arrows that the picture shows."""
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    return {(owner, target) for owner, target in rows}


def main(arguments: list[str]) -> int:
    """Draw, or with --check compare; returns the exit code."""
    graph = edges()
    now = reduced(graph)
    if arguments == ["--check"]:
        before = stored()
        for sign, changed in (("new", now - before), ("gone", before - now)):
            for owner, target in sorted(changed):
                print(f"{sign}: {owner} imports {target}", file=sys.stderr)
        if now == before:
            return 0
        print(f"{PICTURE.name} is out of date: run docs/package_graph.py", file=sys.stderr)
        return 1
    lines = [f"{owner}\t{target}\n" for owner, target in sorted(now)]
    TABLE.write_text("package\timports\n" + "".join(lines), encoding="utf-8")
    draw(graph, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
