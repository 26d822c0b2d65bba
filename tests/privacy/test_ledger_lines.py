"""Whatever is done to a ledger's lines is noticed, and the refusal names the right line."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.budget import Budget
from tacit.privacy.events import (
    Adjacency,
    Composition,
    FixedSizeGaussian,
    Gaussian,
    Lapse,
    PoissonGaussian,
    PostProcessing,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import (
    Charge,
    Entry,
    Head,
    Header,
    LedgerError,
    Parent,
    PriorCost,
    PublicInput,
    _open_seal,
    seal,
)

HEADER = Header(run_id="run-1", unit="user", population=1000, delta=1e-5)
ROUND = PoissonGaussian(0.01, 1.0)
PLAN = "ab" * 32


def make(path: Path, event: PoissonGaussian = ROUND) -> list[Head]:
    """A ledger of six lines, and the heads it had on the way."""
    with Ledger.create(path, HEADER) as ledger:
        return [ledger.head] + [
            ledger.charge(
                [Charge(kind="round", round=round, attempt=0, event=event, plan_hash=PLAN)]
            )
            for round in range(5)
        ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def refused_at(data: bytes, head: Head | None = None) -> int:
    """The line that the refusal of these bytes names."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.jsonl"
        path.write_bytes(data)
        with pytest.raises(LedgerError) as caught:
            Ledger.open(path, head)
        assert path.read_bytes() == data
    message = str(caught.value)
    assert message.startswith(f"the ledger {path} cannot be trusted at line ")
    assert "\n" not in message
    found = re.search(r"at line (\d+): ", message)
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Head]:
    """The bytes of a ledger of six lines, and its head."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    head = make(path)[-1]
    return path.read_bytes(), head


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed_at_its_line(
    intact: tuple[bytes, Head], data: st.DataObject
) -> None:
    original, head = intact
    position = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != original[position]))
    changed = original[:position] + bytes([byte]) + original[position + 1 :]
    line = original[:position].count(b"\n") + 1
    assert refused_at(changed) == line
    assert refused_at(changed, head) == line


@pytest.mark.parametrize("line", range(1, 7))
def test_a_removed_line_is_noticed_where_it_was(intact: tuple[bytes, Head], line: int) -> None:
    original, head = intact
    lines = original.splitlines(keepends=True)
    del lines[line - 1]
    assert refused_at(b"".join(lines), head) == line
    if line < 6:
        assert refused_at(b"".join(lines)) == line


@given(st.integers(0, 5), st.integers(0, 5))
@settings(deadline=None)
def test_lines_that_changed_places_are_noticed_at_the_first(
    intact: tuple[bytes, Head], one: int, other: int
) -> None:
    lines = intact[0].splitlines(keepends=True)
    lines[one], lines[other] = lines[other], lines[one]
    if one != other:
        assert refused_at(b"".join(lines)) == min(one, other) + 1


@given(st.integers(0, 5), st.data())
@settings(deadline=None)
def test_a_repeated_line_is_noticed_at_its_second_place(
    intact: tuple[bytes, Head], line: int, data: st.DataObject
) -> None:
    lines = intact[0].splitlines(keepends=True)
    place = data.draw(st.integers(line + 1, 6))
    lines.insert(place, lines[line])
    assert refused_at(b"".join(lines)) == place + 1


@given(st.data())
@settings(deadline=None)
def test_a_cut_off_ledger_is_noticed_by_the_head_wherever_it_was_cut(
    intact: tuple[bytes, Head], data: st.DataObject
) -> None:
    original, head = intact
    kept = original[: data.draw(st.integers(0, len(original) - 1))]
    assert refused_at(kept, head) == kept.count(b"\n") + 1
    if kept and not kept.endswith(b"\n"):
        assert refused_at(kept) == kept.count(b"\n") + 1


def test_only_a_head_notices_whole_lines_cut_off_at_the_end(path: Path) -> None:
    head = make(path)[-1]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    assert len(Ledger.open(path).entries) == 3
    with pytest.raises(
        LedgerError,
        match="line 5: it is missing: the ledger ends after 3 entries, and the checkpoint has 5",
    ):
        Ledger.open(path, head)


def test_a_ledger_forged_from_scratch_is_noticed_by_the_head(tmp_path: Path) -> None:
    head = make(tmp_path / "true")[-1]
    make(tmp_path / "forged", PoissonGaussian(0.01, 9.0))
    assert refused_at((tmp_path / "forged").read_bytes(), head) == 6


def test_a_head_from_earlier_is_fine_and_one_of_the_header_too(path: Path) -> None:
    heads = make(path)
    for head in heads:
        assert Ledger.open(path, head).head == heads[-1]


def sealed(fields: dict[str, object]) -> bytes:
    """A line whose hash is right, whatever it says."""
    return seal(fields)[0]


GOOD_HEADER = {"format": "tacit-ledger-2"} | HEADER.to_json()
GOOD_ENTRY = Entry("round", 0, 0, ROUND, PLAN, index=0, branch="main").to_json() | {
    "previous": HEADER.line()[1]
}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"event": {"kind": "magic"}}, "unknown privacy event 'magic'"),
        ({"event": {"kind": ["magic"]}}, "the entry is not valid"),
        ({"event": {"kind": "gaussian"}}, "needs the fields"),
        ({"event": ["gaussian"]}, "event must be a JSON object"),
        ({"event": ROUND.to_json() | {"noise_multiplier": -1.0}}, "noise_multiplier must be"),
        ({"event": ROUND.to_json() | {"noise_multiplier": "1"}}, "the entry is not valid"),
        ({"plan_hash": "AB"}, "plan_hash must be"),
        ({"round": -1}, "round must be at least 0"),
        ({"attempt": True}, "attempt must be a whole number"),
        ({"kind": ""}, "kind must be text"),
        ({"note": 3}, "note must be text"),
        ({"estimator": 3}, "estimator must be text"),
        ({"time": 3}, "needs the fields"),
        ({"branch": "other"}, "of the branch 'other', and the ledger of 'main'"),
        ({"index": 1}, "it holds entry 1 where entry 0 belongs"),
        ({"previous": "00"}, "it does not follow from the line above"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_though_its_hash_is_right(
    path: Path, changes: dict[str, object], what: str
) -> None:
    path.write_bytes(sealed(GOOD_HEADER) + sealed(GOOD_ENTRY))
    Ledger.open(path)
    path.write_bytes(sealed(GOOD_HEADER) + sealed(GOOD_ENTRY | changes))
    with pytest.raises(LedgerError, match=f"at line 2: .*{what}"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"format": "tacit-ledger-1"}, "not the header of a ledger in the format tacit-ledger-2"),
        ({"unit": "household"}, "unit must be one of user, record, got 'household'"),
        ({"population": 0}, "population must be at least 1"),
        ({"delta": 1}, "delta must be strictly between 0 and 1"),
        ({"run_id": ""}, "run_id must be text"),
        ({"branch": 1}, "branch must be text"),
        ({"host": "here"}, "needs the fields"),
        ({"budget": {"epsilon": 1.0}}, "the header is not valid"),
        ({"budget": {"epsilon": 0, "delta": 0.1, "accountant": "pld"}}, "epsilon must be"),
        ({"budget": {"epsilon": 1, "delta": 0.1, "accountant": ""}}, "accountant must be text"),
        ({"parent": "run-0"}, "parent needs the fields"),
        ({"view": "mixed"}, "view must be one of people, iid, synthetic, got 'mixed'"),
        ({"counted": "days"}, "counted must be one of"),
        ({"adjacency": "swap"}, "'swap' is not a valid Adjacency"),
        ({"simulation": 0}, "simulation must be true or false"),
        ({"audit": None}, "audit must be true or false"),
        ({"population_is_counted": 1}, "population_is_counted must be true or false"),
        ({"people": 7}, "people must be text"),
        ({"part": 1}, "part must be text"),
        ({"split": None}, "split must be text"),
        ({"accountant": 3}, "accountant must be text"),
        ({"data": None}, "data must be text"),
        ({"experiment": ["ab"]}, "experiment must be text"),
        ({"public_inputs": [{"what": "dictionary"}]}, "the header is not valid"),
        ({"public_inputs": [{"what": "a", "name": "b", "sha256": "XY"}]}, "sha256 must be"),
        ({"prior_costs": [{"what": "tokenizer"}]}, "a prior cost needs the fields"),
        (
            {"parent": {"run_id": "run-0", "head": {"entries": 2, "hash": "00"}, "round": 0}},
            "it is missing: the ledger ends after 0 entries, and the branch inherits 2",
        ),
    ],
)
def test_a_header_that_makes_no_sense_is_refused_though_its_hash_is_right(
    path: Path, changes: dict[str, object], what: str
) -> None:
    path.write_bytes(sealed(GOOD_HEADER | changes))
    with pytest.raises(LedgerError, match=f"at line [12]: .*{what}"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "the file is empty"),
        (b"\n", "cut off or not valid JSON"),
        (b"[]\n", "not a JSON object"),
        (b"{ }\n", "not a JSON object as tacit writes it"),
        (b'{"delta":NaN}\n', "not valid JSON"),
        (b"[" * 100_000 + b"\n", "not valid JSON"),
        (b"\xff\xfe\n", "not valid JSON"),
        (b"{}\n", "its hash does not match"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(path: Path, data: bytes, what: str) -> None:
    path.write_bytes(data)
    with pytest.raises(LedgerError, match=f"at line 1: .*{what}"):
        Ledger.open(path)


def test_a_missing_ledger_is_one_sentence(path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at"):
        Ledger.open(path)


# Everything that a header says is under the chain.

FULL = Header(
    run_id="run-9",
    unit="record",
    population=77,
    delta=1e-4,
    budget=Budget(2.0, 1e-5, "rdp"),
    branch="b",
    parent=Parent("run-8", Head(0, "aa"), 3),
    adjacency=Adjacency.REPLACE,
    view="iid",
    simulation=True,
    audit=True,
    population_is_counted=True,
    counted="steps",
    accountant="rdp",
    people="0123456789abcdef",
    part="1/2",
    split="ba",
    data="cd",
    experiment="ef",
    excluded=("this", "that \N{BLACK STAR}"),
    public_inputs=(PublicInput("dictionary", "words.txt", "ab"),),
    prior_costs=(
        PriorCost(
            "tokenizer",
            "beside",
            "0123456789abcdef",
            "1/2",
            Composition.of([(Gaussian(2.0), 3), Lapse(1e-7)]),
            Head(2, "bb"),
            ("the test users of another run",),
        ),
    ),
)

OTHERS: dict[str, object] = {
    "run_id": "run-10",
    "unit": "user",
    "population": 78,
    "delta": 2e-4,
    "budget": Budget(3.0, 1e-5, "rdp"),
    "branch": "c",
    "parent": Parent("run-8", Head(0, "aa"), 4),
    "adjacency": Adjacency.ADD_REMOVE,
    "view": "people",
    "simulation": False,
    "audit": False,
    "population_is_counted": False,
    "counted": "epochs",
    "accountant": None,
    "people": "1123456789abcdef",
    "part": "2/2",
    "split": "bb",
    "data": "ce",
    "experiment": "e0",
    "excluded": ("this",),
    "public_inputs": (PublicInput("dictionary", "words.txt", "ac"),),
    "prior_costs": (PriorCost("tokenizer", "elsewhere"),),
}


def test_a_header_with_everything_in_it_is_there_after_opening_again(path: Path) -> None:
    assert Ledger.create(path, FULL).header == FULL
    assert Ledger.read(path).header == FULL
    assert Ledger.read(path, torn_is_left_out=True).header == FULL


def test_every_field_of_a_header_is_tried_below() -> None:
    assert set(OTHERS) == {one.name for one in dataclasses.fields(Header)}


@pytest.mark.parametrize("name", OTHERS)
def test_no_field_of_a_header_can_change_without_the_head(path: Path, name: str) -> None:
    changed = dataclasses.replace(FULL, **{name: OTHERS[name]})  # type: ignore[arg-type]
    assert changed.line()[1] != FULL.line()[1]
    head = Ledger.create(path, FULL).head
    path.write_bytes(changed.line()[0])
    assert Ledger.read(path).header == changed
    with pytest.raises(LedgerError, match="its hash is not the one that the checkpoint has"):
        Ledger.read(path, head)


def test_a_header_of_another_run_lets_no_entry_follow(path: Path) -> None:
    make(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0] = dataclasses.replace(HEADER, simulation=True).line()[0]
    assert refused_at(b"".join(lines)) == 2


def test_an_entry_of_another_adjacency_than_the_header_declares_is_refused(path: Path) -> None:
    declared = dataclasses.replace(HEADER, adjacency=Adjacency.ADD_REMOVE)
    first, line_hash = declared.line()
    for event in (ROUND, PostProcessing("free"), Lapse(1e-9)):
        entry = Entry("round", 0, 0, event, PLAN, index=0, branch="main").to_json() | {
            "previous": line_hash
        }
        path.write_bytes(first + sealed(entry))
        assert Ledger.read(path).entries[0].event == event
    fixed = Entry(
        "round", 0, 0, FixedSizeGaussian(100, 10, 1.0), PLAN, index=0, branch="main"
    ).to_json()
    path.write_bytes(first + sealed(fixed | {"previous": line_hash}))
    with pytest.raises(
        LedgerError, match="line 2: its event is stated for replace-one adjacency, and the ledger"
    ):
        Ledger.read(path)


@given(
    st.dictionaries(
        st.sampled_from(["a", "hasg", "hash ", "hasi", "z", "\N{BLACK STAR}"]),
        st.one_of(st.none(), st.text(), st.integers(), st.lists(st.text(), max_size=2)),
    )
)
def test_a_sealed_line_opens_and_no_other(fields: dict[str, object]) -> None:
    line, line_hash = seal(fields)
    assert _open_seal(line[:-1], Path("l"), 1) == (fields, line_hash)
    changed = seal(fields | {"more": 1})[0][:-1].replace(b'"more":1', b'"more":2')
    with pytest.raises(LedgerError, match="it was changed"):
        _open_seal(changed, Path("l"), 1)
