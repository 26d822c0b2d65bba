"""The report of an intent and slot model's run: the claim first, and nothing private unasked."""

import json
import re
import shutil

import pytest

from tacit.audit.nlu import attack_run
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.projection import Projection
from tacit.report.claim import claim_facts, ledger_facts
from tacit.report.facts import gather
from tacit.report.page import _draw, render
from tacit.runs.run import NluRun, Run
from tacit.tasks.nlu.readers import load_nlu
from tacit.train import train
from tests.report.test_page import Page
from tests.tasks.nlu.small import of_method
from tests.tasks.nlu.writing import json_lines, write

SECRET = "sentinel-of-the-private-folder"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Utterances in a file, which stand for people's."""
    made = tmp_path_factory.mktemp("nlu-reported")
    data = load_nlu("generated:utterances=120", unseen_intents="keep")
    said = (*data.train, *data.valid, *data.test)
    rows = [(" ".join(one.tokens), " ".join(one.tags), one.intent) for one in said]
    write(made / "people.jsonl", json_lines(rows))
    return made


@pytest.fixture(scope="module")
def run_of(folder):
    """`run_of("private")` is the directory of that run; made once, and never written to."""
    people = {"seed": None, "data": {"source": str(folder / "people.jsonl")}}
    large = {"delta": 0.5, "accept_large_delta": True}
    kinds = {
        "private": lambda: of_method("edp-sgd", **people),
        "paper": lambda: of_method("edp-sgd-paper", training={"epochs": 2}),
        "public paper": lambda: of_method(
            "edp-sgd-paper", training={"epochs": 2}, noise={"scaling": "architecture"}
        ),
        "oracle": lambda: of_method(
            "dp-sgd",
            training={"epochs": 1},
            model={"vocabulary": "oracle", "accept_oracle": True},
            privacy=large,
        ),
        "large delta": lambda: of_method("edp-sgd", training={"epochs": 1}, privacy=large),
    }

    def made(kind):
        path = folder / kind
        if not path.exists():
            train(kinds[kind](), path)
        return path

    return made


@pytest.fixture
def run(run_of, tmp_path):
    """A finished private run that may be written to."""
    shutil.copytree(run_of("private"), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def attacked(run_of, folder):
    """The same, with an attack in its private folder."""
    path = folder / "attacked"
    shutil.copytree(run_of("private"), path)
    attack_run(path)
    return path


def facts_at(path, **options):
    """As they come back from JSON."""
    return json.loads(json.dumps(gather(Run.open(path), **options), allow_nan=False))


def warnings_of(facts):
    return {row["name"]: row["severity"] for row in facts["warnings"]}


def test_the_page_says_the_claim_verbatim_and_what_was_released(run_of):
    path = run_of("private")
    facts, found = facts_at(path), NluRun.open(path)
    page = Page(render(facts))
    assert page.text["claim"] == facts["claim"]["sentence"] == found.guarantee().claim
    assert facts["claim"]["epsilon"] == found.guarantee().epsilon
    released, steps = facts["released"], len(found.ledger.entries)
    population = found.experiment.noise.population
    assert released["sampling_prob"] == 16 / population
    assert released["steps_of_epoch"] * 3 == steps == facts["claim"]["rounds_charged"]
    events = [entry.event.noise_multiplier for entry in found.ledger.entries]
    assert released["noise_over_sensitivity"] == [events[0], events[-1]]
    for wanted in (
        "method edp-sgd",
        "clip norm, C 1",
        "noise multiplier, z_0 1",
        "linear, tau 0.5",
    ):
        assert wanted in page.text["claim-facts"]
    assert "workers 1 micro-batches a step, N 1" in page.text["claim-facts"]
    assert "alpha_k 1 for every layer" in page.text["claim-facts"]
    for text in facts["claim"]["excluded"]:
        assert text in page.text["excluded-list"]
    assert "the utterances of valid and test" in page.text["excluded-list"]
    assert page.text["experiment-toml"] == facts["experiment"].strip()


def test_a_reviewer_reads_in_this_order(run_of):
    page = Page(render(facts_at(run_of("private"))))
    order = [value for tag, name, value in page.attributes if (tag, name) == ("h2", "id")]
    expected = "the-claim warnings epsilon training test audit excluded ledger experiment"
    assert order == expected.split()


def test_the_page_needs_no_network_and_no_script(attacked):
    html = render(facts_at(attacked, internal=True))
    page = Page(html)
    assert not {"script", "img", "iframe", "object", "embed", "form"} & set(page.tags)
    links = [value for _, name, value in page.attributes if name in {"href", "src"}]
    assert links == ["data:,"]
    assert not re.findall(r"https?:|url\(|@import", html)
    assert all("nan" not in chart.lower() for chart in re.findall(r"(?s)<svg.*?</svg>", html))


def test_epsilon_over_steps_ends_at_the_claim(run_of):
    path = run_of("private")
    facts, found = facts_at(path), NluRun.open(path)
    curve = facts["epsilon"]["curves"][0]
    assert (facts["epsilon"]["counted"], curve["accountant"]) == ("steps", "pld")
    assert 10 <= len(facts["epsilon"]["after"]) <= 20
    assert curve["epsilon"][-1] == facts["claim"]["epsilon"]["pld"]
    events = [entry.event for entry in found.ledger.entries]
    place = facts["epsilon"]["after"][3]
    expected = accountant_named("pld").epsilon(Composition.of(events[:place]), 1e-3)
    assert curve["epsilon"][3] == expected < curve["epsilon"][-1]


def test_metrics_are_those_of_the_run(run_of):
    path = run_of("private")
    facts, found = facts_at(path), NluRun.open(path)
    assert [row["epoch"] for row in facts["metrics"]] == [0, 1, 2, 3]
    ser = [row["semantic_error_rate"] for row in found.metrics()]
    assert [row["semantic_error_rate"] for row in facts["metrics"]] == ser
    result = found.directory.result()["test"]
    assert facts["test"]["slot_f1"] == result["slot_f1"]
    rows = facts["test"]["by_intent"]
    assert sum(row["utterances"] for row in rows) == facts["test"]["utterances"]
    html = render(facts)
    assert set(_draw(facts)) == {"epsilon", "errors", "successes"}
    assert rows[0]["intent"] in Page(html).text["by-intent"]
    assert f"{100 * result['intent_accuracy']:.2f}%" in Page(html).text["test-facts"]


def test_metrics_by_intent_are_left_out_where_the_utterances_changed(run, folder):
    assert facts_at(run)["test"]["by_intent"]
    result = json.loads((run / "result.json").read_text())
    result["test"]["utterances"] += 1
    (run / "result.json").write_text(json.dumps(result))
    facts = facts_at(run)
    assert facts["test"]["by_intent"] is None
    assert "by-intent" not in Page(render(facts)).text


def test_the_printed_algorithm_is_named_and_claims_nothing(run_of):
    facts = facts_at(run_of("paper"))
    html = render(facts)
    page = Page(html)
    assert "The epsilon that the paper states for it is no guarantee" in html
    assert warnings_of(facts)["as-printed"] == "note"
    assert warnings_of(facts)["no-guarantee"] == "serious"
    # alpha_k are norms of private gradients here, and stay out.
    assert facts["released"]["largest_scale"] is None
    assert "without any noise: not private" in page.text["claim-facts"]
    assert facts["epsilon"] is None


def test_other_methods_have_no_note_about_the_printed_one(run_of):
    assert "as-printed" not in warnings_of(facts_at(run_of("private")))


def test_reshuffled_epochs_are_counted_as_epochs(run_of):
    facts = facts_at(run_of("public paper"))
    assert facts["epsilon"]["counted"] == "epochs"
    assert facts["epsilon"]["after"] == [1, 2]
    assert facts["claim"]["adjacency"] == "replace-one"
    assert facts["claim"]["epsilon"]["pld"] > 0
    assert "epochs charged 2" in Page(render(facts)).text["claim-facts"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("private", {"unit-is-an-utterance": "note"}),
        ("paper", {"simulation": "serious", "made-up-text": "note"}),
        ("oracle", {"oracle-tokenizer": "serious", "no-guarantee": "serious"}),
        ("large delta", {"large-delta": "serious"}),
    ],
)
def test_each_kind_of_run_is_warned_of(run_of, kind, expected):
    facts = facts_at(run_of(kind))
    assert expected.items() <= warnings_of(facts).items()
    order = [row["severity"] for row in facts["warnings"]]
    assert order == sorted(order, reverse=True)  # serious before note
    if kind != "private":
        quiet = warnings_of(facts_at(run_of("private")))
        assert not quiet.keys() & (expected.keys() - {"unit-is-an-utterance"})
    else:
        assert "simulation" not in warnings_of(facts)
    listed = Page(render(facts)).text["warning-list"]
    assert all(row["text"] in listed for row in facts["warnings"])


def test_other_runs_on_the_same_utterances_are_counted(folder, tmp_path):
    source, path = {"source": str(folder / "people.jsonl")}, tmp_path / "first"
    for where in (path, tmp_path / "second"):
        train(of_method("sgd", seed=None, data=source, training={"epochs": 1}), where)
    facts = facts_at(path)
    assert facts["other_runs"] == NluRun.open(path).guarantee().others
    assert "on record" in facts["other_runs"]
    assert warnings_of(facts)["other-runs"] == "note"


def test_a_run_that_is_not_over_and_its_key_are_warned_of(run):
    assert not {"incomplete", "key-kept"} & warnings_of(facts_at(run)).keys()
    (run / "result.json").unlink()
    (run / "private" / "key").write_text(SECRET)
    facts = facts_at(run)
    assert {"incomplete": "note", "key-kept": "note"}.items() <= warnings_of(facts).items()
    assert facts["test"] is None
    html = render(facts)
    assert "not complete" in Page(html).text["top"]
    assert SECRET not in html + json.dumps(facts)


def test_nothing_private_is_told_unless_the_report_is_internal(attacked, tmp_path):
    shutil.copytree(attacked, tmp_path / "run")
    run, private = tmp_path / "run", tmp_path / "run" / "private"
    facts = facts_at(run)
    html = render(facts)
    found = json.loads((private / "attack.json").read_text())
    for text in (json.dumps(facts), html):
        assert "auc" not in text.lower()
        assert str(found["attacks"][0]["auc"])[:6] not in text
        assert "chart-roc" not in text
    shutil.rmtree(private)
    assert facts_at(run) == facts  # and it was not even looked at


def test_an_internal_report_has_the_attack(attacked):
    found = json.loads((attacked / "private" / "attack.json").read_text())
    facts = facts_at(attacked, internal=True)
    html = render(facts)
    page = Page(html)
    assert "Do not pass it on" in page.text["internal"]
    assert 'id="chart-roc"' in html
    for row, kept in zip(facts["membership"]["attacks"], found["attacks"], strict=True):
        assert (row["auc"], row["auc_interval"]) == (kept["auc"], kept["auc_interval"])
        assert f"{row['auc']:.3f}" in page.text["membership-table"]
        assert [rate["tpr"] for rate in row["tpr_at"]] == [rate["tpr"] for rate in kept["tpr_at"]]
    assert str(attacked.parent) not in json.dumps(facts)


def test_an_attack_on_an_earlier_model_is_warned_of(attacked, tmp_path):
    assert "stale-audit" not in warnings_of(facts_at(attacked, internal=True))
    shutil.copytree(attacked, tmp_path / "run")
    file = tmp_path / "run" / "private" / "attack.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"leg": 1}))
    assert "stale-audit" in warnings_of(facts_at(tmp_path / "run", internal=True))


def test_an_internal_report_without_an_attack_says_how_to_make_one(run_of):
    facts = facts_at(run_of("private"), internal=True)
    assert facts["membership"] is None
    assert "tacit audit RUN" in Page(render(facts)).text["not-attacked"]


def test_no_folder_of_the_machine_is_told_and_the_same_run_gives_the_same_facts(run, folder):
    facts = facts_at(run)
    assert facts == facts_at(run)
    assert str(folder) not in json.dumps(facts)
    assert str(run.parent) not in json.dumps(facts)
    assert 'source = "people.jsonl"' in facts["experiment"]


def test_steps_that_were_charged_again_are_named(run):
    facts = facts_at(run)
    assert facts["ledger"]["charged_again"] == []
    assert "charged again" not in Page(render(facts)).text["ledger-facts"]
    facts["ledger"]["charged_again"] = [3, *range(40, 80)]
    assert "steps charged again 3, 40 to 79" in Page(render(facts)).text["ledger-facts"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("result.json", "oops", "result.json is damaged: it is not JSON"),
        ("result.json", '{"ending": "complete"}', "result.json is damaged: test is missing"),
        ("metrics.jsonl", '{"utterances": 3}\n', "metrics.jsonl is damaged: epoch is missing"),
        ("private/attack.json", '{"epoch": NaN}', "NaN is no number"),
        ("private/attack.json", "{}", "attack.json is damaged: members is missing"),
        ("scaling.json", "{", "scaling.json is missing or damaged"),
    ],
)
def test_a_damaged_file_is_one_sentence(run, file, text, message):
    (run / file).write_text(text)
    with pytest.raises(ValueError, match=message) as refusal:
        facts_at(run, internal=True)
    assert "\n" not in str(refusal.value)


def test_an_intent_and_slot_model_has_no_projection(run_of):
    with pytest.raises(ValueError, match="a projection is for language models"):
        facts_at(run_of("private"), projection=Projection(10, 100))


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a run directory"):
        Run.open(tmp_path)
    with pytest.raises(ValueError, match="there is no run at"):
        Run.open(tmp_path / "missing")


@pytest.mark.parametrize("kind", ["private", "paper", "public paper", "oracle", "large delta"])
def test_the_claim_and_the_ledger_can_be_made_again_from_the_ledger_alone(run_of, kind):
    facts, ledger = facts_at(run_of(kind)), NluRun.open(run_of(kind)).ledger
    assert facts["claim"] == claim_facts(Guarantee.of(ledger))
    assert facts["ledger"] == ledger_facts(ledger)
    assert facts["claim"]["counted"] == ledger.header.counted
