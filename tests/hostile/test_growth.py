"""Long runs and many measurements: work that grows with a run is done once, and not in each round.

Work is counted (rows looked at, lines parsed, bytes read) and not timed, since machines are busy.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter, itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.corpus.people_ledger import PeopleLedger
from tacit.privacy import documents
from tacit.privacy.events import PoissonGaussian
from tacit.privacy.guarantee import Guarantee, ReleaseGroup
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Entry, Header, LedgerError, Pattern, seal
from tacit.report import facts
from tacit.report.figures import shares_chart
from tacit.report.metrics import MOST_ROWS, thinned
from tacit.report.page import _environment, render
from tacit.runs.checkpoints import Checkpoints
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.train import train
from tests.runs.small import WORDS, experiment, make_folder, make_tokenizer

MANY = 3000
HEADER = Header(run_id="run-1", unit="user", population=1000, delta=1e-5)


def charge(round: int) -> Charge:
    return Charge("round", round, 0, PoissonGaussian(0.01, 1.0), "ab" * 32)


def ledger_of(path: Path, rounds: int) -> Ledger:
    ledger = Ledger.create(path, HEADER)
    if rounds:
        ledger.charge([charge(round) for round in range(rounds)])
    return ledger


@contextmanager
def counted(monkeypatch, owner, name):
    """How often a function is called inside."""
    calls, real = [], getattr(owner, name)
    with monkeypatch.context() as patch:
        patch.setattr(
            owner, name, lambda *args, **named: (calls.append(1), real(*args, **named))[1]
        )
        yield calls


def bytes_read() -> int:
    """What this process has asked the system to read so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


class Watched(Sequence):
    """Rows that count how often one is looked at."""

    def __init__(self, rows):
        self.rows, self.looked = rows, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.looked += 1
        return self.rows[index]


# The report.


def test_thinned_curves_keep_ends_and_extremes():
    rows = [SimpleNamespace(a=(n * 7919) % 10_007, b=None if n % 2 else -n) for n in range(100_000)]
    rows[54_321].a, rows[12_345].a = 1e6, -1e6
    kept = thinned(rows, [attrgetter("a"), attrgetter("b")])
    assert len(kept) <= MOST_ROWS
    assert kept[0] is rows[0]
    assert kept[-1] is rows[-1]
    assert {1e6, -1e6} <= {row.a for row in kept}
    assert [rows.index(row) for row in kept[:20]] == sorted(rows.index(row) for row in kept[:20])
    assert thinned(rows[:MOST_ROWS], [attrgetter("a")]) == rows[:MOST_ROWS]


def test_a_chart_of_a_hundred_thousand_measurements_is_small():
    rows = [{"round": n, "epsilon": None, "accuracy": (n % 97) / 97} for n in range(100_000)]
    shown = thinned(rows, [itemgetter("accuracy")])
    chart = shares_chart("title", "in %", "rounds", shown, {"accuracy": "top-1"})
    draw = _environment().get_template("charts.html").module.draw
    assert len(draw(chart)) < 30_000


@pytest.mark.slow
def test_a_page_of_a_hundred_thousand_measurements_is_small(tmp_path):
    folder = make_folder(tmp_path)
    run = train(experiment(folder, rounds=2), tmp_path / "run")
    row = run.metrics()[-1]
    lines = [
        json.dumps(row | {"round": n, "accuracy_top1": n % 97 / 97}) + "\n" for n in range(100_000)
    ]
    run.directory.metrics_file.write_text("".join(lines))
    gathered = facts.gather(run)
    assert len(gathered["metrics"]) <= MOST_ROWS
    assert len(render(gathered).encode()) < 2e6
    assert len(json.dumps(gathered)) < 2e6


def test_the_last_measurement_is_read_from_the_end(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert documents.last_line(file, dict) is None
    lines = [json.dumps({"round": n, "text": "x" * 200}) + "\n" for n in range(10_000)]
    file.write_text("".join(lines) + '{"round": 10000, "torn')
    before = bytes_read()
    assert documents.last_line(file, dict)["round"] == 9_999
    assert bytes_read() - before < 200_000 < file.stat().st_size
    assert len(documents.read_lines(file, dict)) == 10_000


@pytest.mark.parametrize("size", [1, 100, 65_535, 65_536, 200_000])
def test_the_last_row_is_found_whatever_its_length(tmp_path, size):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"n": 1}) + "\n" + json.dumps({"n": 2, "text": "x" * size}) + "\n")
    assert documents.last_line(file, dict)["n"] == 2
    file.write_text('{"n": 3')
    assert documents.last_line(file, dict) is None
    file.write_text(json.dumps({"n": 4, "text": "x" * size}) + "\n")
    assert documents.last_line(file, dict)["n"] == 4


def test_counting_releases_makes_no_record_for_each(tmp_path, monkeypatch):
    ledger = ledger_of(tmp_path / "l", MANY)
    with counted(monkeypatch, ReleaseGroup, "__init__") as calls:
        made = Guarantee.of(ledger)
    assert len(calls) < 5
    assert [part.count for part in made.parts] == [MANY]


# Many people, and one who writes very much: a tenth of what `bench/growth.py` records.

PEAK = r"""
import re, sys
from pathlib import Path
from tacit.cli.main import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
"""


def peak_of(*words) -> int:
    """The most memory that a command has had, in megabytes."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1]) // 1024


@pytest.mark.slow
@pytest.mark.parametrize("users", ["many", "talkative"])
def test_many_people_and_one_who_writes_very_much_take_little_memory(tmp_path, users):
    text = " ".join(WORDS[:10])
    written = range(100_000) if users == "many" else [*range(200), *[200] * 100_000]
    with (tmp_path / "chats.csv").open("w") as file:
        file.write("user,text\n")
        file.writelines(f"{user},{text}\n" for user in written)
    make_tokenizer(tmp_path)
    larger = {"plan": {"population": 1_000_000}, "privacy": {"delta": 1e-9}}
    own = experiment(tmp_path, rounds=2, **larger)
    (tmp_path / "recipe.toml").write_text(own.to_toml())
    ingested = peak_of("ingest", tmp_path / "chats.csv", "--out", tmp_path / "corpus")
    run = tmp_path / "run"
    trained = peak_of("train", tmp_path / "recipe.toml", "--run", run, "--workers", 1)
    reported = peak_of("report", run)
    assert (ingested < 600, trained < 650, reported < 400) == (True,) * 3, (
        ingested,
        trained,
        reported,
    )


# The ledger.


def test_events_that_are_alike_are_made_once(tmp_path, monkeypatch):
    ledger_of(tmp_path / "l", MANY).close()
    with counted(monkeypatch, Entry, "from_json") as calls:
        ledger = Ledger.read(tmp_path / "l")
    assert len(calls) < 10
    assert [entry.round for entry in ledger.entries] == list(range(MANY))
    assert ledger.entries[7] == ledger_of(tmp_path / "m", 8).entries[7]


@given(
    st.text().filter(str.isprintable).filter(bool),
    st.integers(0, 10**20),
    st.integers(0, 10**20),
)
def test_a_line_is_foreseen_in_the_bytes_that_are_written(note, index, round):
    about = {"note": note, "index": index, "branch": "main"}
    entry = replace(Entry(**vars(charge(0)) | about), estimator="100%s %(round)d")
    pattern = Pattern.of_entry(entry.to_json())
    line, line_hash = entry.next().line("ab" * 32)
    after = {"index": index + 1, "round": 1, "previous": "ab" * 32}
    assert pattern.filled(**after) == (line.rstrip(b"\n"), line_hash)
    assert pattern.filled(**after | {"round": round + 2})[0] != line.rstrip(b"\n")


def test_what_is_foreseen_is_what_is_read_without_foresight(tmp_path, monkeypatch):
    """A stretch of equal rounds, a repeated one, another event, and equal rounds again."""
    ledger = ledger_of(tmp_path / "l", 5)
    other = replace(charge(6), event=PoissonGaussian(0.02, 1.0))
    ledger.charge([replace(charge(4), attempt=1), charge(5), other, replace(other, round=7)])
    people = PeopleLedger(tmp_path)
    people.witness(ledger)
    foreseen = Ledger.read(tmp_path / "l"), PeopleLedger(tmp_path).runs()
    for owner in (Ledger, PeopleLedger):
        monkeypatch.setattr(owner, "_foreseen", lambda self, above: None)
    plain = Ledger.read(tmp_path / "l"), PeopleLedger(tmp_path).runs()
    assert foreseen[0].entries == plain[0].entries == ledger.entries
    assert foreseen[0].hashes == plain[0].hashes
    assert foreseen[0].composition() == plain[0].composition()
    assert foreseen[1] == plain[1]


def test_no_byte_of_a_long_ledger_can_be_changed(tmp_path):
    ledger_of(tmp_path / "l", 20).close()
    data = (tmp_path / "l").read_bytes()
    for at in range(0, len(data), 41):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        (tmp_path / "l").write_bytes(changed)
        with pytest.raises(LedgerError):
            Ledger.read(tmp_path / "l")


@pytest.mark.parametrize("attempt", ["false", "0.0"])
def test_what_equals_the_line_above_in_another_type_is_not_taken_for_it(tmp_path, attempt):
    ledger = ledger_of(tmp_path / "l", 3)
    ledger.close()
    lines = (tmp_path / "l").read_bytes().splitlines()
    fields = json.loads(lines[-1]) | {"attempt": json.loads(attempt)}
    del fields["hash"]
    (tmp_path / "l").write_bytes(b"\n".join([*lines[:-1], seal(fields)[0]]))
    with pytest.raises(LedgerError, match=r"line 4.*the entry is not valid"):
        Ledger.read(tmp_path / "l")


@pytest.mark.parametrize("index", ["01", "1.0", "-1", "1e0", '"1"', "true", "9" * 5000])
def test_a_number_in_another_spelling_is_still_refused(tmp_path, index):
    ledger_of(tmp_path / "l", 3).close()
    data = (tmp_path / "l").read_bytes()
    (tmp_path / "l").write_bytes(data.replace(b'"index":1,', b'"index":%s,' % index.encode()))
    with pytest.raises(LedgerError, match="line 3"):
        Ledger.read(tmp_path / "l")


def test_a_charge_reads_as_much_after_many_as_after_few(tmp_path):
    def read_by_a_charge(folder: Path, rounds: int) -> int:
        folder.mkdir()
        people = PeopleLedger(folder)
        ledger = ledger_of(folder / "run.jsonl", rounds)
        people.witness(ledger)
        ledger.charge([charge(rounds)])
        before = bytes_read()
        ledger.charge([charge(rounds + 1)])
        return bytes_read() - before

    few = read_by_a_charge(tmp_path / "few", 1)
    many = read_by_a_charge(tmp_path / "many", MANY)
    assert many - few < 1000


# A round.


@pytest.mark.parametrize(("leg", "looked"), [(MANY, 5), (MANY + 1, 1)])
def test_a_round_looks_at_the_last_measurements_only(leg, looked):
    """It is due in the first case, where the last are averaged; in the second nothing is."""
    rows = Watched([{"round": n, "accuracy_top1": 0.5} for n in range(MANY)])
    settings = SimpleNamespace(every=1000, smooth=5)
    trainer = SimpleNamespace(
        _experiment=SimpleNamespace(evaluation=settings),
        _just_switched=False,
        _released=lambda: None,
        _evaluate=lambda model: SimpleNamespace(as_row=lambda: {"accuracy_top1": 1.0}),
        clip_state=SimpleNamespace(total_norm=1.0),
        end=10 * MANY,
    )
    row = LanguageTrainer.evaluate(trainer, leg, rows, lambda: 1.0, now=False)
    assert rows.looked <= looked
    if row is not None:
        assert row["accuracy_top1_smoothed"] == pytest.approx((4 * 0.5 + 1.0) / 5)


def test_checkpoints_are_listed_once(tmp_path, monkeypatch):
    """A run that keeps all of them must not list a folder that grows after each leg."""
    checkpoints = Checkpoints(tmp_path)
    with counted(monkeypatch, Checkpoints, "legs") as calls:
        for _ in range(10):
            checkpoints.prune(lambda leg: True)
    assert len(calls) == 1
