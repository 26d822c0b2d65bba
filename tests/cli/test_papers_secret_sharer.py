"""`tacit papers secret-sharer`: from a grid to its table, and mistakes in one sentence."""

import json
import sys

import pytest
import torch

from tests.papers.thakkar2020.small_grid import base_file

ARMS = """
[[arms]]
optimizer = "sgd"
data = ["iid"]
batch = [8]

[[arms]]
optimizer = "dp-fedavg"
data = ["non-iid"]
batch = [10]
"""


@pytest.fixture(scope="session")
def grid_file(small):
    file = small / "grid.toml"
    file.write_text(
        f'base = "{base_file(small)}"\n'
        "[records]\nlearning_rate = 4.0\nepochs = 3.0\n"
        "[private]\nclip_norm = 0.3\nnoise_multiplier = 1.0\n"
        "[projection]\npopulation = 1000000\ncohort = 1000\ndelta = 1e-7\n"
        "[extraction]\nsamples = 100\ncontrols = 3\nrank_budget = 50\n" + ARMS,
        encoding="utf-8",
    )
    return file


@pytest.fixture
def sharer(command):
    return command("papers secret-sharer")


def test_a_grid_ends_in_a_table_a_file_and_a_picture(sharer, grid_file, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    said = sharer.says(grid_file, "--out", out, "--workers", "1", "--seeds", "0,1", "--quiet")
    assert "DP-FedAvg Non-IID 10 users" in said
    assert "SGD IID 8 records" in said
    assert "projected, not trained with this guarantee" in said
    assert "Simulation, not for release" in said
    written = json.loads((out / "secret-sharer.json").read_text())
    assert [row["arm"] for row in written["rows"]] == ["sgd-iid-8", "dp-fedavg-non-iid-10"]
    assert all(row["seeds"] == [0, 1] for row in written["rows"])
    assert (out / "secret-sharer.md").read_text().startswith("| Optimizer |")
    assert (out / "secret-sharer.png").is_file()
    trained = {path: path.stat().st_mtime_ns for path in out.glob("seed-*/*/*")}
    again = sharer.json(grid_file, "--out", out, "--workers", "1", "--arms", "sgd-*", "--quiet")
    assert again == written | {"recipe": str(grid_file)}  # with what was there before
    assert trained == {path: path.stat().st_mtime_ns for path in out.glob("seed-*/*/*")}
    assert torch.get_num_threads() == 1


def test_arms_can_be_listed(sharer, grid_file, tmp_path):
    out = tmp_path / "out"
    assert sharer.says(grid_file, "--out", out, "--list") == "sgd-iid-8 dp-fedavg-non-iid-10"
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arms", "sgd-iid-9"], "has no arm 'sgd-iid-9'; it has sgd-iid-8"),
        (["--seeds", "0,x"], "--seeds must be different whole numbers such as 0,1, got '0,x'"),
        (["--seeds", "1,1"], "--seeds must be different whole numbers"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--set", "arms=[]"], "there are no arms"),
        (["--set", "experiment.rouds=3"], "unknown key 'rouds'"),
        (["--corpus", "nowhere"], "nowhere"),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence(sharer, grid_file, tmp_path, words, message):
    out = tmp_path / "out"
    assert message in sharer.refused(grid_file, "--out", out, *words)
    assert not out.exists()


def test_an_unknown_recipe_is_refused(sharer, tmp_path):
    said = sharer.refused("thakkar2020-table9", "--out", tmp_path / "out")
    assert "there is no recipe 'thakkar2020-table9'" in said


def test_a_folder_of_something_else_is_refused(sharer, grid_file, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert "holds something else already" in sharer.refused(grid_file, "--out", tmp_path)


def test_ctrl_c_says_how_to_go_on(sharer, grid_file, tmp_path, monkeypatch):
    from tacit_papers.thakkar2020.training import SecretSharer

    def interrupted(self, watch):
        raise KeyboardInterrupt

    monkeypatch.setattr(SecretSharer, "run", interrupted)
    words = ["papers", "secret-sharer", "grid.toml", "--out", "there"]
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    code, _, err = sharer(grid_file, "--out", tmp_path / "out")
    assert code == 130
    assert "go on with: tacit papers secret-sharer grid.toml --out there" in err
