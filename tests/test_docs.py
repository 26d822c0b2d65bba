"""The documentation tells the truth: its commands run and its links lead somewhere.

In a fenced block tagged `console`, each line `$ tacit ...` is run and has to succeed, or, if the
next line is `# exits with 2`, to be refused.  `$ make ...` has to name targets of the Makefile.
Other commands and all output are for the reader only, as is a block tagged `console no-test`.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forked import tacit

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCED = re.compile(r"^```(?P<tag>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<inline>[^)\s]+)[^)]*\)|^\[[^\]]+\]: *(?P<reference>\S+)", re.MULTILINE)

# Written with brackets so that this file does not match itself.
NOT_FOR_PUBLICATION = re.compile(
    r"/[w]ork/|/[r]oot/|/[t]mp/x|[p]ypi\.|[p]ythonhosted\.|download\.[p]ytorch\.|[i]ndex-url"
)


@dataclass(frozen=True)
class Command:
    """One `$` line of a block, and the exit code it should end with."""

    words: tuple[str, ...]
    exit_code: int

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


def commands(block: str) -> Iterator[Command]:
    """The commands of a block in their order; a backslash at the end of a line continues it."""
    lines = block.replace("\\\n", " ").splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("$ "):
            refused = following.strip() == "# exits with 2"
            yield Command(tuple(shlex.split(line[2:], comments=True)), 2 if refused else 0)


def console_blocks() -> Iterator[object]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            if match["tag"].strip() == "console":
                line = text.count("\n", 0, match.start()) + 1
                block = list(commands(match["body"]))
                yield pytest.param(block, id=f"{page.relative_to(ROOT)}:{line}")


# A block is one test, and each of its commands a subtest: they share a directory and an order,
# which separate tests would lose as soon as they are spread over several processes.
@pytest.mark.parametrize("block", list(console_blocks()))
def test_commands_in_the_documentation_work(block, tmp_path, subtests):
    for command in block:
        with subtests.test(shlex.join(command.words)):
            if command.program == "tacit":
                run_tacit(command, tmp_path)
            elif command.program == "make":
                assert set(make_goals(command)) <= make_targets()


def run_tacit(command: Command, directory: Path) -> None:
    done = tacit(list(command.words[1:]), directory)
    assert done.code == command.exit_code, done.output


def make_goals(command: Command) -> list[str]:
    return [word for word in command.words[1:] if "=" not in word and not word.startswith("-")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    prose = re.sub(r"`[^`\n]+`", "", FENCED.sub("", page.read_text(encoding="utf-8")))
    links = [match["inline"] or match["reference"] for match in LINK.finditer(prose)]
    files = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert [file for file in files if not (page.parent / file).exists()] == []


def test_no_file_names_a_machine_or_a_package_index():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("only a git checkout knows which files belong to the project")
    found = [
        f"{name}: {match[0]}"
        for name in filter(None, listed.stdout.split("\0"))
        if (ROOT / name).is_file()  # a deleted file stays listed until the deletion is committed
        for match in NOT_FOR_PUBLICATION.finditer((ROOT / name).read_text(errors="ignore"))
    ]
    assert found == []


def test_commands_are_read_as_they_would_be_typed():
    block = "$ tacit plan \\\n    --rounds 5  # few\n# exits with 2\nError: ...\n$ bin/tacit demo\n"
    assert list(commands(block)) == [
        Command(("tacit", "plan", "--rounds", "5"), 2),
        Command(("bin/tacit", "demo"), 0),
    ]


@pytest.mark.parametrize(
    "text",
    ["/wor" + "k/main", "/roo" + "t/.cache", "https://pyp" + "i.org/simple", "--inde" + "x-url"],
)
def test_machine_paths_and_index_hosts_are_recognised(text):
    assert NOT_FOR_PUBLICATION.search(text)
