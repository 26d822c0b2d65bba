"""Names are one line that only names, wherever they come from and wherever they are printed."""

from types import SimpleNamespace

import pytest

from tacit.config import recipes
from tacit.config.experiment import Experiment
from tacit.privacy import durable
from tacit.privacy.ledger_lines import PublicInput
from tacit.privacy.visible import markdown
from tacit.runs.card import card
from tacit.tasks.nlu.experiment import NluExperiment
from tacit_papers.markdown import markdown_table

# A name that tried to say something else on the card: above the claim, a claim of its own.
FALSE_CLAIM = (
    "small <script>alert(1)</script> <img src=x> [released](https://evil.example) **epsilon 0.1**"
    " `code` | cell | $x$ &#x202e; https://evil.example www.evil.example a@evil.example _it_ ~~no~~"
)
NOT_A_LINE = ["a\n\n> (epsilon 0.1)", "a\x1b[2J", "a\u202eb", "a\u2066b", "a\u200bb", "a\u2028b"]

KEYS = (
    "name",
    "about.paper",
    "about.section",
    "about.says",
    "corpus.source",
    "tokenizer.source",
    "model.name",
    "model.start",
    "model.pretrain.source",
)


def tables(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


@pytest.mark.parametrize("key", KEYS)
def test_every_text_of_an_experiment_is_one_line(key):
    for text in NOT_A_LINE:
        with pytest.raises(ValueError, match=rf"{key}: it must be one line without control"):
            Experiment.from_data(tables(key, text), "mine.toml")


@pytest.mark.parametrize("key", KEYS)
def test_every_text_of_an_experiment_is_of_bounded_length(key):
    with pytest.raises(ValueError, match=rf"{key}: it must have at most .* got 1,000,000$"):
        Experiment.from_data(tables(key, "x" * 1_000_000), "mine.toml")


def test_texts_in_lists_and_tables_are_texts():
    for data in (
        {"model": {"options": {"a\nb": 1}}},
        {"model": {"options": {"a": "b\nc"}}},
        {"model": {"trained": ["a\u202e"]}},
        {"plan": {"clip_norm_from": ["a\x1b"], "clip_norm": 1.0}},
    ):
        with pytest.raises(ValueError, match="must be one line"):
            Experiment.from_data(data, "mine.toml")
    noise = {"noise": {"noise_multiplier": 1.0}}
    with pytest.raises(ValueError, match=r"data\.intents: it must be one line"):
        NluExperiment.from_data({"data": {"intents": ["ok", "a\nb"]}} | noise, "mine.toml")


def test_a_wrong_value_is_not_repeated_at_length():
    with pytest.raises(ValueError, match="rounds cannot be 'xxx") as refused:
        Experiment.from_data({"rounds": "x" * 1_000_000}, "mine.toml")
    assert len(str(refused.value)) < 500


def test_a_recipe_whose_file_has_no_line_for_a_name_is_refused(tmp_path):
    path = tmp_path / "a\u202eb.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(ValueError, match="name: it must be one line"):
        recipes.load(str(path))


@pytest.mark.parametrize("name", [*NOT_A_LINE, "x" * 201])
def test_folders_of_runs_corpora_and_bundles_are_named_in_one_line(tmp_path, name):
    name = name.replace("/", "")
    with (
        pytest.raises(ValueError, match="the name of a new folder must"),
        durable.whole_folder(tmp_path / name),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", NOT_A_LINE)
def test_what_a_ledger_declares_public_has_a_name_of_one_line(name):
    with pytest.raises(ValueError, match="name must be one line"):
        PublicInput("tokenizer", name, "ab")


def card_of(name, source="chitchat", paper="", public="text"):
    experiment = Experiment(
        name=name, corpus={"source": source}, about={"paper": paper, "section": name[:900]}
    )
    header = SimpleNamespace(
        counted="rounds", unit="user", public_inputs=[PublicInput("text", public, "ab")]
    )
    guarantee = SimpleNamespace(
        claim="(epsilon, delta) = (2, 1e-6)-DP",
        delta=1e-6,
        epsilon={"pld": 2.0},
        accountant="pld",
        rounds=1,
        header=header,
        others="",
    )
    facts = SimpleNamespace(
        leg=1,
        is_complete=True,
        key_exists=False,
        guarantee=guarantee,
        head=SimpleNamespace(entries=1, hash="ab"),
        parameters=5,
        words=SimpleNamespace(kind="word", vocab_size=5, provenance=f"public: {public}"),
        metrics=None,
        baselines={},
    )
    return card(experiment, facts, None)


def test_a_model_card_takes_no_claim_script_or_link_from_a_name():
    made = card_of(FALSE_CLAIM, FALSE_CLAIM, FALSE_CLAIM, FALSE_CLAIM)
    plain = card_of("x", "x", "x", "x")
    assert len(made.splitlines()) == len(plain.splitlines())
    for acting in (
        "<script", "<img", "[released](", "**epsilon", "`code`", "| cell |", "$x$", "&#x",
        " https://", " www.", "a@", " _it_", "~~no~~",
    ):  # fmt: skip
        assert acting not in made.replace("**What", "")
    assert "&lt;script>alert(1)&lt;/script>" in made
    assert made.startswith("# small &lt;script>")


def test_a_card_says_ordinary_names_as_they_are():
    name = "mcmahan2018-small/S_10.5 (McMahan et al., 2018); first 1/2: K^-1.1 <= 8, a & b, 50%"
    assert markdown(name) == name
    assert card_of(name).startswith(f"# {name}\n")


def test_a_name_is_a_cell_of_the_papers_tables():
    made = markdown_table(["run", "n"], [[FALSE_CLAIM, "1"]])
    assert len(made.splitlines()) == 3
    assert r"\| cell \|" in made
    assert "<script" not in made


@pytest.mark.parametrize("name", [r"$\frac{$", "$x$", r"a $\color{red}{b}$ \x", "a\nb\x1b"])
def test_a_plot_reads_no_mathematics_in_a_name(tmp_path, name):
    from matplotlib.text import Text

    from tacit.cli import plots

    seen = []

    def savefig(figure, *arguments, **options):
        figure.canvas.draw()  # raises on what is no mathematics between dollars
        seen.extend(text for text in figure.findobj(Text) if text.get_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", savefig)
        curves = {name: [(1, 1.0), (2000, 3.0)]}
        plots.draw(tmp_path / "plot.png", plots.Panel(name, name, curves, title=name, log_x=True))
    named = [text for text in seen if "a" in text.get_text() or "$" in text.get_text()]
    assert len([text for text in named if not text.get_parse_math()]) >= 4
    assert not any("\x1b" in text.get_text() for text in seen)


def test_a_logarithmic_axis_of_a_paper_s_plot_is_mathematics(tmp_path):
    from tacit.cli import plots

    figure = plots.new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([1, 1000], [1, 2])
    axes.set_xscale("log")
    axes.set_yticks([1, 2], ["$a", "$b"])
    plots.save(figure, tmp_path / "plot.png")
    assert all(label.get_parse_math() for label in axes.get_xticklabels())
    assert not any(label.get_parse_math() for label in axes.get_yticklabels())
