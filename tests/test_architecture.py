"""docs/architecture.md and CONTRIBUTING.md say how the code is built; the code agrees."""

import importlib.util
import re
import traceback
from pathlib import Path

from tacit.cli import main as cli
from tacit.mechanisms.noise import IndependentNoise
from tests.test_import_arrows import ARROWS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

TINY = (
    "train mcmahan2018 --corpus synthetic:users=60,words=40 --rounds 1 --workers 1 --quiet"
    " --set model.options={embedding_size=8,cells=8} --set tokenizer.size=300"
    " --set plan.cohort=10 --set plan.noise_multiplier=1 --delta 1e-3"
)


def frames_to_noise(run: Path, monkeypatch) -> list[str]:
    """Functions of ours between the command and the noise, both included, as `module.function`."""
    stacks = []
    add = IndependentNoise.add

    def spy(*arguments):
        stacks.append(traceback.extract_stack()[:-1])
        return add(*arguments)

    monkeypatch.setattr(IndependentNoise, "add", spy)
    cli.app([*TINY.split(), "--run", str(run)], standalone_mode=False)
    source = str(ROOT / "src" / "tacit") + "/"
    names = [
        f"{frame.filename.removeprefix(source).removesuffix('.py').replace('/', '.')}.{frame.name}"
        for frame in stacks[0]
        if frame.filename.startswith(source)
    ]
    return [*names[names.index("cli.train.train") :], "mechanisms.noise.add"]


def test_eight_calls_lead_from_the_command_to_the_noise(tmp_path, monkeypatch):
    frames = frames_to_noise(tmp_path / "run", monkeypatch)
    assert len(frames) - 1 <= 8
    [block] = re.findall(r"```text\n(cli\.train\.train\n.*?)```", PAGE, re.DOTALL)
    shown = [re.sub(r"\.[A-Z]\w+", "", line.strip()) for line in block.splitlines()]
    assert frames == shown


def test_at_most_twelve_words_before_the_loop():
    [table] = re.findall(r"## Before you read train.py\n(.*?)\n## ", PAGE, re.DOTALL)
    assert len(re.findall(r"^\| (?!word|-)", table, re.MULTILINE)) <= 12


def test_files_that_the_page_names_exist():
    named = set(re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", PAGE))
    missing = [
        name
        for name in sorted(named)
        if not any((base / name).exists() for base in (ROOT, ROOT / "src" / "tacit"))
    ]
    assert named
    assert missing == []


def test_the_picture_of_the_packages_is_up_to_date():
    path = ROOT / "docs" / "package_graph.py"
    spec = importlib.util.spec_from_file_location("package_graph", path)
    assert spec is not None
    assert spec.loader is not None
    graph = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(graph)
    assert graph.reduced(graph.edges()) == graph.stored(), "run docs/package_graph.py"


def test_contributing_has_the_table_of_arrows():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [table] = re.findall(r"\| package \| may import \|\n\|---\|---\|\n(.*?)\n\n", text, re.DOTALL)
    arrows: dict[str, set[str]] = {}
    for line in table.splitlines():
        packages, allowed = (re.findall(r"`([a-z_]+)`", cell) for cell in line.split("|")[1:3])
        arrows |= {package: set(allowed) for package in packages}
    without_code = {"recipes"}  # TOML files
    assert arrows == {
        package: allowed - without_code
        for package, allowed in ARROWS.items()
        if package not in without_code
    }
