"""A file of ours that was damaged is refused in one sentence that names the file and the field."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pytest
import safetensors.numpy

from tacit.audit.empirical_epsilon import AUDIT_FILE
from tacit.audit.results import PublicAudit
from tacit.audit.tries import Tries
from tacit.config.sections import read_toml
from tacit.corpus.people_ledger import FORMAT, PeopleLedger
from tacit.corpus.store import Corpus
from tacit.models.weights import trained_on
from tacit.privacy.documents import DamagedFile, fitted, parse_json, read_json, read_lines
from tacit.privacy.events import PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Head, Header, LedgerError, seal
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.personalization import read_texts
from tacit.runs.session import Proofs
from tacit.tasks import read_experiment
from tacit.tasks.task import State
from tacit.tokenizers.cache import _Description
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.tokenizers.wordpiece import PieceVocabulary
from tests.runs.small import experiment, make_corpus, make_tokenizer

DEEP = b'{"a":' * 3000 + b"1" + b"}" * 3000
DEEPER = b"[" * 200_000
NOT_OURS = [b"", b"\xff\xfe", b"[]", b'"text"', b"null", b"3", b"{}", b"NaN", DEEP, DEEPER]
NOT_OURS += [b'{"a": "\\ud800"}']


class Inner(TypedDict):
    share: float


class Shape(TypedDict):
    name: str
    count: int
    inner: NotRequired[Inner | None]
    rows: list[tuple[str, float]]


GOOD = {"name": "a", "count": 1, "inner": {"share": 1}, "rows": [["b", 0.5]], "more": [None]}


def test_what_has_the_shape_is_read_as_it_is():
    assert fitted(GOOD, Shape, "file") is GOOD
    assert fitted(GOOD | {"inner": None}, Shape, "file")["inner"] is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": 1}, "name must be text, got 1"),
        ({"count": True}, "count must be a whole number, got True"),
        ({"count": 1.0}, "count must be a whole number, got 1.0"),
        ({"inner": {}}, "inner.share is missing"),
        ({"inner": {"share": float("inf")}}, "inner.share must be a finite number, got inf"),
        ({"inner": {"share": 10**400}}, "inner.share must be a finite number, got "),
        ({"inner": {"share": False}}, "inner.share must be a finite number, got False"),
        ({"rows": {}}, "rows must be a list, got {}"),
        ({"rows": [["b"]]}, "rows.0 must be a list of 2, got ['b']"),
        ({"rows": [["b", "c"]]}, "rows.0.1 must be a finite number, got 'c'"),
    ],
)
def test_the_field_that_is_wrong_is_named(changed, said):
    with pytest.raises(DamagedFile) as refusal:
        fitted(GOOD | changed, Shape, "file.json")
    assert str(refusal.value).startswith(f"file.json is damaged: {said}")


def test_a_missing_field_is_named():
    with pytest.raises(DamagedFile, match="count is missing"):
        fitted({"name": "a"}, Shape, "file.json")


@pytest.mark.parametrize("data", [b"", b"\xff", b"NaN", DEEP, DEEPER, b'"\\uD800"', b"[1,"])
def test_what_is_no_json_names_the_file(data):
    with pytest.raises(DamagedFile, match=r"^file\.json is damaged: it "):
        parse_json(data, "file.json")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a." * 500 + "b = 1",
        "a." * 10**6 + "b = 1",
        "a = {b = " * 3000,
        "a =",
    ],
)
def test_toml_that_is_nested_deeply_is_refused_like_any_other(text):
    for read in (read_toml, read_experiment):
        with pytest.raises(ValueError, match=r"^recipe\.toml is not TOML"):
            read(text, "recipe.toml")


def test_a_task_that_is_no_word_is_refused():
    with pytest.raises(ValueError, match="task must be one of"):
        read_experiment("task = ['nlu']", "recipe.toml")


# The files of a run.


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A run directory with an experiment, as far as its other files are tried here."""
    directory = RunDirectory(tmp_path / "run")
    directory.private.mkdir(parents=True)
    directory.experiment_file.write_text(experiment(tmp_path).to_toml())
    return directory


RESULT: dict[str, Any] = {
    "run": "run",
    "task": "language",
    "ending": "complete",
    "claim": "none",
    "delta": 1e-3,
    "epsilon": {"pld": 1.0, "rdp": None},
    "accountant": "pld",
    "other_runs": None,
    "key_kept": False,
    "simulation": False,
    "baselines": {"start": {"targets": 3, "accuracy_top1": None}},
    "rounds": 6,
    "sha256": "0",
}


def refused(path: Path, data: bytes, read) -> str:
    """The sentence with which `read` refuses a file that holds `data`; it names the file."""
    path.write_bytes(data)
    with pytest.raises(ValueError, match=path.name) as refusal:
        read()
    said = str(refusal.value)
    assert str(path) in said
    return said


def test_a_result_is_read_back(run):
    assert run.result() is None
    run.result_file.write_text(json.dumps(RESULT))
    assert run.result() == {name: value for name, value in RESULT.items() if name != "sha256"}


@pytest.mark.parametrize("data", NOT_OURS)
def test_a_result_that_is_none_is_refused(run, data):
    refused(run.result_file, data, run.result)


@pytest.mark.parametrize("name", [name for name in RESULT if name != "sha256"])
@pytest.mark.parametrize("value", ["missing", [3], {"pld": "x"}])
def test_a_field_of_a_result_that_is_missing_or_of_another_kind_is_named(run, name, value):
    changed = RESULT | {name: value}
    if value == "missing":
        del changed[name]
    said = refused(run.result_file, json.dumps(changed).encode(), run.result)
    assert f" {name}" in said


def test_an_accountant_that_gave_no_epsilon_is_refused(run):
    changed = json.dumps(RESULT | {"accountant": "moments"})
    assert "epsilon" in refused(run.result_file, changed.encode(), run.result)


def test_a_run_with_a_damaged_result_is_refused_by_train_in_one_sentence(run, command):
    run.result_file.write_bytes(b"[]")
    said = command("train").refused("--resume", "--run", run.path)
    assert said == f"tacit: {run.result_file} is damaged: it must be an object, got []\n"


@pytest.mark.parametrize("line", [b"[]", b"null", b"{}", b'{"round": "1"}', b"{", b"\xff", DEEP])
def test_a_line_of_metrics_that_is_none_is_named(run, line):
    for read in (run.metrics, lambda: run.forget_after(1, "round")):
        said = refused(run.metrics_file, line + b"\n", read)
        assert said.startswith(f"line 1 of {run.metrics_file} is damaged: ")


def test_only_metrics_that_nobody_reads_may_have_any_kind(run):
    row = {"round": 1, "epsilon": None, "targets": 3, "unknown_rate": 0.5, "other": ["x"]}
    row |= {f"accuracy_top{k}": 0.5 for k in (1, 3, 5)}
    row |= {"accuracy_top1_smoothed": 0.5, "perplexity": 3.5}
    run.metrics_file.write_text(json.dumps(row) + "\n")
    assert run.metrics() == [row]
    changed = json.dumps(row | {"perplexity": "3"}).encode() + b"\n"
    said = refused(run.metrics_file, changed, run.metrics)
    assert "perplexity must be a finite number, got '3'" in said


@pytest.mark.parametrize("line", [b"[]", b"3", b'{"leg": 1}', b'{"leg":1,"attempt":0,"hmac":3}'])
def test_a_line_of_proofs_that_is_none_is_refused(tmp_path, line):
    refused(tmp_path / "releases.jsonl", line + b"\n", lambda: Proofs(tmp_path / "releases.jsonl"))


@pytest.mark.parametrize(
    "line", [b"[]", b"3", b'{"try": "1", "settings": {}, "asked": 0.9}', b'{"try": 1}']
)
def test_a_line_of_tries_that_is_none_is_refused(tmp_path, line):
    path = tmp_path / "audits.jsonl"
    refused(path, line + b"\n", Tries(path).highest)


@pytest.mark.parametrize("data", [data for data in NOT_OURS if data != b"{}"])
def test_an_audit_that_is_none_is_refused(run, data):
    refused(run.path / AUDIT_FILE, data, lambda: PublicAudit.read(run))


# Checkpoints, and other safetensors.

HEAD = Head(3, "ab")
FACTS = {"tokenizer": "ab", "clip_norms": [0.3], "clip_round": 2}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"head": None}, "head must be an object"),
        ({"head": {"entries": "3", "hash": "ab"}}, "entries must be a whole number"),
        ({"model": 3}, "model must be text"),
        ({"clip_norms": ["0.3"]}, "clip_norms.0 must be a finite number"),
        ({"clip_norms": 3}, "clip_norms must be a list"),
        ({"tokenizer": None}, "tokenizer must be text"),
        ({"clip_round": "2"}, "clip_round must be a whole number"),
        ({"leg": [2]}, "leg must be a whole number"),
        (None, "object"),
    ],
)
def test_facts_of_a_checkpoint_that_are_wrong_are_named(tmp_path, changed, said):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(2, State(b"model", {}, FACTS), HEAD)
    assert checkpoints.read().facts == FACTS
    model = hashlib.sha256(b"model").hexdigest()
    facts = FACTS | {"leg": 2, "head": HEAD.to_json(), "model": model}
    metadata = json.dumps([] if changed is None else facts | changed)
    arrays = {"leg": np.array([2], np.int64)}
    checkpoints.state_file(2).write_bytes(safetensors.numpy.save(arrays, {"tacit": metadata}))
    with pytest.raises(ValueError, match="is truncated or damaged") as refusal:
        checkpoints.read()
    assert said in str(refusal.value)
    assert str(checkpoints.state_file(2)) in str(refusal.value)


@pytest.mark.parametrize(
    "changed",
    [{"momentum": np.ones(3, np.float32)}, {"momentum": np.zeros(3)}, {}, {"leg": np.array([3])}],
)
def test_arrays_of_a_checkpoint_that_were_changed_are_refused(tmp_path, changed):
    checkpoints = Checkpoints(tmp_path)
    arrays = {"momentum": np.zeros(3, np.float32)}
    checkpoints.write(2, State(b"model", arrays, FACTS), HEAD)
    assert list(checkpoints.read().arrays) == ["momentum"]
    with safetensors.safe_open(checkpoints.state_file(2), framework="numpy") as file:
        metadata = file.metadata()
    other = {"leg": np.array([2], np.int64)} | (arrays | changed if changed else {})
    checkpoints.state_file(2).write_bytes(safetensors.numpy.save(other, metadata))
    with pytest.raises(ValueError, match="the digest of its arrays is another"):
        checkpoints.read()


def test_a_checkpoint_that_lacks_what_its_task_needs_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(2, State(b"model", {}, {"tokenizer": "ab"}), HEAD)
    with pytest.raises(ValueError, match="lacks what its task needs"):
        checkpoints.read()


def test_metadata_of_weights_that_are_nested_deeply_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    data = safetensors.numpy.save({"a": np.zeros(1)}, {"tacit": DEEPER.decode()})
    refused(path, data, lambda: trained_on(path))


@pytest.mark.parametrize("size", [0, 2**63, 2**40, 8])
def test_a_header_of_weights_that_lies_about_its_size_is_refused(tmp_path, size):
    path = tmp_path / "model.safetensors"
    refused(path, size.to_bytes(8, "little") + b"{}" + b"x" * 8, lambda: trained_on(path))


# A corpus, its caches, and tokenizers.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("damaged") / "corpus")


@pytest.mark.parametrize("data", NOT_OURS)
def test_a_description_of_a_corpus_that_is_none_is_refused(corpus, data):
    file = corpus / "corpus.json"
    kept = file.read_bytes()
    try:
        refused(file, data, lambda: Corpus.open(corpus))
    finally:
        file.write_bytes(kept)


@pytest.mark.parametrize(
    "changed",
    [
        {"users": "60"},
        {"users": 61},
        {"test_users": 61},
        {"test_users": -1},
        {"salt": "zz"},
        {"salt": 3},
        {"fingerprint": "../.."},
        {"bytes": []},
        {"bytes": {"users.arrow": "3", "texts.arrow": 3}},
        {"digests": {}},
        {"digests": {"users.arrow": 1, "texts.arrow": 2, "lines.json": 3}},
        {"inputs": [3]},
        {"inputs": [{"sha256": 3}]},
        {"overlaps": [3]},
        {"overlaps": [["a", "b"]]},
        {"people": None},
        {"about_people": "no"},
    ],
)
def test_a_field_of_a_corpus_that_is_wrong_is_refused(corpus, changed):
    file = corpus / "corpus.json"
    kept = file.read_bytes()
    try:
        data = json.dumps(json.loads(kept) | changed).encode()
        refused(file, data, lambda: Corpus.open(corpus))
    finally:
        file.write_bytes(kept)


@pytest.mark.parametrize("data", NOT_OURS)
def test_a_token_cache_whose_description_is_none_is_damaged(tmp_path, data):
    (tmp_path / "cache.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"cache\.json is damaged"):
        _Description.read(tmp_path)


@pytest.mark.parametrize("data", NOT_OURS)
def test_a_tokenizer_that_is_none_is_refused(tmp_path, data):
    path = tmp_path / "tokenizer.json"
    for load in (Tokenizer.load, PieceVocabulary.load):
        refused(path, data, lambda load=load: load(path))


@pytest.mark.parametrize("data", [*NOT_OURS, b'{"provenance": 3, "sha256": {}}'])
def test_an_origin_that_is_none_is_refused(tmp_path, data):
    make_tokenizer(tmp_path)
    refused(tmp_path / "origin.json", data, lambda: PieceVocabulary.load(tmp_path))


def test_a_deeply_nested_line_of_a_persons_text_is_refused(tmp_path):
    path = tmp_path / "own.jsonl"
    refused(path, DEEPER + b"\n", lambda: read_texts(path))


def test_files_that_are_not_there_are_told_from_damaged_ones(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json", dict[str, Any])
    assert read_lines(tmp_path / "none.jsonl", dict[str, Any]) == []


# Ledgers whose chain of hashes was made again around something else.

HEADER = Header(run_id="ab", unit="user", population=100, delta=1e-3)
CHARGE = Charge("round", 0, 0, PoissonGaussian(0.1, 1.0), "ab")
KINDS: list[Any] = [None, -1, "x", [[1, 2]], {"a": 1}, 10**400]


def resealed(line: bytes, previous: str | None) -> list[tuple[bytes, str]]:
    """The line with each of its fields exchanged in turn, with the hash that it then needs."""
    fields = json.loads(line)
    del fields["hash"]
    fields |= {} if previous is None else {"previous": previous}
    names = [name for name in fields if name not in ("format", "previous")]
    return [
        seal({key: value for key, value in fields.items() if key != name} | changed)
        for name in names
        for changed in [{}, *({name: kind} for kind in KINDS)]
    ]


def test_a_ledger_sealed_around_something_else_is_read_or_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger.create(path, HEADER) as ledger:
        ledger.charge([CHARGE])
    first, second = path.read_bytes().splitlines(keepends=True)
    head = json.loads(first)["hash"]
    files = [line for line, _ in resealed(first, None)]
    files += [first + line for line, _ in resealed(second, head)]
    for data in files:
        path.write_bytes(data)
        with suppress(LedgerError):
            Guarantee.of(Ledger.read(path))


def test_a_people_ledger_sealed_around_something_else_is_read_or_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    lines = [json.loads(line) for line, _ in resealed(HEADER.line()[0], None)]
    for row in [
        *({name: kind} for name in ("budget", "merged_into", "learnt") for kind in KINDS),
        *({"run": "ab", "line": line} for line in [*KINDS, *lines]),
    ]:
        first, head = seal({"format": FORMAT})
        second, _ = seal(row | {"previous": head})
        path.write_bytes(first + second)
        with suppress(LedgerError):
            PeopleLedger(tmp_path).account()
