"""What a rehearsal on one machine leaves when it cannot begin."""

import pytest

pytest.importorskip("flwr", reason="the extra `federation` is not installed")

from tacit.federation import keys, trial


def test_a_trial_whose_server_is_refused_leaves_no_keys(tmp_path, monkeypatch):
    asked = trial.Trial(tmp_path / "trial", "synthetic:users=8,words=20", 2).set_up()
    monkeypatch.setattr(trial.Trial, "server_words", lambda *_: ["federate", "server", "--no-such"])
    with pytest.raises(ValueError, match="the server ended with exit code 2"):
        trial.rehearse(asked)
    assert not asked.folder.exists()


def test_a_trial_that_is_stopped_leaves_nothing(tmp_path, monkeypatch):
    asked = trial.Trial(tmp_path / "trial", "synthetic:users=8,words=20", 2).set_up()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "started", stop)
    with pytest.raises(KeyboardInterrupt), asked.interruptible():
        trial.rehearse(asked)
    assert not asked.folder.exists()


@pytest.mark.parametrize(
    ("hosts", "days", "why"),
    [
        (["127.0.0.1"], 1e300, "days must be at most 7300"),
        (["127.0.0.1"], float("nan"), "days must be at most 7300"),
        ([], 365.0, "a host at least"),
        (["ünknown.example"], 365.0, "name must be ASCII"),
    ],
)
def test_a_server_whose_certificate_cannot_be_made_leaves_no_folder(tmp_path, hosts, days, why):
    with pytest.raises(ValueError, match=why):
        keys.make_server(tmp_path / "enrolled", hosts, days=days)
    assert not (tmp_path / "enrolled").exists()
