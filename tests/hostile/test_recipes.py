"""Recipes are files from anybody: what they name stays in the run, and reading them always ends."""

import re

import pytest

from tacit.config import recipes
from tacit.config.recipes import MOST_EXPERIMENTS
from tacit.tasks.recipes import task_of_recipe


@pytest.fixture
def folder(tmp_path):
    """Writes a file into a folder of its own, and gives its path."""

    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def refusal(path):
    with pytest.raises(ValueError, match=r".") as refused:
        recipes.load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    "value", ["/../../outside", "..", "a/b", "a\\b", "a b", "\u202eoutside", "a\nb", "x" * 250]
)
def test_a_cell_of_a_grid_is_called_as_a_folder_inside_of_the_run(folder, value):
    spelled = value.encode("unicode_escape").decode().replace("\\\\", "\\\\")
    spelled = spelled if value != "a\\b" else r"a\\b"
    path = folder("mine.toml", f'[grid]\n"corpus.source" = ["{spelled}"]\n')
    if value == "..":
        assert recipes.load(path).variants == ["source-.."]  # one folder, and an ordinary one
        return
    assert "letters, digits and _.- only" in refusal(path)


def test_a_variant_with_a_grid_is_checked_as_well(folder):
    path = folder("mine.toml", '[variants.a.grid]\n"corpus.source" = ["/../../outside"]\n')
    assert "'a_source-/../../outside'" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        "[grid]\nrounds = [5, 5]\n",
        "[variants.a.grid]\nrounds = [5]\n[variants.a_rounds-5]\nrounds = 6\n",
        "[variants.s]\nrounds = 5\n[variants.S]\nrounds = 6\n",  # one folder on some systems
        '[grid]\n"plan.cohort" = [5.0]\n"update.cohort" = [5.0]\n"rounds" = [1, 1]\n',
    ],
)
def test_two_trainings_of_one_name_are_refused(folder, text):
    assert "are called" in refusal(folder("mine.toml", text))


def test_a_grid_of_a_hundred_million_cells_is_refused_before_any_is_made(folder):
    keys = ("plan.clip_norm", "plan.cohort", "update.learning_rate", "server.learning_rate")
    lines = [f'"{key}" = {[float(value) for value in range(1, 101)]}' for key in keys]
    path = folder("mine.toml", "\n".join(["[grid]", *lines]))
    assert f"make 100,000,000 trainings, and a recipe may have at most {MOST_EXPERIMENTS:,}" in (
        refusal(path)
    )


def test_many_variants_are_counted_as_cells_are(folder):
    text = "".join(f"[variants.v{n}]\nrounds = {n + 1}\n" for n in range(MOST_EXPERIMENTS + 1))
    assert "make 1,001 trainings" in refusal(folder("mine.toml", text))


def test_recipes_that_each_extend_the_one_before_twice_are_each_read_once(folder):
    folder("r0.toml", "rounds = 7\n")
    for number in range(1, 25):
        path = folder(f"r{number}.toml", f'extends = ["r{number - 1}.toml", "r{number - 1}.toml"]')
    assert recipes.load(path).only().rounds == 7
    assert task_of_recipe(path) == "language"


def test_a_long_chain_of_recipes_is_refused_with_a_sentence(folder):
    folder("r0.toml", "rounds = 7\n")
    for number in range(1, 1500):
        path = folder(f"r{number}.toml", f'extends = "r{number - 1}.toml"')
    assert task_of_recipe(path) == "language"
    assert refusal(path).startswith("more than 32 recipes extend one another: ")


@pytest.mark.parametrize("parent", ["mine.toml", "sub/../mine.toml", "link/mine.toml", "same.toml"])
def test_a_recipe_that_extends_itself_is_found_by_whichever_path(folder, tmp_path, parent):
    path = folder("mine.toml", f'extends = ["{parent}", "{parent}"]')
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "same.toml").symlink_to(tmp_path / "mine.toml")
    assert task_of_recipe(path) == "language"
    assert re.search("the recipe .* extends itself: .* -> ", refusal(path))


def test_a_task_that_is_no_word_is_refused_with_a_sentence(folder):
    path = folder("mine.toml", 'task = ["nlu"]\n')
    with pytest.raises(ValueError, match="task must be one of language, nlu, got"):
        task_of_recipe(path)


ARM = '[[arms]]\noptimizer = "sgd"\ndata = ["iid"]\n'


def test_an_arm_of_the_secret_sharer_is_a_folder_inside_of_its_grid(folder):
    from tacit_papers.thakkar2020.grid import GRIDS

    text = f"{ARM}batch = [32]\nepochs = 1.0\n"
    assert GRIDS.load(folder("good.toml", f'{text}label = "b-2"\n')).only().all_arms()
    for label in ("/../../outside", "a\\nb", "x" * 101):
        with pytest.raises(ValueError, match=r"arms\.label cannot be|arms\.0\.label cannot be"):
            GRIDS.load(folder("bad.toml", f'{text}label = "{label}"\n'))


def test_the_arms_of_the_secret_sharer_are_counted_before_they_are_made(folder):
    from tacit_papers.thakkar2020.grid import GRIDS

    path = folder("many.toml", f"{ARM}batch = {[*range(1, 1002)]}\nepochs = 1.0\n")
    with pytest.raises(ValueError, match="there are 1,001 arms, and a grid may have at most 1,000"):
        GRIDS.load(path)
