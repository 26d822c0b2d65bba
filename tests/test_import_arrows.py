"""Who may import whom: the arrows of the design, enforced on the source."""

import ast
import graphlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# Package (or module) directly under tacit -> those of ours it may import, besides itself.
# A new arrow is a design decision: CONTRIBUTING.md has the same table.
ARROWS: dict[str, set[str]] = {
    "privacy": set(),
    "models": set(),
    "config": {"privacy", "models"},
    "mechanisms": {"privacy"},
    "corpus": {"privacy"},
    "tokenizers": {"privacy", "corpus"},
    "kernels": {"privacy", "models"},
    "evaluation": {"privacy", "models", "tokenizers", "corpus", "kernels"},
    "public": {"privacy", "models", "tokenizers", "corpus", "kernels"},
    "federated": {"privacy", "mechanisms", "corpus", "models", "tokenizers", "kernels"},
    "engines": {"privacy", "federated", "kernels"},
}
ARROWS["tasks"] = set(ARROWS)
ARROWS["runs"] = set(ARROWS)
ARROWS["audit"] = set(ARROWS)
ARROWS["train"] = {"privacy", "config", "engines", "tasks", "runs"}  # the loop knows no more
ARROWS["report"] = {"privacy", "tasks", "runs", "audit"}
ARROWS["recipes"] = set()
ARROWS["verification"] = set(ARROWS) - {"recipes", "train"}
ARROWS["planner"] = set(ARROWS) - {"recipes", "report", "verification"}
ARROWS["federation"] = set(ARROWS) - {"recipes", "report", "verification", "planner"}
ARROWS["cli"] = set(ARROWS)
ARROWS["__main__"] = {"cli"}
ARROWS["secure_sum"] = {"privacy", "mechanisms"}
ARROWS["federation"] |= {"secure_sum"}  # its transport, and nobody else's
OF_TACIT_ITSELF = {"privacy"}  # tacit/__init__.py, when `tacit.epsilon` is first asked for

# The packages that can be reviewed by themselves: all that they may import from others.
THIRD_PARTY = {
    "privacy": {"numpy", "scipy", "dp_accounting", "cryptography"},
    "secure_sum": {"numpy", "cryptography"},
}


def imported_names(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of all that a module in `package` imports, at any depth."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def complaint(owner: str, name: str) -> str | None:
    """Why a module of the package `owner` may not import `name`, or None if it may."""
    top, _, rest = name.partition(".")
    if top == "tacit":
        target = rest.partition(".")[0]
        if target in ARROWS.get(owner, OF_TACIT_ITSELF) | {owner, "__version__"}:
            return None
        return f"{owner or 'tacit'} may not import {name}"
    if top == "tacit_papers":
        return f"{owner or 'tacit'} may not import {name}, which stands on top of it"
    if owner in THIRD_PARTY and top not in THIRD_PARTY[owner] | sys.stdlib_module_names:
        return f"{owner} may not import {name}: outside of ours only {sorted(THIRD_PARTY[owner])}"
    return None


def violations(src: Path) -> list[str]:
    """One line for each import under src/tacit that has no arrow."""
    found = []
    for path in sorted((src / "tacit").rglob("*.py")):
        parents = path.relative_to(src).parent.parts
        is_root = path == src / "tacit" / "__init__.py"
        owner = "" if is_root else (*parents, path.stem)[1]
        if not is_root and owner not in ARROWS:
            found.append(f"{path}: no arrows are known for {owner}: add them to ARROWS")
            continue
        for line, name in imported_names(path.read_text(encoding="utf-8"), ".".join(parents)):
            if why := complaint(owner, name):
                found.append(f"{path}:{line}: {why}")
    return found


def test_source_follows_the_arrows():
    assert (SRC / "tacit" / "__init__.py").exists()
    assert not violations(SRC), "\n".join(violations(SRC))


def test_arrows_have_no_cycle():
    order = graphlib.TopologicalSorter(ARROWS).static_order()  # raises on a cycle
    assert set(order) == set(ARROWS)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("mechanisms/plan.py", "from tacit.privacy.events import Event"),
        ("mechanisms/plan.py", "import tacit.privacy.events"),
        ("mechanisms/plan.py", "from ..privacy import events"),
        ("mechanisms/plan.py", "from .samplers import Poisson"),
        ("mechanisms/__init__.py", "from . import samplers"),
        ("mechanisms/plan.py", "import torch"),
        ("privacy/ledger.py", "from tacit import __version__"),
        ("__init__.py", "from tacit.privacy import costs"),
        ("privacy/ledger.py", "import hashlib, numpy.typing"),
        ("train.py", "from tacit import engines"),
        ("cli/plan.py", "from tacit import train, report"),
        ("cli/deep/er.py", "from ...privacy import events"),
    ],
)
def test_checker_accepts_an_import_with_an_arrow(tmp_path, file, source):
    write_module(tmp_path, file, source)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("privacy/a.py", "from tacit.mechanisms import plan", "privacy may not import tacit.mech"),
        ("privacy/a.py", "import tacit.mechanisms.plan", "privacy may not import tacit.mech"),
        ("privacy/a.py", "from tacit import mechanisms", "privacy may not import tacit.mech"),
        ("privacy/a.py", "from ..mechanisms import plan", "privacy may not import tacit.mech"),
        ("privacy/a.py", "from .. import mechanisms", "privacy may not import tacit.mech"),
        ("privacy/__init__.py", "from ..cli import main", "privacy may not import tacit.cli"),
        ("privacy/deep/er.py", "from ...cli import main", "privacy may not import tacit.cli"),
        ("privacy/a.py", "def f():\n    import tacit.cli", "a.py:2: privacy may not import"),
        ("privacy/a.py", "import torch", "privacy may not import torch: outside of ours only"),
        ("privacy/a.py", "import tacit", "privacy may not import tacit"),
        ("train.py", "from tacit.audit import canaries", "train may not import tacit.audit"),
        ("__init__.py", "from tacit.models import base", "tacit may not import tacit.models"),
        ("cli/main.py", "import tacit_papers.cli", "cli may not import tacit_papers.cli, which"),
        ("novel/a.py", "", "no arrows are known for novel: add them to ARROWS"),
        ("novel.py", "", "no arrows are known for novel: add them to ARROWS"),
    ],
)
def test_checker_reports_an_import_without_an_arrow(tmp_path, file, source, message):
    write_module(tmp_path, file, source)
    [violation] = violations(tmp_path)
    assert message in violation


def write_module(src: Path, file: str, source: str) -> None:
    path = src / "tacit" / file
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
