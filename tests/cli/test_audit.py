"""`tacit audit`: what is found, where it is written, and the gate for CI."""

import json
import shutil
import sys

import pytest

from tacit.audit.gate import Gate
from tacit.privacy.randomness import RunKey
from tacit.runs.directory import RunDirectory
from tacit.tasks.language import canary_clients as coins
from tacit.train import train
from tests.runs.small import experiment, make_folder

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


@pytest.fixture(scope="module")
def watched(folder):
    """Hardly any noise, so that canary clients are seen."""
    wanted = experiment(folder).changed(
        audit={"canary_clients": 60},
        rounds=2,
        plan={"noise_multiplier": 0.05, "cohort": 95.0, "population": 105},
        server={"optimizer": "sgd"},
        update={"learning_rate": 1e-4},
    )
    train(wanted, folder / "watched")
    return folder / "watched"


@pytest.fixture
def audited(watched, tmp_path):
    """A copy that nobody has audited yet."""
    return shutil.copytree(watched, tmp_path / "run")


def tried(run):
    return [json.loads(line) for line in (run / "private" / "audits.jsonl").open()]


def test_every_further_try_must_hold_with_more_confidence(tacit, audited):
    first = tacit.json(audited)["empirical_epsilon"]
    assert (first["try_number"], first["confidence_asked"]) == (1, 0.95)
    assert first["confidence"] == pytest.approx(0.975)
    other = tacit.json(audited, "--confidence", "0.9")["empirical_epsilon"]
    assert other["try_number"] == 2
    assert other["confidence"] == pytest.approx(0.975)
    third = tacit.json(audited, "--confidence", "0.94")["empirical_epsilon"]
    assert third["confidence"] == pytest.approx(1 - 0.06 / 8)
    assert third["lower_bound"] < first["lower_bound"]
    assert third["guesses"] == first["guesses"]  # the same look at the coins
    written = json.loads((audited / "audit.json").read_text())["empirical_epsilon"]
    assert (written["try_number"], written["confidence"]) == (3, third["confidence"])
    again = tacit.json(audited, "--seed", "7", "--controls", "3")["empirical_epsilon"]
    assert {**again, "highest_lower_bound": 0} == {**first, "highest_lower_bound": 0}
    assert "try 1 at this run" in " ".join(tacit.says(audited).split())


def test_a_weaker_try_does_not_open_a_gate_that_was_shut(tacit, audited):
    shown = tacit.json(audited)["empirical_epsilon"]["lower_bound"]
    assert shown > 0.1
    gate = ["--fail-if", f"empirical_epsilon>{shown - 0.01}"]
    assert tacit(audited, *gate)[0] == 1
    weaker = tacit.json(audited, "--confidence", "0.98")["empirical_epsilon"]
    assert weaker["lower_bound"] < shown - 0.01
    assert weaker["highest_lower_bound"] == shown
    assert "Another try at this run showed more" in weaker["warnings"][-1]
    assert tacit(audited, "--confidence", "0.98", *gate)[0] == 1


def test_a_try_is_recorded_before_anything_is_looked_at(tacit, audited, monkeypatch):
    def interrupted(*_, **__):
        assert [row["try"] for row in tried(audited)] == [1]
        raise ValueError("interrupted")

    monkeypatch.setattr("tacit.audit.empirical_epsilon._empirical_epsilon", interrupted)
    assert "interrupted" in tacit.refused(audited)
    monkeypatch.undo()
    found = tacit.json(audited, "--confidence", "0.9")["empirical_epsilon"]
    assert found["try_number"] == 2


def test_tries_cannot_be_forgotten(tacit, audited):
    for confidence in ("0.95", "0.9"):
        tacit.json(audited, "--confidence", confidence)
    (audited / "private" / "audits.jsonl").unlink()
    assert "tries were removed" in tacit.refused(audited, "--confidence", "0.8")


def test_a_confidence_at_which_nothing_can_show_is_refused_and_no_try(tacit, audited):
    assert "show anything" in tacit.refused(audited, "--confidence", "0.9999999999999")
    assert not (audited / "private" / "audits.jsonl").exists()


def test_coins_cannot_be_tossed_again(tacit, audited):
    """By other coins than the training's no trace is found, and every gate would open."""
    directory = RunDirectory(audited)
    (directory.private / coins.COINS_FILE).unlink()
    assert "canary-coins is missing" in tacit.refused(audited)
    RunKey.generate().save(directory.private / coins.COINS_FILE)
    assert "committed to before the training" in tacit.refused(audited)


def test_the_coins_of_a_real_run_follow_from_its_own_secret(tacit, folder, watched):
    """Two runs of one experiment share no coins, and an audit finds each one's own."""
    found = []
    for name in ("once", "twice"):
        train(RunDirectory(watched).experiment().changed(seed=None), folder / name)
        found.append(coins.read_coins(folder / name))
        assert tacit.json(folder / name)["empirical_epsilon"]["lower_bound"] > 0
    once, twice = found
    simulated = [coins.coins_of(RunKey.from_seed(seed)) for seed in (0, 5)]
    assert None not in found
    assert once != twice
    assert once not in simulated
    assert twice not in simulated


def test_canaries_are_looked_for_whatever_the_experiment_says(tacit, leaky, tmp_path):
    """The record of what was planted decides, not a file that anybody can edit."""
    run = shutil.copytree(leaky, tmp_path / "run")
    changed = RunDirectory(run).experiment().changed(audit={"canaries": None})
    (run / "experiment.toml").write_text(changed.to_toml())
    file = tmp_path / "phrases.txt"
    file.write_text("red blue tree\n", encoding="utf-8")
    code, _, _ = tacit(run, *QUICK, "--phrases", file, "--fail-if", "memorized>0")
    assert code != 0  # found, or the changed experiment is refused: never passed over


@pytest.mark.parametrize("option", ["--shadow", "--reference"])
def test_what_only_fits_intents_and_slots_is_refused(tacit, leaky, option):
    refused = tacit.refused(leaky, option, leaky)
    assert f"{option} is for intent and slot models" in refused
    assert "and this is none; leave it out" in refused


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
    found = tacit.json(leaky, *QUICK, "--phrases", file, "--internal")
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


FIGURES = {"log_perplexity", "rank", "rank_standard_error", "exposure"}


def test_nothing_that_a_phrase_can_be_found_by_leaves_the_private_folder(
    tacit, leaky, tmp_path, command
):
    file = tmp_path / "phrases.txt"
    file.write_text("red blue tree\ncat eats house\n", encoding="utf-8")
    printed = tacit.json(leaky, *QUICK, "--ranks", "--phrases", file)
    command("report")(leaky)
    command("report")(leaky, "--json")
    secret = json.loads((leaky / "private" / "audit.json").read_text())["phrases"]
    assert {*FIGURES, "text", "memorized_rs", "memorized_bs"} == set(secret[0])
    assert (leaky / "private" / "audit.json").stat().st_mode & 0o777 == 0o600
    public = json.loads((leaky / "audit.json").read_text())["phrases"]
    assert public == printed["phrases"]
    assert [set(row) for row in public] == [{"text", "memorized_rs", "memorized_bs"}] * 2
    files = [one for one in leaky.rglob("*") if one.is_file() and one.suffix in (".json", ".html")]
    for one in (each for each in files if "private" not in each.parts):
        for row in secret:
            assert row["text"] not in one.read_text()
            assert f"{row['log_perplexity']:.4f}" not in one.read_text()


def test_a_log_has_the_verdicts_and_a_terminal_the_phrases(tacit, leaky, tmp_path, monkeypatch):
    file = tmp_path / "phrases.txt"
    file.write_text("red blue tree\n", encoding="utf-8")
    logged = tacit.says(leaky, *QUICK, "--phrases", file)
    assert "phrase 1" in logged
    assert "red blue" not in logged
    [secret] = json.loads((leaky / "private" / "audit.json").read_text())["phrases"]
    assert f"{secret['log_perplexity']:.1f}" not in logged
    assert "red blue tree" in tacit.says(leaky, *QUICK, "--phrases", file, "--internal")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "red blue tree" in tacit.says(leaky, *QUICK, "--phrases", file)


def test_a_gate_sees_what_is_not_printed(tacit, leaky, tmp_path):
    file = tmp_path / "phrases.txt"
    file.write_text("red blue tree\n", encoding="utf-8")
    words = [*QUICK, "--ranks", "--phrases", file, "--json"]
    code, out, _ = tacit(leaky, *words, "--fail-if", "exposure>-99")
    assert code == 1
    assert not FIGURES & set(json.loads(out)["phrases"][0])


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
    "words",
    [["--fail-if", "memorized>0"], ["--membership", "--texts", "training"], ["--ranks"]],
    ids=["a gate", "membership", "ranks"],
)
def test_a_canary_that_was_exchanged_is_refused_on_every_path(tacit, leaky, words):
    """A sentence that was never planted is never found, and would open the gate."""
    file = leaky / "canaries.json"
    before = file.read_bytes()
    data = json.loads(before)
    for row in data["canaries"]:
        row["tokens"] = row["tokens"][::-1]
    try:
        file.write_text(json.dumps(data))
        assert "canaries.json was changed" in tacit.refused(leaky, *QUICK, *words)
        file.unlink()
        assert "canaries.json is missing" in tacit.refused(leaky, *QUICK, *words)
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
        (["--max-users", "0"], "max-users must"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_options_are_checked_before_any_work(tacit, leaky, words, says):
    assert says in tacit.refused(leaky, *words)
