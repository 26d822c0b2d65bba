"""What users of one machine do: the first works, the second looks for what was left open."""

import os
import subprocess
import tempfile
from pathlib import Path

from tacit.corpus.builtin import load_corpus
from tacit.corpus.people_ledger import leave_copy
from tacit.privacy import durable, native, scratch
from tacit.runs import start
from tacit.runs.export import export_run
from tacit.train import train
from tests.runs.small import experiment, make_folder


def work(home: Path) -> list[str]:
    """All that the first user does: every kind of file that tacit leaves behind."""
    os.environ |= {"TACIT_STATE": str(home / "state"), "TACIT_CACHE": str(home / "cache")}
    os.environ["CXX"] = "false"  # compiling takes longer than all the rest
    tempfile.tempdir = str(home.parent)
    make_folder(home)
    own = experiment(home, seed=None, rounds=1, privacy={"accountant": "pld"})
    train(own, home / "run")
    start.create(own, home / "begun").close()
    leave_copy(load_corpus(home / "corpus"))
    export_run(home / "run", home / "bundle")
    durable.write_whole(home / "plan.toml", b"", mode=durable.SHARED)
    scratch.of_this_process()
    left = [path for path in home.parent.rglob("*") if path.is_file()]
    return [str(path.relative_to(home.parent)) for path in left]


def readable(paths: list[str]) -> list[str]:
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


def listed(folder: str) -> list[str]:
    """All that this process can see below a folder."""
    return [os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names]


def plant(cache: str, name: str, code: str) -> None:
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


def loaded(cache: str, source: native.Source) -> int:
    os.environ["TACIT_CACHE"] = cache
    library = native.build(source)
    assert library is not None
    return int(library.functions.who())


def begin(path: str) -> str:
    try:
        with durable.whole_folder(Path(path)) as folder:
            durable.write_whole(folder / "text", b"secret")
    except (OSError, ValueError) as refusal:
        return str(refusal)
    return "written"


def hold(path: str) -> None:
    Path(path).mkdir(mode=0o777)
    Path(path).chmod(0o777)
