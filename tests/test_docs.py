"""The documentation tells the truth: commands print what it says, and links lead somewhere.

In a fenced block tagged `console`, each line `$ tacit ...` is run and has to succeed, or, if the
next line is `# exits with 2`, to be refused.  The lines below a command are its output, standard
error included, 100 columns wide, and are compared with what is printed:

- `...` on a line of its own stands for any number of lines,
- `...` inside a line stands for anything in that line,
- a command without lines below it may print anything.

`$ make ...` has to name targets of the Makefile.  In a block tagged `console no-test` nothing is
run, but commands and options have to exist.  Other commands are for the reader only.  Whatever a
`python` block imports from tacit has to be there.
"""

import ast
import importlib.util
import pkgutil
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from tacit.cli.main import app
from tests.forked import PRELOADED, tacit

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

FENCED = re.compile(r"^```(?P<tag>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<inline>[^)\s]+)[^)]*\)|^\[[^\]]+\]: *(?P<reference>\S+)", re.MULTILINE)

ROOT_COMMAND = typer.main.get_command(app)

# Written with brackets so that this file does not match itself.
NOT_FOR_PUBLICATION = re.compile(
    r"/[w]ork/|/[r]oot/|/[t]mp/x|[p]ypi\.|[p]ythonhosted\.|download\.[p]ytorch\.|[i]ndex-url"
)


@dataclass(frozen=True)
class Command:
    """One `$` line of a block, the exit code it should end with, and what it should print."""

    words: tuple[str, ...]
    exit_code: int = 0
    output: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return Path(self.words[0]).name


def commands(block: str) -> Iterator[Command]:
    """The commands of a block in their order; a backslash at the end of a line continues it."""
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, *output = part.rstrip().splitlines()
        is_refused = output[:1] == ["# exits with 2"]
        words = tuple(shlex.split(line, comments=True))
        yield Command(words, 2 if is_refused else 0, tuple(output[is_refused:]))


def is_printed(expected: Sequence[str], output: str) -> bool:
    """Whether lines of the documentation, with their wildcards, are all of what was printed.

    Runs of spaces, and of what tables are drawn with, count as one: a column is as wide as its
    widest figure, and figures under noise differ from run to run.
    """
    pattern = "".join(
        r"(?:.*\n)*?"
        if line.strip() == "..."
        else r".*".join(re.escape(part) for part in _even(line).split("...")) + "\n"
        for line in expected
    )
    printed = "".join(f"{_even(line)}\n" for line in output.rstrip().splitlines())
    return re.fullmatch(pattern, printed) is not None


def _even(line: str) -> str:
    return re.sub(r"([ ─━])\1+", r"\1", line.rstrip())


def blocks(tag: str) -> Iterator[tuple[str, str]]:
    """(page:line, text) of every fenced block with a tag."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCED.finditer(text):
            if match["tag"].strip() == tag:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{page.relative_to(ROOT)}:{line}", match["body"]


def console_blocks() -> Iterator[object]:
    for name, body in blocks("console"):
        yield pytest.param(list(commands(body)), id=name)


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
    if command.output and not is_printed(command.output, done.output):
        expected = "\n".join(command.output)
        pytest.fail(f"the page says:\n{expected}\n\nwhat is printed:\n{done.output}")


def test_commands_that_are_only_shown_exist(subtests):
    for name, body in blocks("console no-test"):
        for command in commands(body):
            if command.program == "tacit":
                with subtests.test(f"{name}: {shlex.join(command.words)}"):
                    parse(list(command.words[1:]))


def parse(words: list[str]) -> None:
    """Refuse a command or an option that does not exist; nothing is run."""
    command = ROOT_COMMAND
    context = command.make_context("tacit", list(words), resilient_parsing=True)
    while hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
        context = type(context)(command, info_name=name, parent=context)
    command.make_parser(context).parse_args(words)


@pytest.mark.parametrize(
    "words", [["trian"], ["train", "--rnds", "3"], ["model", "pretrian"], ["tokenizer", "nothing"]]
)
def test_unknown_commands_and_options_are_noticed(words):
    with pytest.raises(Exception, match=r"trian|rnds|pretrian|nothing"):
        parse(words)


def test_names_that_python_blocks_import_exist(subtests):
    for name, body in blocks("python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit"):
                with subtests.test(f"{name}: {ast.unparse(node)}"):
                    exec(ast.unparse(node), {})


def test_modules_and_files_that_pages_name_exist():
    sources = [path.as_posix() for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        names = set(re.findall(r"`(tacit(?:_papers)?(?:\.\w+)+)(?:\(.*?\))?`", text))
        files = set(re.findall(r"`([\w/]*\w\.py)`", text))
        if page.name == "CHANGELOG.md" or page.parent.name == "contributing":
            continue  # what is gone, and what the reader is going to write
        missing += [f"{page.name}: {name}" for name in names if not is_name(name)]
        missing += [
            f"{page.name}: {file}"
            for file in files
            if not any(source.endswith(f"/{file}") for source in sources)
        ]
    assert missing == []


def is_name(dotted: str) -> bool:
    """Whether there is such a module, or such a name in a module."""
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_modules_that_the_server_imports_exist():
    missing = [name for name in PRELOADED if importlib.util.find_spec(name) is None]
    assert missing == []


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


def test_every_picture_is_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = [path.name for path in (ROOT / "docs" / "images").iterdir() if path.suffix != ".tsv"]
    assert [name for name in pictures if name not in text] == []


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
    block = (
        "$ tacit plan \\\n    --rounds 5  # few\n# exits with 2\ntacit: no ...\n"
        "$ bin/tacit demo\n  a table\n\n...\n$ make test\n"
    )
    assert list(commands(block)) == [
        Command(("tacit", "plan", "--rounds", "5"), 2, ("tacit: no ...",)),
        Command(("bin/tacit", "demo"), 0, ("  a table", "", "...")),
        Command(("make", "test")),
    ]


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        (["a 1", "b"], "a 1\nb\n", True),
        (["a 1", "b"], "a 2\nb\n", False),
        (["a 1"], "a 1\nb\n", False),
        (["a ... c"], "a b c\n", True),
        (["a ... c"], "a\nc\n", False),
        (["a", "..."], "a\nb\nc\n", True),
        (["...", "c"], "a\nb\nc\n", True),
        (["...", "b"], "a\nb\nc\n", False),
        (["a.c"], "abc\n", False),
        (["a"], "a   \n\n", True),
    ],
)
def test_output_is_compared_with_wildcards(expected, output, same):
    assert is_printed(expected, output) == same


@pytest.mark.parametrize(
    "text",
    ["/wor" + "k/main", "/roo" + "t/.cache", "https://pyp" + "i.org/simple", "--inde" + "x-url"],
)
def test_machine_paths_and_index_hosts_are_recognised(text):
    assert NOT_FOR_PUBLICATION.search(text)
