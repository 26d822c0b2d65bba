"""`tacit audit`: what is found, where it is written, and the gate for CI."""

import json

import pytest

from tacit.audit.gate import Gate
from tacit.train import train
from tests.train.small import experiment, make_folder

GRID = {
    "sharers": [2.0],
    "example_probs": [1.0],
    "per_cell": 2,
    "max_share": 0.9,
    "words": 4,
    "also": [{"sharers": 30.0, "example_prob": 1.0, "canaries": 1}],
}
QUICK = ["--samples", "200", "--controls", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("audited"))


@pytest.fixture(scope="module")
def leaky(folder):
    """No clip, no noise, and a canary in most users' texts: it is memorized."""
    path = folder / "leaky"
    plan = {"clipping": "none", "clip_norm": None, "noise_multiplier": 0.0}
    wanted = experiment(folder).changed(
        rounds=12,
        plan=plan | {"estimator": "true-average", "cohort": 40.0, "sampling": "fixed"},
        update={"learning_rate": 2.0, "local_epochs": 3},
        server={"optimizer": "sgd"},
        audit={"canaries": GRID},
        evaluation={"every": 12},
    )
    train(wanted, path)
    return path


@pytest.fixture(scope="module")
def private(folder):
    path = folder / "private"
    train(experiment(folder).changed(audit={"canary_clients": 60, "canaries": GRID}), path)
    return path


@pytest.fixture
def tacit(command):
    return command("audit")


def test_a_model_without_protection_gives_its_canary_away(tacit, leaky):
    found = tacit.json(leaky, *QUICK, "--ranks")
    assert found["canaries"] == 3
    [shared] = [row for row in found["rows"] if row["expected_sharers"] == 30]
    assert shared["memorized_rs"]
    assert shared["copies"] > 50
    assert found["memorized_rs"] == sum(row["memorized_rs"] for row in found["rows"])
    assert found["memorized_bs"] == sum(row["memorized_bs"] for row in found["rows"])
    assert shared["exposure"] == max(row["exposure"] for row in found["rows"])
    assert found["controls"]["memorized_rs"] <= 1
    assert found["accounted_epsilon"] is None
    written = json.loads((leaky / "audit.json").read_text())
    assert written["rows"] == found["rows"]


def test_the_empirical_epsilon_stands_beside_the_accounted_one(tacit, private):
    found = tacit.json(private, *QUICK)
    empirical = found["empirical_epsilon"]
    assert {"estimate", "lower_bound", "confidence", "ceiling"} <= set(empirical)
    assert 0 <= empirical["lower_bound"] <= found["accounted_epsilon"]
    assert empirical["lower_bound"] <= empirical["ceiling"]
    assert empirical["canaries"] == 60
    assert "the claim of" in empirical["says"]


def test_membership_is_internal(tacit, private):
    found = tacit.json(private, *QUICK, "--membership", "--texts", "training")
    low, high = found["membership_auc"]["interval"]
    assert 0 <= low <= found["membership_auc"]["value"] <= high <= 1
    public = (private / "audit.json").read_text()
    assert "membership" not in public
    internal = json.loads((private / "private" / "audit.json").read_text())
    assert [attack["name"] for attack in internal["membership"]["attacks"]] == ["loss"]
    assert 5 < internal["membership"]["members"] < 40  # without those in whose texts canaries are
    said = " ".join(tacit.says(private, *QUICK, "--membership", "--texts", "all").split())
    assert "internal, not for publication" in said


def test_reference_models_add_the_stronger_attacks(tacit, private):
    found = tacit.json(private, *QUICK, "--references", "1", "--texts", "training")
    names = [attack["name"] for attack in found["membership"]["attacks"]]
    assert {"user_inference", "loss", "rmia"} <= set(names)
    assert found["membership_auc"]["attack"] == "user_inference"


def test_the_gate(tacit, leaky):
    code, _, err = tacit(leaky, *QUICK, "--fail-if", "memorized>0")
    assert code == 1
    assert "the audit fails: memorized>0" in err
    assert tacit(leaky, *QUICK, "--fail-if", "memorized>3")[0] == 0
    refused = tacit.refused(leaky, *QUICK, "--fail-if", "membership_auc>0.6")
    assert "this audit has no figure membership_auc" in refused


@pytest.mark.parametrize("text", ["memorized", "memorised>0", "memorized>few", "memorized=0", ""])
def test_a_gate_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match="--fail-if"):
        Gate.parse(text)


def test_phrases_of_ones_own(tacit, leaky, tmp_path, command):
    [shared] = [
        row
        for row in json.loads((leaky / "canaries.json").read_text())["canaries"]
        if row["expected_sharers"] == 30
    ]
    file = tmp_path / "phrases.txt"
    file.write_text(f"{shared['text']}\n\nred blue\n", encoding="utf-8")
    found = tacit.json(leaky, *QUICK, "--phrases", file)
    assert [row["text"] for row in found["phrases"]] == [shared["text"], "red blue"]
    assert found["phrases"][0]["memorized_rs"]
    bundle = tmp_path / "bundle"
    command("export")(leaky, "--out", bundle, "--not-for-release")
    alone = tacit.json(bundle, *QUICK, "--phrases", file)
    assert alone["phrases"][0]["memorized_rs"]
    assert alone["canaries"] == 0
    assert "nothing was planted in it" in tacit.refused(bundle, *QUICK)


def test_mistakes_are_one_sentence(tacit, private_run, leaky, tmp_path):
    assert "was trained without canaries" in tacit.refused(private_run)
    file = tmp_path / "phrases.txt"
    file.write_text("the elephant runs\n", encoding="utf-8")
    assert "'elephant' of the phrase" in tacit.refused(leaky, "--phrases", file)
    file.write_text("red " * 21 + "\n", encoding="utf-8")
    assert "has 21 tokens" in tacit.refused(leaky, "--phrases", file)
    file.write_text("red\n", encoding="utf-8")
    assert "has 1 tokens" in tacit.refused(leaky, "--phrases", file)
    file.write_text("\n", encoding="utf-8")
    assert "holds no phrases" in tacit.refused(leaky, "--phrases", file)
    file.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in tacit.refused(leaky, "--phrases", file)
    assert "has fresh texts" in tacit.refused(leaky, "--samples", "9", "--membership")
    assert "samples must" in tacit.refused(leaky, "--samples", "0")
    assert "there is no run" in tacit.refused(tmp_path / "nowhere")


def test_phrases_are_their_owners_secret(tacit, leaky, tmp_path):
    file = tmp_path / "phrases.txt"
    file.write_text("red blue tree\n", encoding="utf-8")
    tacit.json(leaky, *QUICK, "--phrases", file)
    public = json.loads((leaky / "audit.json").read_text())
    assert [row["text"] for row in public["phrases"]] == ["phrase 1"]
    internal = leaky / "private" / "audit.json"
    assert json.loads(internal.read_text())["phrases"][0]["text"] == "red blue tree"
    tacit.json(leaky, *QUICK)
    assert not internal.exists()  # an audit without them does not inherit them


def test_an_audit_keeps_what_an_earlier_one_found_of_membership(tacit, private):
    tacit.json(private, *QUICK, "--membership", "--texts", "training")
    tacit.json(private, *QUICK)
    kept = json.loads((private / "private" / "audit.json").read_text())
    assert kept["membership"]["texts"] == "training"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text": 5}, "is damaged"),
        ({"tokens": ["a", "b", "c"]}, "tokens must be a list of token ids"),
        ({"tokens": [1.5, 2, 3]}, "tokens must be a list of token ids"),
        ({"sharers": None, "example_prob": "x"}, "is damaged"),
    ],
    ids=["text", "words for tokens", "fractions", "cell"],
)
def test_a_damaged_record_is_one_sentence(tacit, leaky, change, says):
    file = leaky / "canaries.json"
    before = file.read_bytes()
    data = json.loads(before)
    data["canaries"][0] |= change
    try:
        file.write_text(json.dumps(data))
        assert says in tacit.refused(leaky, *QUICK)
        file.unlink()
        assert "canaries.json is missing" in tacit.refused(leaky, *QUICK)
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--controls", "-3"], "controls must"),
        (["--seed", "-1"], "seed must"),
        (["--references", "-1"], "references must"),
        (["--texts", "foo"], "texts must be one of"),
        (["--confidence", "2"], "confidence must"),
        (["--max-users", "0"], "max_users must"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_options_are_checked_before_any_work(tacit, leaky, words, says):
    assert says in tacit.refused(leaky, *words)
