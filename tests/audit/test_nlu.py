"""The attack on runs, with references that know less than the attacked run."""

import json

import pytest

from tacit.audit.membership import LEFT_OUT
from tacit.audit.nlu import Scoring, attack_run, kept_result
from tacit.train import train
from tests.tasks.nlu.small import of_method


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and two references, each on a part of its test utterances."""
    folder = tmp_path_factory.mktemp("attacked")
    data = {"source": "generated:utterances=300", "unseen_intents": "keep"}

    def trained(name, **more):
        experiment = of_method("sgd", data={**data, **more}, training={"epochs": 1})
        return train(experiment, folder / name)

    return trained("run"), trained("one", reference="1/2"), trained("two", reference="2/2")


def test_references_count_their_own_labels_and_serve_all_the_same(runs):
    run, *references = runs
    own, theirs = (set(each.experiment.data.tags) for each in (run, references[0]))
    assert theirs != own  # a part of the set has not all of its labels
    result = attack_run(run.path, references=[each.path for each in references])
    figure = result.figure("rmia", LEFT_OUT)
    low, high = figure.auc_interval
    assert 0 <= low <= figure.auc <= high <= 1
    assert kept_result(run).stated["strongest"] == figure
    json.dumps(result.as_row(), allow_nan=False)


def test_what_helps_in_several_attacks_is_scored_once(runs):
    run, *references = runs
    told = []
    scoring = Scoring(lambda what, done, of: told.append(what))
    paths = [each.path for each in references]
    first = attack_run(run.path, references=paths, scoring=scoring).as_row()
    assert any("references" in what for what in told)
    once = len(told)
    second = attack_run(run.path, references=paths, scoring=scoring).as_row()
    assert len(told) == once
    assert first == second == attack_run(run.path, references=paths).as_row()


def test_references_on_other_data_or_parts_are_refused(runs, tmp_path):
    run, one, _ = runs
    other = train(
        of_method("sgd", data={"source": "generated:utterances=310", "reference": "1/1"}),
        tmp_path / "other",
    )
    with pytest.raises(ValueError, match="was trained on other data than the attacked run"):
        attack_run(run.path, references=[other.path])
    with pytest.raises(ValueError, match="1/1"):
        attack_run(run.path, references=[one.path])
