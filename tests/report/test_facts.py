"""What a report says about a run, and what it keeps to itself."""

import hashlib
import json
import shutil

import pytest

from tacit.privacy.accountants import accountant_named
from tacit.privacy.claims import COUNTED, PROJECTED
from tacit.privacy.events import Composition, PoissonGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.projection import Projection
from tacit.report.claim import claim_facts, ledger_facts
from tacit.report.language import LanguageReport
from tacit.report.page import render
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.train import train
from tests.report import audits
from tests.report.conftest import KINDS
from tests.runs.small import experiment, make_folder


def names(facts):
    return [warning["name"] for warning in facts["warnings"]]


def severity(facts, name):
    [found] = [row["severity"] for row in facts["warnings"] if row["name"] == name]
    return found


def test_the_claim_is_the_runs_own_with_all_that_it_rests_on(run, facts_of):
    claim, guarantee = facts_of(run)["claim"], Run.open(run).guarantee()
    assert claim["sentence"] == guarantee.claim
    assert claim["epsilon"] == guarantee.epsilon
    assert (claim["accountant"], claim["delta"], claim["unit"]) == ("pld", 1e-3, "user")
    assert claim["adjacency"] == "add/remove-one"
    assert claim["rounds_charged"] == 6
    [phase] = facts_of(run)["phases"]
    population = claim["population"]
    assert phase["sampling_prob"] == pytest.approx(10 / population)
    assert (phase["clip_norm"], phase["noise_multiplier"]) == (0.3, 1.0)
    assert phase["noise_stddev"] == pytest.approx(1.0 * 0.3 / 10)
    assert not phase["clip_norm_changes"]
    assert claim["excluded"] == list(guarantee.excluded)
    assert claim["excluded"][0] == "the choice of settings"
    assert len(claim["excluded"]) == 3


def test_the_claim_and_the_ledger_can_be_made_again_from_the_ledger_alone(run_of, facts_of):
    for kind in KINDS:
        facts, run = facts_of(run_of(kind)), Run.open(run_of(kind))
        assert facts["claim"] == claim_facts(Guarantee.of(run.ledger))
        assert facts["ledger"] == ledger_facts(run.ledger)


def test_a_switch_of_tokenizers_is_on_the_page_and_costs_nothing(run_of, facts_of):
    facts = facts_of(run_of("switched"))
    [switch] = facts["run"]["tokenizer_switches"]
    assert switch["round"] == 1
    assert "sampled from the model after round 1" in switch["what"]
    assert facts["claim"]["rounds_charged"] == 2
    assert [row["switched"] for row in facts["metrics"]] == [False, False, True, False]
    page = render(facts)
    assert "Per word, on a logarithmic scale" in page
    assert "tokenizer, before round 2" in page


def test_without_a_switch_perplexity_is_per_token(run, facts_of):
    assert "Per token, on a logarithmic scale" in render(facts_of(run))


def test_epsilon_is_that_of_the_first_so_many_entries(run, facts_of):
    facts, ledger = facts_of(run)["epsilon"], Run.open(run).ledger
    assert facts["counted"] == "rounds"
    assert facts["after"] == [1, 2, 3, 4, 5, 6]
    assert [curve["accountant"] for curve in facts["curves"]] == ["pld", "rdp", "moments"]
    for curve in facts["curves"]:
        by = accountant_named(curve["accountant"])
        events = [entry.event for entry in ledger.entries if entry.kind == "round"]
        for after, epsilon in zip(facts["after"], curve["epsilon"], strict=True):
            assert epsilon == by.epsilon(Composition.of(events[:after]), 1e-3)
        assert curve["epsilon"] == sorted(curve["epsilon"])
    assert "zcdp" in facts["refused"]


def test_the_ledger_and_the_files_are_named_by_their_hashes(run, facts_of):
    facts = facts_of(run)
    assert facts["ledger"]["entries"] == 7
    assert facts["ledger"]["kinds"] == {"tokenizer": 1, "round": 6}
    last_line = (run / "ledger.jsonl").read_bytes().splitlines()[-1]
    assert facts["ledger"]["head"] in last_line.decode()
    listed = {row["name"]: row["sha256"] for row in facts["files"]}
    assert {"experiment.toml", "ledger.jsonl", "tokenizer.json"} <= set(listed)
    assert "checkpoints/model-000006.safetensors" in listed
    for name, digest in listed.items():
        assert digest == hashlib.sha256((run / name).read_bytes()).hexdigest()
    assert not any("private" in name for name in listed)


def test_no_folder_of_the_machine_is_told(run, folder, facts_of):
    text = json.dumps(facts_of(run))
    assert str(folder) not in text
    assert str(run.parent) not in text
    assert 'source = "corpus"' in facts_of(run)["experiment"]


def test_the_same_run_gives_the_same_facts(audited, facts_of):
    assert facts_of(audited) == facts_of(audited)


@pytest.mark.parametrize(
    ("kind", "name", "how"),
    [
        ("simulated", "simulation", "serious"),
        ("plain", "no-guarantee", "serious"),
        ("large", "large-epsilon", "note"),
        ("vast", "no-meaningful-guarantee", "serious"),
        ("synthetic", "made-up-text", "note"),
        ("iid", "mixed-users", "serious"),
    ],
)
def test_each_kind_of_run_is_warned_of(run_of, facts_of, kind, name, how):
    facts = facts_of(run_of(kind))
    assert severity(facts, name) == how
    assert name not in names(facts_of(run_of("private")))
    order = [row["severity"] for row in facts["warnings"]]
    assert order == sorted(order, reverse=True)  # serious before note


def test_baselines_are_told_and_a_model_that_loses_to_one_is_warned_of(facts_of, tmp_path):
    folder = make_folder(tmp_path / "people")
    train(experiment(folder, rounds=1, seed=None), folder / "run")
    directory = RunDirectory(folder / "run")
    result, worst = directory.result(), {"accuracy_top1": 0.0, "perplexity": 1e9}
    directory.finish(result | {"baselines": {"start": worst, "unigram": worst}})
    facts = facts_of(folder / "run")
    assert [row["name"] for row in facts["baselines"]][1] == "the test users' unigram"
    assert "loses-to-baseline" not in names(facts)
    directory.finish(result | {"baselines": {"unigram": {"accuracy_top1": 0.99}}})
    facts = facts_of(folder / "run")
    assert severity(facts, "loses-to-baseline") == "note"
    assert "the test users' unigram (99.00%)" in json.dumps(facts["warnings"])
    assert "the test users&#39; unigram" in render(facts)


def test_the_other_runs_on_the_corpus_are_counted(facts_of, tmp_path):
    folder = make_folder(tmp_path / "people")
    path = tmp_path / "second"
    for where in (tmp_path / "first", path):
        train(experiment(folder, rounds=1, seed=None), where)
    facts = facts_of(path)
    assert facts["claim"] == claim_facts(Guarantee.of(Run.open(path).ledger))
    [warning] = [row for row in facts["warnings"] if row["name"] == "other-runs"]
    assert warning["text"] == facts["other_runs"] == Run.open(path).guarantee().others
    assert "on record" in warning["text"]


def test_a_run_without_noise_has_an_infinite_epsilon_and_no_curve(run_of, facts_of):
    facts = facts_of(run_of("plain"))
    assert facts["claim"]["private"] is False
    assert set(facts["claim"]["epsilon"].values()) == {None}
    assert facts["epsilon"] is None
    assert facts["phases"][0]["clip_norm"] is None


def test_an_incomplete_run_says_so(run, facts_of):
    assert "incomplete" not in names(facts_of(run))
    (run / "result.json").unlink()
    facts = facts_of(run)
    assert facts["run"]["complete"] is False
    assert "incomplete" in names(facts)


def test_a_key_that_is_still_there_is_told_of_and_not_read(run, facts_of):
    assert "key-kept" not in names(facts_of(run))
    (run / "private" / "key").write_text(audits.SECRET)
    facts = facts_of(run)
    assert "key-kept" in names(facts)
    assert audits.SECRET not in json.dumps(facts)


@pytest.mark.parametrize("provenance", ["oracle", "unknown"])
def test_an_oracle_tokenizer_is_warned_of(run, facts_of, monkeypatch, provenance):
    assert "oracle-tokenizer" not in names(facts_of(run))
    start = LanguageReport.__init__

    def with_other_words(self, run, *, internal):
        start(self, run, internal=internal)
        self.provenance = provenance

    monkeypatch.setattr(LanguageReport, "__init__", with_other_words)
    assert severity(facts_of(run), "oracle-tokenizer") == "serious"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("canaries", "run: canaries were planted among the training texts, so"),
        ("clients", "run: made-up users took part, so"),
    ],
)
def test_an_audit_run_is_warned_of(run_of, facts_of, kind, said):
    assert "audit-run" not in names(facts_of(run_of("private")))
    facts = facts_of(run_of(kind))
    assert facts["claim"]["audit"]
    [warning] = [row for row in facts["warnings"] if row["name"] == "audit-run"]
    assert said in warning["text"]
    assert facts["claim"]["sentence"].startswith("Audit run")


def test_without_an_audit_the_report_says_how_to_make_one(run, facts_of):
    facts = facts_of(run)
    assert facts["audit"] is None
    assert "tacit audit RUN" in render(facts)


def test_canaries_are_added_up_by_cell(audited, facts_of):
    audit = facts_of(audited)["audit"]
    assert len(audit["cells"]) == 6
    assert sum(cell["canaries"] for cell in audit["cells"]) == audit["canaries"] == 24
    for name in ("memorized_rs", "memorized_bs"):
        assert sum(cell[name] for cell in audit["cells"]) == audit[name] > 0
    first, last = audit["cells"][0], audit["cells"][-1]
    assert (last["expected_sharers"], last["example_prob"]) == (16.0, 1.0)
    assert last["mean_copies"] == 160.0
    exposures = [row["exposure"] for row in audit["rows"][:4] if row["exposure"] is not None]
    assert len(exposures) == 3  # one is not known, and is not taken for 0
    assert first["mean_exposure"] == pytest.approx(sum(exposures) / 3)


def test_nothing_private_is_told_unless_the_report_is_internal(audited, facts_of):
    private = audited / "private"
    for path in private.iterdir():
        if path.name != "audit.json":
            path.write_bytes(path.read_bytes() + audits.SECRET.encode())
    facts = facts_of(audited)
    text = json.dumps(facts)
    assert audits.SECRET not in text
    assert "membership" not in facts
    assert str(audits.MEMBERS) not in text
    shutil.rmtree(private)
    assert facts_of(audited) == facts  # and it was not even looked at


def test_an_internal_report_has_the_attacks(audited, facts_of):
    found = facts_of(audited, internal=True)["membership"]
    assert found["members"] == audits.MEMBERS
    assert found["attacks"][0]["name"] == "user inference"


def test_the_words_of_phrases_are_internal(audited, facts_of):
    [public] = facts_of(audited)["audit"]["phrases"]
    [internal] = facts_of(audited, internal=True)["audit"]["phrases"]
    assert public["text"] == "phrase 1"
    assert internal["text"] == audits.PHRASE
    verdicts = ("memorized_rs", "memorized_bs")
    assert [public[name] for name in verdicts] == [internal[name] for name in verdicts]
    assert public.keys() == internal.keys()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stale-audit", {"round": 4}),
        ("controls-memorized", {"controls": {"count": 9, "memorized_rs": 1, "memorized_bs": 0}}),
        ("claim-refuted", {"accounted_epsilon": 0.2999}),
        (
            "empirical-epsilon",
            {"empirical_epsilon": audits.audit()["empirical_epsilon"] | {"warnings": ["Not so."]}},
        ),
    ],
)
def test_an_audit_that_casts_doubt_is_warned_of(audited, facts_of, name, changes):
    assert name not in names(facts_of(audited))
    audits.put(audited, audits.audit(**changes))
    assert name in names(facts_of(audited))


def test_a_phrase_that_comes_out_is_serious(audited, facts_of):
    assert "phrases-memorized" not in names(facts_of(audited))
    found = audits.audit()
    found["phrases"][0]["memorized_bs"] = True
    audits.put(audited, found)
    assert severity(facts_of(audited), "phrases-memorized") == "serious"


def test_a_projection_is_labelled_and_stands_beside_the_actual_claim(run, facts_of):
    actual = facts_of(run)
    facts = facts_of(run, projection=Projection(100, 1_000))
    assert facts["claim"] == actual["claim"]
    assert (actual["projected"], "projected" in names(actual)) == (None, False)
    assert "projected" in names(facts)
    found = facts["projected"]
    assert PROJECTED in found["sentence"]
    assert found["label"] == PROJECTED
    [released] = found["releases"]
    z = released["event"]["noise_multiplier"]
    assert z == pytest.approx(10.0)  # ten times the users, ten times z
    assert released["count"] == 6
    delta = 1000**-1.1
    expected = accountant_named("pld").epsilon(
        Composition.of([(PoissonGaussian(0.1, z), 6)]), delta
    )
    assert found["epsilon"]["pld"] == pytest.approx(expected)
    for kept in ("public_inputs", "prior_costs", "unit", "adjacency", "view", "simulation"):
        assert found[kept] == facts["claim"][kept]
    # The run's population was counted, and the projected one is given.
    assert [*found["excluded"], COUNTED.format(unit="user")] == facts["claim"]["excluded"]
    assert found["public_inputs"]


def test_a_projection_to_the_run_itself_costs_what_the_run_costs(run, facts_of):
    population = Run.open(run).ledger.header.population
    facts = facts_of(run, projection=Projection(10, population))
    for same in ("epsilon", "delta", "excluded", "releases"):
        assert facts["projected"][same] == facts["claim"][same]
    at = facts_of(run, projection=Projection(10, population, delta=1e-5))["projected"]
    assert at["delta"] == 1e-5
    assert at["epsilon"]["pld"] > facts["claim"]["epsilon"]["pld"]


def test_synthetic_users_are_not_taken_for_people(run_of, facts_of):
    assert facts_of(run_of("private"))["claim"]["about_people"] is True
    for kind in ("synthetic", "iid"):
        facts = facts_of(run_of(kind))
        assert facts["claim"]["about_people"] is False
        assert facts["claim"]["sentence"].startswith("No claim about people")
        with pytest.raises(ValueError, match="no claim about people to be projected"):
            facts_of(run_of(kind), projection=Projection(10, 1000))


def test_what_cannot_be_projected_is_refused(run_of, facts_of):
    with pytest.raises(ValueError, match="a projection needs noisy rounds"):
        facts_of(run_of("plain"), projection=Projection(10, 1000))
    with pytest.raises(ValueError, match="at most the projected population of 100, got 200"):
        Projection(200, 100)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("audit.json", "{", "audit.json is damaged: it is not JSON"),
        ("audit.json", "[]", "audit.json is damaged: it must be an object"),
        ("audit.json", "{}", "audit.json is damaged: round is missing"),
        ("audit.json", '{"round": NaN}', "NaN is no number"),
        ("result.json", "oops", "result.json is damaged: it is not JSON"),
        (
            "metrics.jsonl",
            '{"round": 1}\noops\n',
            "line 2 of .*metrics.jsonl is damaged: it is not JSON",
        ),
        ("metrics.jsonl", '{"accuracy_top1": 0.1}\n', "metrics.jsonl is damaged: round is missing"),
        ("private/audit.json", '{"membership": 3}', "audit.json is damaged: membership cannot be"),
    ],
)
def test_a_damaged_file_is_one_sentence(audited, facts_of, file, text, message):
    (audited / file).write_text(text)
    with pytest.raises(ValueError, match=message) as refusal:
        facts_of(audited, internal=True)
    assert "\n" not in str(refusal.value)


def test_an_audit_whose_counts_contradict_its_rows_is_refused(audited, facts_of):
    audits.put(audited, audits.audit(memorized_rs=0))
    with pytest.raises(ValueError, match="memorized_rs is 0, and its rows say"):
        facts_of(audited)


def test_public_inputs_stand_in_the_claim_and_on_the_page_with_their_digests(run, folder, facts_of):
    facts = facts_of(run)
    [public] = facts["claim"]["public_inputs"]
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    assert public == {"what": "dictionary", "name": "tokenizer.json", "sha256": digest}
    assert digest in render(facts)


def test_the_budget_is_that_of_the_header(run_of, facts_of):
    facts = facts_of(run_of("budgeted"))
    assert facts["claim"]["budget"] == {"epsilon": 30.0, "delta": 1e-3, "accountant": "pld"}
    assert "epsilon 30 at delta 0.001 by pld: a hard stop" in render(facts)


def test_whose_text_it_is_comes_from_the_header(run_of, facts_of):
    views = {
        kind: facts_of(run_of(kind))["claim"]["view"] for kind in ("plain", "iid", "synthetic")
    }
    assert views == {"plain": "people", "iid": "iid", "synthetic": "synthetic"}


def test_an_edited_experiment_has_no_report(run, facts_of):
    file = run / "experiment.toml"
    file.write_text(file.read_text().replace("noise_multiplier = 1.0", "noise_multiplier = 9.0"))
    with pytest.raises(ValueError, match=r"experiment\.toml was changed since the run began"):
        facts_of(run)
