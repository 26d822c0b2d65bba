"""The installation's folder and secret: made once, for their owner only."""

import subprocess
import sys
from pathlib import Path

import pytest

from tacit.corpus import people
from tacit.privacy import durable


def test_the_state_folder_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert people.state_folder() == tmp_path / "own"
    monkeypatch.delenv("TACIT_STATE")
    assert people.state_folder() == tmp_path / "xdg" / "tacit"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert people.state_folder() == tmp_path / "home" / ".local" / "state" / "tacit"
    assert people.state_folder().stat().st_mode & 0o777 == 0o700


def test_asking_where_it_is_makes_nothing():
    assert not people.state_folder(create=False).exists()


@pytest.mark.parametrize("where", ["file", "file/inside"])
def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path, monkeypatch, where):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / where))
    with pytest.raises(
        ValueError, match="set TACIT_STATE to a folder that can be written"
    ) as error:
        people.secret()
    assert "\n" not in str(error.value)


def test_the_secret_is_32_bytes_for_its_owner_and_stays_the_same():
    first = people.secret()
    file = people.state_folder(create=False) / "secret"
    assert len(first) == 32
    assert people.secret() == first == file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in people.state_folder(create=False).glob("*secret*")] == ["secret"]


def test_two_installations_have_different_secrets(tmp_path, monkeypatch):
    first = people.secret()
    monkeypatch.setenv("TACIT_STATE", str(tmp_path / "other"))
    assert people.secret() != first


def test_a_damaged_secret_is_refused_and_not_replaced():
    people.secret()
    file = people.state_folder(create=False) / "secret"
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes instead of 32"):
        people.secret()
    assert file.read_bytes() == b"short"


def test_who_loses_the_race_for_the_secret_reads_the_winners(monkeypatch):
    real, won = durable.write_whole, b"w" * 32

    def slower(path: Path, data: bytes, *, new: bool) -> None:
        path.write_bytes(won)  # the other process is done first
        real(path, data, new=new)

    monkeypatch.setattr(durable, "write_whole", slower)
    assert people.secret() == won


def test_processes_that_start_at_once_agree_on_the_secret():
    code = "from tacit.corpus import people; print(people.secret().hex())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert len({process.communicate()[0] for process in started}) == 1
