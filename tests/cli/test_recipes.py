"""`tacit recipes`: what there is, and what each stands for."""

from __future__ import annotations

import json
import tomllib

import pytest

from tacit.cli.main import main
from tacit.tasks import catalogue, recipes


def run(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["recipes", *words])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def printed(capsys, *words: str) -> str:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    return out


def test_the_list_names_every_recipe_and_what_it_stands_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "list")
    assert max(map(len, text.splitlines())) <= 80
    assert all(f" {name} " in text for name in catalogue.names())
    rows = json.loads(printed(capsys, "list", "--json"))
    assert {row["name"]: row["task"] for row in rows} == catalogue.names()
    assert recipes.names().items() < catalogue.names().items()
    assert all(
        list(row) == [*"name task paper section says users variants command recorded".split()]
        for row in rows
    )
    assert all(row["says"] for row in rows)
    by_name = {row["name"]: row["variants"] for row in rows}
    assert by_name["mcmahan2018"] == []
    assert len(by_name["mcmahan2018-table2"]) == 3
    assert "dp-fedavg-non-iid-293" in by_name["thakkar2020-table2-small"]


def test_the_list_says_where_a_recipe_is_recorded_and_which_never_was(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = {line.split()[0]: line for line in printed(capsys, "list").splitlines() if line.strip()}
    assert " next-word " in lines["mcmahan2018"]
    assert " never " in lines["mcmahan2018-table2"]
    rows = {row["name"]: row["recorded"] for row in json.loads(printed(capsys, "list", "--json"))}
    assert rows["mcmahan2018"]["page"] == "docs/results/next-word.md"
    assert rows["mcmahan2018-table2"] is None
    shown = printed(capsys, "show", "mcmahan2018")
    assert "\n# record: docs/results/next-word.md (200 rounds of" in shown
    assert "\n# record: never run" in printed(capsys, "show", "mcmahan2018-table2")


@pytest.mark.parametrize("name", ["secret-sharer-small", "thakkar2020-table4-small"])
def test_a_secret_sharer_recipe_is_shown_with_its_arms_and_its_command(capsys, tmp_path, name):
    shown = printed(capsys, "show", name)
    grid = catalogue.entry(name).recipe.only()
    assert f"\n# run: tacit papers secret-sharer {name} --out DIR" in shown
    assert all(arm.name in " ".join(shown.split("\n#   ")) for arm in grid.all_arms())
    file = tmp_path / "shown.toml"
    file.write_text(f'extends = "{name}"\n')
    assert catalogue.entry(str(file)).kind == "secret-sharer"
    assert catalogue.entry(str(file)).recipe.only().all_arms() == grid.all_arms()
    assert "# record:" not in printed(capsys, "show", str(file))


def test_show_begins_with_paper_section_and_figure(capsys):
    text = printed(capsys, "show", "mcmahan2018")
    assert text.startswith("# mcmahan2018: DP-FedAvg")
    assert "\n# paper: McMahan et al. 2018" in text
    assert "\n# where: section 3, Figure 1" in text


@pytest.mark.parametrize("name", list(recipes.names()))
def test_what_is_shown_is_a_recipe_with_the_same_experiments(capsys, tmp_path, name):
    file = tmp_path / f"{name}.toml"
    file.write_text(printed(capsys, "show", name))
    assert recipes.load(str(file)).experiments == recipes.load(name).experiments


@pytest.mark.parametrize("name", ["mcmahan2018", "mcmahan2018-table2"])
def test_show_as_json_has_every_value_of_every_variant(capsys, name):
    found = json.loads(printed(capsys, "show", name, "--json"))
    recipe = recipes.load(name)
    assert found["variants"] == recipe.variants
    assert [one["variant"] or "" for one in found["experiments"]] == list(recipe.experiments)
    assert [one["experiment"]["plan"]["clip_norm"] for one in found["experiments"]] == [
        experiment.plan.clip_norm for experiment in recipe.experiments.values()
    ]


def test_the_source_is_the_file_as_written(capsys):
    text = printed(capsys, "show", "mcmahan2018-table2", "--source")
    assert recipes.source("mcmahan2018-table2").strip() in text
    assert tomllib.loads(text)["extends"] == "mcmahan2018"
    found = json.loads(printed(capsys, "show", "mcmahan2018-table2", "--source", "--json"))
    assert found["source"] == recipes.source("mcmahan2018-table2")
    assert "experiments" not in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "mcmahan"], "did you mean 'mcmahan2018'?"),
        (["show", "no.toml"], "there is no recipe at no.toml"),
        (["show"], "Missing argument 'NAME'"),
        (["paint"], "No such command 'paint'"),
    ],
)
def test_every_mistake_is_one_sentence(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert message in err
