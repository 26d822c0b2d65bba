"""`tacit federate`: keys and enrolment, and mistakes as one sentence before anything is begun."""

import json
import stat

import pytest

from tacit.corpus.enrolment import Enrolment
from tests.cli.training import CORPUS, tacit

TURNS = ("--min-separation", "2", "--delta", "1e-3", "--set", "plan.cohort=1")


needs_flower = pytest.mark.usefixtures("_flower")


@pytest.fixture
def _flower():
    pytest.importorskip("tacit.federation.flower", exc_type=ImportError)


@pytest.fixture
def enrolled(tmp_path, monkeypatch):
    """A server's folder with two clients, all by the commands."""
    monkeypatch.chdir(tmp_path)
    for words in (
        "keys server enrolled --host 127.0.0.1",
        "keys client a.key --authority enrolled/ca.pem",
        "keys client b.key --authority enrolled/ca.pem --id 000102030405060708090a0b0c0d0e0f",
        "keys enrol enrolled a.key.pub b.key.pub",
    ):
        code, _, err = tacit("federate", *words.split())
        assert (code, err) == (0, "")
    return tmp_path / "enrolled"


def refused(*words):
    code, out, err = tacit("federate", *words)
    assert (code, out) == (2, "")
    *_, last = err.strip().splitlines()
    return last


def test_keys_are_made_and_enrolled_and_secrets_are_their_owners_alone(enrolled, tmp_path):
    clients = Enrolment.open(enrolled).clients
    assert clients[1]["id"] == "000102030405060708090a0b0c0d0e0f"
    own = json.loads((tmp_path / "a.key").read_text())
    assert own["id"] == clients[0]["id"]
    assert own["authority"] == (enrolled / "ca.pem").read_text()
    for secret in (tmp_path / "a.key", enrolled / "server.key", enrolled / "ca.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    for public in (tmp_path / "a.key.pub", enrolled / "enrolment.json"):
        assert "PRIVATE" not in public.read_text()


def test_nobody_is_enrolled_twice_nor_by_a_private_key(enrolled):
    words = ["keys", "enrol", str(enrolled)]
    assert "has the same id twice" in refused(*words, "a.key.pub")
    assert "a.key" in refused(*words, "a.key")
    assert len(Enrolment.open(enrolled).clients) == 2


@needs_flower
def test_damaged_keys_and_certificates_are_refused_by_name(enrolled, tmp_path):
    own = json.loads((tmp_path / "a.key").read_text())
    for name, damage in {
        "cut.key": own | {"private_key": own["private_key"][:80]},
        "empty.key": own | {"private_key": ""},
        "other.key": own | {"format": "other"},
        "id.key": own | {"id": "../../etc"},
    }.items():
        (tmp_path / name).write_text(json.dumps(damage))
        words = ["client", "--corpus", CORPUS, "--key", name, "--server", "127.0.0.1:1"]
        said = refused(*words)
        assert name in said or "32 hexadecimal digits" in said
    public = json.loads((tmp_path / "a.key.pub").read_text())
    (tmp_path / "x.pub").write_text(json.dumps(public | {"key": "-----BEGIN PUBLIC KEY-----"}))
    assert "x.pub holds no public key" in refused("keys", "enrol", "enrolled", "x.pub")
    (enrolled / "ca.key").write_text("no key")
    assert "ca.key holds no private key" in refused("keys", "renew", "enrolled", "--host", "h")


def test_a_key_is_never_replaced(enrolled, tmp_path):
    before = (tmp_path / "a.key").read_bytes()
    assert "exists" in refused("keys", "client", "a.key", "--authority", "enrolled/ca.pem")
    assert (tmp_path / "a.key").read_bytes() == before


def test_a_certificate_is_renewed_by_the_same_authority(enrolled):
    before = (enrolled / "server.pem").read_bytes()
    code, _, _ = tacit("federate", "keys", "renew", "enrolled", "--host", "fed.example.org")
    assert code == 0
    assert (enrolled / "server.pem").read_bytes() != before
    assert "has files in it" in refused("keys", "server", "enrolled", "--host", "there")


@needs_flower
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "name an EXPERIMENT to begin with, or --resume"),
        ("fedavg-small --resume", "name an EXPERIMENT to begin with, or --resume"),
        ("fedavg-small", "--evaluate-on is for a new run, and needed there"),
        (f"fedavg-small --evaluate-on {CORPUS} --delta 1e-3", "no sampling may be claimed"),
        (f"fedavg-small --evaluate-on {CORPUS} --listen here TURNS", "an address must be HOST"),
        (
            f"fedavg-small --evaluate-on {CORPUS} --listen 0.0.0.0:0 --insecure TURNS",
            "--insecure is for 127.0.0.1 only",
        ),
        (f"fedavg-small --evaluate-on {CORPUS} --deadline 0 TURNS", "a number of seconds above 0"),
        (
            f"fedavg-small --evaluate-on {CORPUS} --listen 127.0.0.1:0 --deadline 0.2 TURNS",
            "0 clients are connected after 0.2 seconds",
        ),
        (f"fedavg-small --evaluate-on {CORPUS} --min-separation 2", "plan.cohort of 50 users"),
    ],
)
def test_a_server_that_cannot_begin_says_why_and_leaves_nothing(enrolled, tmp_path, words, message):
    words = [word for one in words.split() for word in (TURNS if one == "TURNS" else [one])]
    assert message in refused("server", *words, "--run", "run", "--clients", "enrolled")
    assert not (tmp_path / "run").exists()


@needs_flower
def test_a_server_without_enrolled_clients_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tacit("federate", "keys", "server", "empty", "--host", "127.0.0.1")
    words = ["fedavg-small", "--run", "run", "--evaluate-on", CORPUS, *TURNS]
    assert "users" in refused("server", *words, "--clients", "empty")
    assert "is no enrolment" in refused("server", *words, "--clients", str(tmp_path))


@needs_flower
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"--corpus {CORPUS} --key a.key", "a client is one person, and the corpus has"),
        (f"--corpus {CORPUS} --user 00 --key a.key", "the corpus has no user '00'"),
        (f"--corpus {CORPUS} --key none.key", "there is no key none.key"),
        (f"--corpus {CORPUS} --key a.key.pub", "a.key.pub"),
        ("--corpus nowhere --key a.key", "there is no corpus 'nowhere'"),
        (f"--corpus {CORPUS} --key a.key --insecure", "--insecure is for 127.0.0.1 only"),
        (f"--corpus {CORPUS} --key a.key --most 0", "--most must be at least 1"),
    ],
)
def test_a_client_that_cannot_begin_says_why(enrolled, words, message):
    assert message in refused("client", *words.split(), "--server", "fed.example.org:8443")


@needs_flower
def test_a_certificate_without_its_key_is_refused_before_anybody_is_waited_for(enrolled):
    (enrolled / "server.key").write_bytes((enrolled / "ca.key").read_bytes())
    words = ["fedavg-small", "--run", "run", "--evaluate-on", CORPUS, *TURNS]
    listening = ["--listen", "127.0.0.1:0", "--clients", "enrolled"]
    assert "are no certificate and its key" in refused("server", *words, *listening)


def test_a_roster_is_confirmed_by_its_digest(enrolled, tmp_path):
    code, out, err = tacit("federate", "keys", "roster", "enrolled")
    assert (code, err) == (0, "")
    digest = out.split()[-1]
    words = ["keys", "confirm", "a.key", "enrolled/roster.json", "--digest"]
    assert "it is not the one that the others have" in refused(*words, "00" + digest[2:])
    assert not (tmp_path / "a.key.roster.json").exists()
    code, out, _ = tacit("federate", *words, digest)
    assert (code, "among 2 clients" in out) == (0, True)
    assert (tmp_path / "a.key.roster.json").is_file()
    tacit("federate", "keys", "client", "c.key", "--authority", "enrolled/ca.pem")
    words[2] = "c.key"
    assert "is not in the roster with its own key" in refused(*words, digest)
    assert "there is no roster" in refused("keys", "confirm", "a.key", "none", "--digest", digest)


@needs_flower
def test_how_a_run_is_summed_is_decided_once(enrolled):
    words = ["--run", "run", "--clients", "enrolled", "--resume", "--secure-sum"]
    assert "--secure-sum is for a new run" in refused("server", *words)
    assert "at least 3 with --secure-sum" in refused(
        "try", "--out", "new", "--clients", "2", "--secure-sum"
    )


@needs_flower
def test_a_rehearsal_needs_a_new_folder_and_people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert "exists already" in refused("try", "--out", "there", "--clients", "2")
    assert "clients must be from 1 to" in refused("try", "--out", "new", "--clients", "1000")
    assert "add --secure-sum" in refused("try", "--out", "new", "--noise", "distributed")
    assert "must be independent or dist" in refused("try", "--out", "new", "--noise", "blt")
    assert not (tmp_path / "new").exists()
