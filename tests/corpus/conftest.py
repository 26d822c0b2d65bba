"""The built-in corpus of real chat, made once for all tests of this folder."""

import pytest

from tacit.corpus.builtin import load_corpus


@pytest.fixture(scope="session")
def chitchat_cache(tmp_path_factory):
    """A cache folder with the chitchat corpus in it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_CACHE", str(folder))
        patch.setenv("TACIT_STATE", str(tmp_path_factory.mktemp("state")))
        load_corpus("chitchat")
    return folder


@pytest.fixture
def chitchat(chitchat_cache, monkeypatch):
    """The chitchat corpus."""
    monkeypatch.setenv("TACIT_CACHE", str(chitchat_cache))
    return load_corpus("chitchat")
