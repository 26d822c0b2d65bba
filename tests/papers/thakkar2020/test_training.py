"""A whole grid: the same canaries in every arm, arms that were finished are kept, one table."""

import json

import pytest

from tacit.models import weights
from tacit.runs.run import Run
from tacit_papers.thakkar2020.training import SecretSharer
from tests.papers.thakkar2020.small_grid import Silent, alike, small_grid


def test_every_arm_of_a_seed_is_asked_about_the_same_canaries(finished):
    sharer, found = finished
    assert [(row["seed"], row["arm"]) for row in found] == [
        (seed, arm.name) for seed in (0, 1) for arm in sharer.grid.all_arms()
    ]
    by_seed = {}
    for row in found:
        texts = [canary["text"] for canary in row["canaries"]]
        assert by_seed.setdefault(row["seed"], texts) == texts
        assert len(row["controls"]) == 5
    assert by_seed[0] != by_seed[1]


def test_arms_of_the_same_data_see_the_same_copies(finished):
    _, found = finished
    copies = {}
    for row in found:
        planted = [canary["copies"] for canary in row["canaries"]]
        assert copies.setdefault((row["seed"], row["data"]), planted) == planted
        assert sum(planted) > 0


def test_long_training_on_records_memorizes_and_noise_does_not(finished):
    _, found = finished
    exposures = {
        (row["seed"], row["arm"]): [canary["exposure"] for canary in row["canaries"]]
        for row in found
    }
    for seed in (0, 1):
        pooled, private = exposures[seed, "sgd-iid-8"], exposures[seed, "dp-fedavg-non-iid-10"]
        assert sum(pooled) > sum(private) + 4  # bits, of four canaries


def test_federated_arms_are_runs_and_the_others_have_their_model(finished):
    sharer, found = finished
    for row in found:
        path = sharer.out / f"seed-{row['seed']}" / row["arm"]
        if row["unit"] == "users":
            run = Run.open(path)
            assert run.is_complete
            assert run.ledger.header.simulation
            assert run.experiment.seed == row["seed"]
        else:
            assert weights.trained_on(path / "model.safetensors")
            assert json.loads((path / "result.json").read_text())["epsilon"] is None


def test_only_the_arm_with_noise_has_an_epsilon(finished):
    _, found = finished
    for row in found:
        assert (row["epsilon"] is not None) == (row["optimizer"] == "dp-fedavg")
        assert ("No differential privacy" in row["claim"]) == (row["epsilon"] is None)


def test_another_call_repeats_nothing(finished):
    sharer, found = finished

    def watch(title):
        raise AssertionError(f"{title} was trained again")

    assert sharer.run(watch) == found


class Stop(Exception):
    pass


class Stopping(Silent):
    """Interrupts the first federated training after its first round."""

    def observe(self, now):
        if now.leg == 1 and not now.done:
            raise Stop


@pytest.mark.slow
def test_an_interrupted_grid_goes_on_and_ends_with_the_same_figures(finished, folder, tmp_path):
    whole, found = finished
    cut = SecretSharer(whole.grid, tmp_path / "cut", whole.arms[:3], (0,))
    with pytest.raises(Stop):
        cut.run(lambda title: Stopping())
    assert [row["arm"] for row in cut.results()] == ["sgd-iid-8", "sgd-non-iid-8"]
    begun = tmp_path / "cut" / "seed-0" / "fedavg-non-iid-10"
    assert not Run.open(begun).is_complete
    titles = []

    def watch(title):
        titles.append(title)
        return Silent()

    again = cut.run(watch)
    assert titles == ["seed 0, fedavg-non-iid-10"]
    assert alike(again, [row for row in found if row["seed"] == 0][:3])


def test_training_on_records_that_was_cut_begins_again(finished, tmp_path):
    whole, found = finished

    class Cut(Silent):
        def tell(self, what, done, of):
            if what == "training on records" and done > of / 2:
                raise Stop

    cut = SecretSharer(whole.grid, tmp_path / "cut", whole.arms[:1], (0,))
    with pytest.raises(Stop):
        cut.run(lambda title: Cut())
    assert cut.results() == []
    assert alike(cut.run(lambda title: Silent()), found[:1])


def test_an_arm_that_was_trained_but_not_audited_is_not_trained_again(finished, tmp_path):
    whole, found = finished

    class Cut(Silent):
        def tell(self, what, done, of):
            if what == "looking for canaries":
                raise Stop

    for arm in (whole.arms[0], whole.arms[2]):
        cut = SecretSharer(whole.grid, tmp_path / arm.name, [arm], (0,))
        with pytest.raises(Stop):
            cut.run(lambda title: Cut())

        class Audited(Silent):
            def tell(self, what, done, of):
                assert what == "looking for canaries"

        [row] = cut.run(lambda title: Audited())
        assert alike(row, next(one for one in found if one["arm"] == arm.name))


def test_a_folder_of_something_else_is_refused(folder, tmp_path):
    grid = small_grid(folder)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else already"):
        SecretSharer(grid, tmp_path, grid.all_arms(), (0,)).run(lambda title: Silent())
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_folder_of_another_grid_is_refused(finished, folder):
    whole, _ = finished
    other = small_grid(folder, private={"clip_norm": 0.4, "noise_multiplier": 1.0})
    with pytest.raises(ValueError, match=r"private\.clip_norm is 0\.3 there and 0\.4 here"):
        SecretSharer(other, whole.out, other.all_arms(), (0,)).run(lambda title: Silent())


def test_more_users_a_round_than_there_are_is_refused_before_any_work(folder, tmp_path):
    grid = small_grid(folder, arms=[{"optimizer": "fedavg", "data": ["iid"], "batch": [900]}])
    with pytest.raises(ValueError, match="900 users a round are more than the"):
        SecretSharer(grid, tmp_path / "out", grid.all_arms(), (0,)).run(lambda title: Silent())
    assert not (tmp_path / "out").exists()
