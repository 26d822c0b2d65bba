"""A second user of the same machine reads nothing of the first, and runs no code as the first."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from tacit.privacy import native
from tests.hostile import acts
from tests.hostile.users import FIRST, SECOND, User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
SHARED = ("bundle", "plan.toml")  # what the first made to be handed on


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
    made = User(FIRST, world / "home", umask).does(acts.work, world / "home")
    for kind in ("corpus/texts.arrow", "tokens.npy", "begun/private/key", ".safetensors", "secret"):
        assert any(kind in path for path in made), f"{kind} is not among what was tried"
    second = User(SECOND, world, 0)
    paths = [str(world / path) for path in made]
    got = second.does(acts.readable, [*paths, *second.does(acts.listed, str(world))])
    others = [
        path for path in got if not path.startswith(tuple(f"{world}/home/{x}" for x in SHARED))
    ]
    assert others == []
    assert not [path for path in got if path.endswith(f" {os.O_WRONLY}")]
    assert bool(got) == (umask != 0o077)  # what is meant for others can be read


@pytest.mark.parametrize("victim", [FIRST, 0])
def test_code_that_the_second_user_left_in_a_shared_cache_is_not_run(world, victim):
    compiler = native._compiler()
    if compiler is None:
        pytest.skip("there is no compiler")
    (world / "who.cpp").write_text('extern "C" int who() { return 1; }')
    (world / "who.cpp").chmod(0o644)
    source = native.Source("who", (world / "who.cpp",), ("-shared", "-fPIC"))
    name, cache = f"who-{native._digest_of(source, compiler)}.so", str(world / "cache")
    User(SECOND, world, 0).does(acts.plant, cache, name, 'extern "C" int who() { return 666; }')
    assert User(victim, world / "home").does(acts.loaded, cache, source) == 1
    assert stat.S_IMODE((world / "cache").stat().st_mode) == 0o777


def test_a_folder_that_the_second_user_left_in_the_way_is_not_written_into(world):
    User(SECOND, world, 0).does(acts.hold, str(world / ".run.partial"))
    assert User(FIRST, world / "home").does(acts.begin, str(world / "run")) != "written"
    assert os.listdir(world / ".run.partial") == []
