"""`tacit compare`: several runs in one table, one JSON object and one picture."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tacit.cli.compare import _then
from tacit.cli.main import main
from tacit.config import recipes
from tacit.corpus.builtin import SyntheticCorpus
from tacit.runs.run import Run
from tacit.runs.session import TrainingProgress
from tacit.tokenizers import build, provenance
from tacit.train import train

SETTINGS = (
    "model.options={embedding_size=8,cells=8}",
    "plan.cohort=10",
    "update.learning_rate=0.5",
    "privacy.delta=1e-3",
    "evaluation.every=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`private` and `plain` on the same text, and two variants in `pair`: one of them cut short."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    users = SyntheticCorpus().test
    texts = (text for user in range(len(users)) for text in users.texts(user))
    words = build.learn("word", texts, 200, provenance=provenance.public("words"))
    words.save(folder / "tokenizer.json")
    common = [*SETTINGS, f"tokenizer.source={folder / 'tokenizer.json'}"]
    small, other = "synthetic:users=60,words=40", "synthetic:users=80,words=40"

    def settings(corpus, *more):
        return [*common, f'corpus.source="{corpus}"', *more]

    def stop(now: TrainingProgress) -> None:
        if now.leg == 2 and now.done == 1:
            raise RuntimeError

    private = settings(small, "plan.noise_multiplier=1", "rounds=4", "seed=1")
    train(recipes.load("mcmahan2018", private).only(), folder / "private")
    train(recipes.load("fedavg", settings(small, "rounds=2")).only(), folder / "plain")
    pair = settings(other, "rounds=3", "privacy.delta=2e-3", "tokenizer.size=100")
    one = recipes.load("mcmahan2018", [*pair, "plan.noise_multiplier=2"]).only()
    with pytest.raises(RuntimeError):
        train(one, folder / "pair" / "begun", observer=stop)
    fixed = ["plan.sampling=fixed", "plan.noise_multiplier=3"]
    train(recipes.load("mcmahan2018", [*pair, *fixed]).only(), folder / "pair" / "done")
    yield folder
    torch.set_num_threads(before)


def run(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *map(str, words)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_json_has_each_run_its_figures_and_the_difference_to_the_first(capsys, folder):
    code, out, err = run(capsys, folder / "plain", folder / "private", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    plain, private = found["runs"]
    assert [plain["name"], private["name"]] == ["plain", "private"]
    assert [plain["rounds"], private["rounds"]] == [2, 4]
    assert [plain["private"], private["private"]] == [False, True]
    assert plain["epsilon"] is None
    assert private["epsilon"] == Run.open(folder / "private").guarantee().epsilon["pld"]
    assert plain["difference"] == {"accuracy_top1": 0, "perplexity": 0}
    assert private["accuracy_top1_unk_competes"] <= private["accuracy_top1"]
    assert private["difference"]["perplexity"] == private["perplexity"] - plain["perplexity"]
    assert [plain["clip_norms"], private["clip_norms"]] == [[None], [15.0]]
    assert [plain["simulation"], private["simulation"]] == [False, True]
    assert private["noise_multipliers"] == [1.0]
    assert private["cohorts"] == [10.0]
    assert not any("do not compare" in note for note in found["notes"])
    [seeded] = [note for note in found["notes"] if note.startswith("Simulations, not for release")]
    assert seeded.endswith(": private.")


def test_a_run_of_before_has_no_figure_of_what_was_not_measured_then(capsys, folder, tmp_path):
    before = tmp_path / "before"
    shutil.copytree(folder / "plain", before)
    result = json.loads((before / "result.json").read_text())
    kept = {key: value for key, value in result.items() if "unk_competes" not in key}
    assert kept != result
    (before / "result.json").write_text(json.dumps(kept))
    code, out, err = run(capsys, folder / "private", before, "--json")
    assert (code, err) == (0, "")
    _, second = json.loads(out)["runs"]
    assert second["accuracy_top1_unk_competes"] is None
    assert second["accuracy_top1"] == result["accuracy_top1"]
    code, out, _ = run(capsys, before, folder / "private")
    assert code == 0
    assert "competes" in out


def test_epsilon_and_claim_are_those_of_the_ledger_whatever_other_files_say(
    capsys, folder, tmp_path
):
    edited = tmp_path / "private"
    shutil.copytree(folder / "private", edited)
    result = json.loads((edited / "result.json").read_text())
    result |= {
        "epsilon": {"pld": 0.01},
        "accountant": "pld",
        "delta": 1e-9,
        "claim": "All is well.",
    }
    (edited / "result.json").write_text(json.dumps(result))
    code, out, _ = run(capsys, edited, "--json")
    [row], found = json.loads(out)["runs"], Run.open(edited).guarantee()
    assert code == 0
    assert (row["epsilon"], row["delta"], row["claim"]) == (found.value, 1e-3, found.claim)


def test_a_directory_that_holds_runs_stands_for_all_of_them(capsys, folder):
    code, out, _ = run(capsys, folder / "private", folder / "pair", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["name"] for row in found["runs"]] == ["private", "begun", "done"]
    assert [row["complete"] for row in found["runs"]] == [True, False, True]
    assert found["runs"][1]["rounds"] == 2
    notes = " ".join(found["notes"])
    assert "on different corpora: accuracy and perplexity do not compare" in notes
    assert "different deltas: they do not compare" in notes
    assert "different adjacencies: they do not compare" in notes
    assert "the figures are those of the last evaluation: begun." in notes


def test_the_table_fits_a_narrow_terminal_and_is_one_on_a_wide_one(capsys, folder, monkeypatch):
    tables = {}
    for width in (80, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, _ = run(capsys, folder / "plain", folder / "private")
        assert code == 0
        assert max(map(len, out.splitlines())) <= width
        tables[width] = out
    assert [tables[width].count("\n run ") for width in (80, 160)] == [2, 1]
    for text in ("perplexity", "epsilon", "delta", "cohort", "simulation", "infinity", "lstm"):
        assert all(text in table for table in tables.values()), text
    assert "+/-: to plain" in tables[80]


def test_the_plot_has_accuracy_perplexity_and_epsilon(capsys, folder, tmp_path):
    picture = tmp_path / "curves.svg"
    code, _, err = run(capsys, folder / "plain", folder / "private", "--plot", picture)
    assert (code, err) == (0, "")
    assert picture.stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["curves.svg"]


def test_runs_without_an_epsilon_can_be_drawn(capsys, folder, tmp_path):
    code, _, _ = run(capsys, folder / "plain", "--plot", tmp_path / "one.png")
    assert code == 0
    assert (tmp_path / "one.png").exists()


def test_every_mistake_is_one_sentence(capsys, folder, tmp_path):
    for words, message in (
        ([], "Missing argument 'RUN...'"),
        ([tmp_path / "nowhere"], "there is no run at"),
        ([tmp_path], "is not a run directory"),
        ([folder / "plain", folder / "plain"], "is named twice"),
        ([folder / "plain", "--plot", tmp_path / "a.gif"], "plot file must end in .png"),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "")
        assert err.startswith("tacit: ")
        assert err.count("\n") == 1
        assert message in err


def test_phases_are_shown_once_where_they_are_the_same():
    assert _then([20.0, 7.9]) == "20, then 7.9"
    assert _then([0.06, 0.06]) == "0.06"
    assert _then([None]) == "none"
