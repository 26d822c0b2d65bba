"""Odd places to run in: closed streams, other encodings, no home, little memory, odd libraries."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.cli.endings import not_text
from tacit.privacy import durable, native, quantile


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which $TACIT is the program."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TACIT": f"{sys.executable} -m tacit.cli.main"} | environment,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("$TACIT recipes list --json | head -1", 141),
        ("$TACIT --version > /dev/full", 2),
        ("$TACIT --help <&- >&-", 0),
        ("$TACIT --help 2>&- | tail -1", 0),
        pytest.param("$TACIT recipes list <&- >&-", 0, marks=pytest.mark.slow),
        pytest.param("$TACIT recipes list --json 2>&- | tail -1", 0, marks=pytest.mark.slow),
    ],
)
def test_streams_that_are_closed_or_full_end_in_no_traceback(line, code):
    ended = shell(line)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    assert ended.stderr.count("\n") <= 1


def test_a_standard_input_that_is_closed_is_an_empty_one():
    """`tacit predict` asks whether it is a terminal, and reads it."""
    code = "open_streams(); print(sys.stdin.isatty(), sys.stdin.readlines())"
    code = f"import sys; from tacit.cli.endings import open_streams; {code}"
    ended = shell(f"{sys.executable} -c '{code}' <&-")
    assert (ended.stdout, ended.stderr) == ("False []\n", "")


def test_what_an_encoding_does_not_have_is_escaped():
    ended = shell("$TACIT no-such-ε", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ended.returncode == 2
    assert re.fullmatch(r"tacit: .*no-such-\\u03b5.*\n", ended.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [300_000, 1_000_000, 2_000_000])
def test_little_memory_ends_in_a_sentence(kilobytes, tmp_path):
    words = f"train mcmahan2018-small --corpus synthetic --run {tmp_path / 'run'} --rounds 1"
    ended = shell(f"ulimit -v {kilobytes}; $TACIT {words}")
    if ended.returncode in (2, 127):
        assert "Traceback" not in ended.stderr
        assert "memory" in ended.stderr.splitlines()[-1]


def test_arguments_that_are_no_text_are_refused(command):
    assert not_text(["a", "b\udcff"]) == r"'b\udcff'"
    said = command("report").refused("runs/b\udcff")
    assert said == (
        r"tacit: 'runs/b\udcff' is not UTF-8 text: give the file or folder another name" "\n"
    )


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home directory, and without an entry that would name one."""

    def unknown(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    for name in os.environ:
        if name == "HOME" or name.startswith(("TACIT_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_a_user_without_a_home_is_told_what_to_set(homeless, command):
    for kind in ("cache", "state"):
        with pytest.raises(ValueError, match=rf"no home directory: set TACIT_{kind.upper()}"):
            durable.user_folder(kind)
    said = command("corpus info").refused("chitchat")
    assert "set TACIT_" in said


def test_a_user_without_a_home_builds_the_kernels_all_the_same(homeless):
    assert native.build(quantile.SOURCE) is not None


def test_a_library_without_its_functions_is_as_good_as_none(monkeypatch):
    other = re.search(r"/\S+/libc[.-]\S*so\S*", Path("/proc/self/maps").read_text())
    assert other is not None
    monkeypatch.setattr(native, "_compiled", lambda *_: Path(other[0]))
    assert native.build(quantile.SOURCE) is None


def test_a_library_without_its_functions_is_passed_by(monkeypatch):
    monkeypatch.setattr(native, "build", lambda _: None)
    quantile._in_cpp.cache_clear()
    try:
        assert quantile._in_cpp() is None
    finally:
        quantile._in_cpp.cache_clear()
