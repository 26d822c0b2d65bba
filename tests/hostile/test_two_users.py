"""A second user of the same machine reads nothing of the first, and runs no code as the first."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tacit.privacy import durable, native, scratch
from tests.hostile.users import FIRST, SECOND, User
from tests.runs.small import experiment, make_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
SHARED = ("bundle", "plan.toml")  # what the first made to be handed on


def _work(home: Path) -> list[str]:
    """All that the first user does: every kind of file that tacit leaves behind."""
    os.environ |= {"TACIT_STATE": str(home / "state"), "TACIT_CACHE": str(home / "cache")}
    tempfile.tempdir = str(home.parent)
    make_folder(home)
    from tacit.corpus.builtin import load_corpus
    from tacit.corpus.people_ledger import leave_copy
    from tacit.runs import start
    from tacit.runs.export import export_run
    from tacit.train import train

    own = experiment(home, seed=None, rounds=1, privacy={"accountant": "pld"})
    train(own, home / "run")
    start.create(own, home / "begun").close()
    leave_copy(load_corpus(home / "corpus"))
    export_run(home / "run", home / "bundle")
    durable.write_whole(home / "plan.toml", b"", mode=durable.SHARED)
    scratch.of_this_process()
    left = [path for path in home.parent.rglob("*") if path.is_file()]
    return [str(path.relative_to(home.parent)) for path in left]


def _readable(paths: list[str]) -> list[str]:
    """Which of the files this process can read, or write to."""
    got = []
    for path in paths:
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.close(os.open(path, flags))
            except OSError:
                continue
            got.append(f"{path} {flags}")
    return got


def _listed(folder: str) -> list[str]:
    """All that this process can see below a folder."""
    return [os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names]


@pytest.fixture
def world(tmp_path_factory):
    """A folder that both can write to, as /tmp is, with a home of the first in it."""
    with tempfile.TemporaryDirectory() as name:
        world = Path(name)
        world.chmod(0o1777)
        (home := world / "home").mkdir(mode=0o755)
        os.chown(home, FIRST, FIRST)
        yield world


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_second_user_reads_nothing_of_the_first(world, umask):
    made = User(FIRST, world / "home", umask).does(_work, world / "home")
    for kind in ("corpus/texts.arrow", "tokens.npy", "begun/private/key", ".safetensors", "secret"):
        assert any(kind in path for path in made), f"{kind} is not among what was tried"
    second = User(SECOND, world, 0)
    paths = [str(world / path) for path in made]
    got = second.does(_readable, [*paths, *second.does(_listed, str(world))])
    others = [
        path for path in got if not path.startswith(tuple(f"{world}/home/{x}" for x in SHARED))
    ]
    assert others == []
    assert not [path for path in got if path.endswith(f" {os.O_WRONLY}")]
    assert bool(got) == (umask != 0o077)  # what is meant for others can be read


def _plant(cache: str, name: str, code: str) -> None:
    """The second user leaves a library that says who it runs as."""
    folder = Path(cache) / "kernels"
    folder.mkdir(parents=True, mode=0o777)
    Path(cache).chmod(0o777)
    folder.chmod(0o777)
    (folder / "planted.cpp").write_text(code)
    subprocess.run(
        [
            "/usr/bin/env",
            "c++",
            "-shared",
            "-fPIC",
            str(folder / "planted.cpp"),
            "-o",
            folder / name,
        ],
        check=True,
    )
    (folder / name).chmod(0o755)


def _loaded(cache: str, source: native.Source) -> int:
    os.environ["TACIT_CACHE"] = cache
    library = native.build(source)
    assert library is not None
    return int(library.functions.who())


@pytest.mark.parametrize("victim", [FIRST, 0])
def test_code_that_the_second_user_left_in_a_shared_cache_is_not_run(world, victim):
    compiler = native._compiler()
    if compiler is None:
        pytest.skip("there is no compiler")
    (world / "who.cpp").write_text('extern "C" int who() { return 1; }')
    (world / "who.cpp").chmod(0o644)
    source = native.Source("who", (world / "who.cpp",), ("-shared", "-fPIC"))
    name, cache = f"who-{native._digest_of(source, compiler)}.so", str(world / "cache")
    User(SECOND, world, 0).does(_plant, cache, name, 'extern "C" int who() { return 666; }')
    assert User(victim, world / "home").does(_loaded, cache, source) == 1
    assert stat.S_IMODE((world / "cache").stat().st_mode) == 0o777


def _begin(path: str) -> str:
    try:
        with durable.whole_folder(Path(path)) as folder:
            durable.write_whole(folder / "text", b"secret")
    except (OSError, ValueError) as refusal:
        return str(refusal)
    return "written"


def _hold(path: str) -> None:
    Path(path).mkdir(mode=0o777)
    Path(path).chmod(0o777)


def test_a_folder_that_the_second_user_left_in_the_way_is_not_written_into(world):
    User(SECOND, world, 0).does(_hold, str(world / ".run.partial"))
    assert User(FIRST, world / "home").does(_begin, str(world / "run")) != "written"
    assert os.listdir(world / ".run.partial") == []
