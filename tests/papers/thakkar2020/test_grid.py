"""Grid files: those that come with tacit say what the paper prints; mistakes are one sentence."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from tacit.tasks.language import plans
from tacit_papers.thakkar2020.grid import GRIDS, Grid

NAMES = GRIDS.names()
TABLES = [f"thakkar2020-table{number}" for number in range(1, 8)]


def load(tmp_path, text: str, *settings: str) -> Grid:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return GRIDS.load(str(file), settings).only()


def arms(name: str) -> set[tuple[str, str, int]]:
    return {(arm.optimizer, arm.data, arm.batch) for arm in GRIDS.load(name).only().all_arms()}


def test_every_table_is_there_with_a_small_sibling():
    small = [f"{name}-small" for name in TABLES]
    more = ["secret-sharer-small", "thakkar2020-headline-small"]
    assert sorted(NAMES) == sorted([*more, *TABLES, *small])


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_of_every_grid_can_be_made(name):
    found = GRIDS.load(name).only()
    common = found.common()
    for arm in found.all_arms():
        experiment = found.experiment_of(arm, common)
        assert experiment.corpus.view == {"iid": "iid", "non-iid": "users"}[arm.data]
        if arm.is_federated:
            assert experiment.plan.cohort == arm.batch
            assert (experiment.plan.clipping == "none") == (
                "dp" not in arm.name and "clip" not in arm.name
            )
        else:
            assert found.record_training(arm, 3).seed == 3


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_have_the_papers_values(name):
    found = GRIDS.load(name).only()
    common = found.common()
    assert common.audit.canaries.sharers == pytest.approx(
        [392e3 / 50e3, 3 * 392e3 / 50e3, 392e3 / 5e3]
    )
    assert common.audit.canaries.example_probs == (0.01, 0.1, 1.0)
    assert (common.audit.canaries.per_cell, common.audit.canaries.words) == (10, 5)
    assert (common.rounds, common.privacy.delta) == (8000, 1e-7)
    assert (found.private.clip_norm, found.private.target_epsilon) == (0.2, 18.8)
    assert (found.records.learning_rate, found.records.adam_learning_rate) == (0.005, 1e-4)
    assert (found.records.momentum, found.records.steps) == (0.9, 37_500_000)
    assert found.extraction.samples == 2_000_000
    assert f"Table {name[-1]}" in found.about.section


def test_tables_1_and_7_have_the_papers_batches():
    both = {
        (optimizer, data, batch)
        for optimizer, sizes in (("fedavg", (500, 1000, 2000, 5000)), ("sgd", (32, 64, 128, 256)))
        for data in ("iid", "non-iid")
        for batch in sizes
    }
    assert arms("thakkar2020-table1") == arms("thakkar2020-table3") == both
    assert arms("thakkar2020-table7") == both
    for arm in GRIDS.load("thakkar2020-table7").only().all_arms():
        if arm.is_federated:  # ten epochs of 392,000 users, in round numbers
            assert arm.own.rounds * arm.batch / 392_000 == pytest.approx(10.2, abs=0.01)


def test_table_4_has_every_optimizer():
    found = {optimizer for optimizer, _, _ in arms("thakkar2020-table4")}
    assert found == {"sgd", "momentum", "adam", "fedavg", "fedavg+adam"}


def test_tables_2_5_and_6_always_show_clipping_alone():
    for name in ("thakkar2020-table2", "thakkar2020-table5", "thakkar2020-table6"):
        for suffix in ("", "-small"):
            found = {(optimizer, data) for optimizer, data, _ in arms(name + suffix)}
            for optimizer, data in found:
                assert optimizer != "dp-fedavg" or ("fedavg+clip", data) in found


def test_the_rate_of_sgd_follows_the_batch_and_adams_does_not():
    found = GRIDS.load("thakkar2020-table1").only()
    rates = {
        arm.batch: found.record_training(arm, 0).learning_rate
        for arm in found.all_arms()
        if not arm.is_federated
    }
    assert rates[256] == pytest.approx(0.005 * math.sqrt(2) ** 3)
    assert rates[32] == 0.005
    table4 = GRIDS.load("thakkar2020-table4", ["records.momentum_learning_rate=0.001"]).only()
    made = {a.name: table4.record_training(a, 0) for a in table4.all_arms() if not a.is_federated}
    assert made["adam-iid-32"].learning_rate == 1e-4
    assert made["momentum-iid-32"].learning_rate == 0.001
    assert made["momentum-iid-32"].momentum == 0.9


def test_only_dp_fedavg_has_noise():
    found = GRIDS.load("thakkar2020-table6").only()
    common = found.common()
    for arm in found.all_arms():
        made = found.experiment_of(arm, common)
        assert (made.privacy.target_epsilon == 18.8) == (arm.optimizer == "dp-fedavg")
        assert made.plan.clip_norm == (None if arm.optimizer == "fedavg" else 0.2)
        said = 0.0 if arm.optimizer == "fedavg+clip" else None  # no noise has to be asked for
        assert made.plan.noise_multiplier == said


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("thakkar")])
def test_fedavg_is_a_plain_average_of_users_by_their_data(name):
    found = GRIDS.load(name).only()
    common = found.common()
    assert common.model.pretrain is None
    for arm in (arm for arm in found.all_arms() if arm.is_federated):
        made = found.experiment_of(arm, common)
        if arm.optimizer != "fedavg+adam":
            assert (made.server.optimizer, made.server.learning_rate) == ("sgd", 1.0)
        is_clipped = arm.optimizer in ("fedavg+clip", "dp-fedavg")  # Algorithm 1: 1/(qN)
        assert made.plan.estimator == ("fixed" if is_clipped else "true-average")
        cap = None if is_clipped else made.corpus.max_tokens_per_user
        assert made.plan.user_weight_cap == cap


def test_the_average_of_fedavg_is_the_one_by_data():
    found = GRIDS.load("thakkar2020-table1").only()
    made = found.experiment_of(found.chosen(["fedavg-non-iid-500"])[0], found.common())
    users, layers = 1000, (3,)
    [plan] = plans.round_plans(plans.declared(made, users), layers)
    state, total = plan.initial_clip_state(), plan.empty(3)
    updates = {40: [1.0, 0.0, -2.0], 4000: [0.0, 1.0, 4.0], 19_999: [2.0, 2.0, 2.0]}
    for tokens, update in updates.items():
        plan.add(total, np.array(update, np.float32), tokens, state)
    released = plan.release(total, state, lambda purpose: pytest.fail("there is no noise"))
    expected = np.average(list(updates.values()), axis=0, weights=list(updates))
    np.testing.assert_allclose(released.average, expected, rtol=1e-6)
    assert not np.allclose(released.average, np.mean(list(updates.values()), axis=0), atol=0.1)


def test_a_noise_multiplier_takes_the_place_of_a_target():
    found = GRIDS.load("thakkar2020-table2", ["private.noise_multiplier=0.7"]).only()
    [arm] = found.chosen(["dp-*"])
    made = found.experiment_of(arm, found.common())
    assert (made.plan.noise_multiplier, made.privacy.target_epsilon) == (0.7, None)


def test_settings_reach_the_experiment_and_a_written_grid_is_the_same(tmp_path):
    found = GRIDS.load("secret-sharer-small", ["experiment.rounds=7", "records.epochs=2"]).only()
    assert (found.common().rounds, found.records.epochs) == (7, 2.0)
    again = load(tmp_path, found.to_toml())
    assert again.to_toml() == found.to_toml()


def test_the_file_in_the_documentation_is_a_grid(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "secret-sharer.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = load(tmp_path, text)
    assert [arm.name for arm in found.all_arms()][-1] == "dp-fedavg-non-iid-100"
    assert found.common().corpus.source == "corpora/chats"
    assert found.projection.cohort == 5000


ARM = '[[arms]]\noptimizer = "fedavg"\ndata = ["iid"]\nbatch = [5]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no arms"),
        (ARM + ARM, "the arm fedavg-iid-5 is there twice; give one of them a label"),
        (ARM.replace("fedavg", "sgdd"), "optimizer cannot be 'sgdd'"),
        (ARM.replace("fedavg", "sgd"), "records.epochs or records.steps is missing for sgd-iid-5"),
        (ARM + "epochs = 3.0\n", "epochs has no meaning for fedavg, which trains users"),
        (ARM.replace('"fedavg"', '"sgd"\nrounds = 2'), "rounds has no meaning for sgd"),
        ("extends = 3\n", "extends must be a recipe's name or a list of names"),
        ('extends = "mine.toml"\n', "extends itself"),
        ("arms = ", "is not TOML"),
        ("colour = 3\n" + ARM, "unknown key 'colour'"),
    ],
    ids=str,
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_grid_without_canaries_or_without_noise_is_refused(tmp_path):
    bare = 'base = "fedavg-small"\n'
    with pytest.raises(ValueError, match="mine plants no canaries"):
        load(tmp_path, bare + ARM).common()
    planted = (
        bare + "[experiment.audit.canaries]\nper_cell = 1\n" + ARM.replace("fedavg", "dp-fedavg")
    )
    found = load(tmp_path, planted)
    with pytest.raises(ValueError, match="no noise for it"):
        found.experiment_of(found.all_arms()[0], found.common())


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="did you mean 'thakkar2020-table1'"):
        GRIDS.load("thakkar2020-tabel1").only()
    with pytest.raises(ValueError, match=r"there is no recipe at nowhere\.toml"):
        GRIDS.load("nowhere.toml").only()
    with pytest.raises(ValueError, match="has no arm 'sdg-\\*'; it has sgd-iid-32"):
        GRIDS.load("secret-sharer-small").only().chosen(["sdg-*"])
