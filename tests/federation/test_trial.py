"""What a rehearsal on one machine leaves when it cannot begin."""

import pytest

pytest.importorskip("flwr", reason="the extra `federation` is not installed")

from tacit.federation import trial


def test_a_trial_whose_server_is_refused_leaves_no_keys(tmp_path, monkeypatch):
    asked = trial.Trial(tmp_path / "trial", "synthetic:users=8,words=20", 2).set_up()
    monkeypatch.setattr(trial.Trial, "server_words", lambda *_: ["federate", "server", "--no-such"])
    with pytest.raises(ValueError, match="the server ended with exit code 2"):
        trial.rehearse(asked)
    assert not asked.folder.exists()
