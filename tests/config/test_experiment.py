"""Experiments: every value survives the way to TOML and back, and phases change the plan."""

import re
import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from tacit.config.experiment import Experiment, Plan
from tacit.privacy.visible import visible

# TOML text on the way back and forth.

STRINGS = st.text() | st.sampled_from(
    [
        "",
        " ",
        '"',
        "'",
        '"""',
        "\\",
        "\\u0041",
        "a\nb",
        "\r\n",
        "\t",
        "\x00\x1f\x7f",
        "=#[]{}.",
        "😀é",
    ]
)
VALUES = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | STRINGS
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(STRINGS, NESTED, max_size=5))
def test_what_is_written_is_what_the_standard_library_reads(data):
    assert same(tomllib.loads(tomli_w.dumps(data)), data)


def same(left: object, right: object) -> bool:
    """Equal with equal types, so that neither true is 1 nor 1 is 1.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


# Experiments.

whole = st.integers(1, 10**6)
positive = st.floats(1e-9, 1e9, allow_nan=False, exclude_min=True)
share = st.floats(0, 1, exclude_min=True, exclude_max=True)
text = STRINGS.map(visible)  # one line; others are refused (tests/hostile/test_names.py)


def maybe(**fields: st.SearchStrategy) -> st.SearchStrategy:
    """A table with any of these keys."""
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def plans(draw) -> dict:
    plan = draw(
        maybe(
            population=whole,
            cohort=positive,
            sampling=st.sampled_from(["poisson", "truncated", "fixed"]),
            max_cohort=whole,
            estimator=st.sampled_from(["fixed", "clipped", "true-average"]),
            total_weight=positive,
            min_weight=positive,
            user_weight_cap=positive,
            weight_aware=st.booleans(),
            schedule=st.fixed_dictionaries(
                {"kind": st.sampled_from(["geometric", "linear"]), "final_norm": positive},
                optional={"factor": share, "final_round": whole},
            ),
            adaptive=maybe(target_quantile=share, learning_rate=positive),
        )
    )
    noise = draw(st.sampled_from([None, "noise_multiplier", "noise_stddev"]))
    norms = st.lists(positive, min_size=1, max_size=4)
    clip = draw(
        st.fixed_dictionaries({"clip_norm": positive})
        | st.fixed_dictionaries({"clipping": st.just("per-layer"), "clip_norm": positive})
        | st.fixed_dictionaries({"clipping": st.just("per-layer"), "layer_clip_norms": norms})
        | st.just({"clipping": "none"})
    )
    return plan | clip | ({noise: draw(positive)} if noise else {})


@st.composite
def experiments(draw) -> Experiment:
    options = st.dictionaries(text, st.integers(-9, 9) | st.floats(-1, 1) | st.booleans() | text)
    data = draw(
        maybe(
            name=text,
            about=maybe(paper=text, section=text, says=text),
            corpus=maybe(source=text, view=st.sampled_from(["users", "iid"]), users=whole),
            tokenizer=maybe(source=text, size=whole, accept_oracle=st.booleans()),
            model=maybe(
                name=text,
                options=options,
                seed=st.integers(0, 2**32),
                start=text,
                pretrain=maybe(source=text, epochs=positive, batch_size=whole),
            ),
            update=maybe(learning_rate=positive, clip=st.sampled_from(["end", "greedy"])),
            server=maybe(
                optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
                stabiliser=positive,
                schedule=maybe(kind=st.sampled_from(["constant", "cosine", "linear"])),
                averaging=maybe(kind=st.sampled_from(["tail", "ema"]), share=share, decay=share),
            ),
            privacy=maybe(delta=share, target_epsilon=positive, budget_epsilon=positive),
            evaluation=maybe(every=whole, smooth=whole),
            plan=plans(),
            rounds=whole,
        )
    )
    changes = maybe(cohort=positive, noise_stddev=positive)
    phases = draw(st.lists(st.fixed_dictionaries({"rounds": whole, "plan": changes}), max_size=3))
    if phases:
        data |= {"phases": phases, "rounds": sum(phase["rounds"] for phase in phases)}
    return Experiment.from_data(data, "made up")


@given(experiments())
def test_an_experiment_survives_the_way_to_toml_and_back(experiment):
    written = experiment.to_toml()
    assert Experiment.from_toml(written, "written") == experiment
    assert Experiment.from_toml(written, "written").to_toml() == written


@given(experiments())
def test_types_survive_the_way_to_toml_and_back(experiment):
    back = Experiment.from_toml(experiment.to_toml(), "written")
    assert same(back.model_dump(mode="json"), experiment.model_dump(mode="json"))


def test_an_empty_file_is_the_default_experiment():
    assert Experiment.from_toml("", "empty") == Experiment()


def test_an_experiment_does_not_change_after_reading():
    with pytest.raises(ValueError, match="frozen"):
        Experiment().rounds = 3


@given(experiments(), whole)
def test_a_changed_experiment_differs_in_what_was_changed_only(experiment, every):
    changed = experiment.changed(evaluation={"every": every})
    assert changed.evaluation.every == every
    assert changed.evaluation.smooth == experiment.evaluation.smooth
    assert changed.changed(evaluation={"every": experiment.evaluation.every}) == experiment


def test_a_change_that_is_a_mistake_is_one_sentence():
    with pytest.raises(ValueError, match=r"^the changed experiment: rounds cannot be 0: "):
        Experiment().changed(rounds=0)


# Phases.


def of_phases(*rounds: int, **plan: object) -> Experiment:
    phases = [
        {"rounds": count, "plan": plan if number else {}} for number, count in enumerate(rounds)
    ]
    return Experiment.from_data({"rounds": sum(rounds), "phases": phases}, "test")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_every_round_belongs_to_the_phase_that_has_begun_last(rounds):
    experiment = of_phases(*rounds)
    expected = [number for number, count in enumerate(rounds) for _ in range(count)]
    assert [experiment.phase_of(round) for round in range(experiment.rounds)] == expected
    for number in range(len(rounds)):
        assert expected.index(number) == experiment.phase_starts[number]


def test_without_phases_there_is_one_that_is_the_plan():
    experiment = Experiment()
    assert [experiment.phase_of(round) for round in (0, 5, 10**6)] == [0, 0, 0]
    assert experiment.phase_starts[0] == 0
    assert experiment.phase_plan(0) == experiment.plan


def test_beyond_the_last_round_is_the_last_phase():
    assert of_phases(2, 3).phase_of(5) == 1


def test_a_phase_changes_what_it_names():
    experiment = of_phases(2, 3, clip_norm=7.9)
    first, second = experiment.phase_plan(0), experiment.phase_plan(1)
    assert (first, second.clip_norm) == (experiment.plan, 7.9)
    assert second == Plan.model_validate(experiment.plan.model_dump() | {"clip_norm": 7.9})


@pytest.mark.parametrize(
    ("before", "after"),
    [("noise_multiplier", "noise_stddev"), ("noise_stddev", "noise_multiplier")],
)
def test_a_phase_that_gives_the_noise_in_another_way_replaces_it(before, after):
    data = {
        "rounds": 3,
        "plan": {"clip_norm": 1.0, before: 0.5},
        "phases": [{"rounds": 1}, {"rounds": 2, "plan": {after: 0.25}}],
    }
    plan = Experiment.from_data(data, "test").phase_plan(1)
    assert (getattr(plan, before), getattr(plan, after)) == (None, 0.25)


# Mistakes.


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"rounds": 4, "phases": [{"rounds": 3}]},
            "file: rounds must be the sum of the phases' rounds, 3; for another number write a"
            " recipe that extends this one, with phases of its own",
        ),
        ({"phases": [{}]}, "file: phases.0.rounds is missing"),
        (
            {"rounds": 1, "phases": [{"rounds": 1, "plan": {"clip_nrm": 1.0}}]},
            "file: phase 1 has the unknown key 'clip_nrm'; did you mean 'clip_norm'?",
        ),
        (
            {"rounds": 1, "phases": [{"rounds": 1, "plan": {"clip_norm": -1.0}}]},
            "file: phase 1: clip_norm cannot be -1.0: input should be greater than 0",
        ),
        (
            {"plan": {}},
            'file: plan: clip_norm is missing; give it, or clipping = "none"',
        ),
        (
            {"plan": {"clip_norm": 1.0, "noise_multiplier": 1.0, "noise_stddev": 1.0}},
            "file: plan: noise_multiplier and noise_stddev contradict each other; give one of them",
        ),
        (
            {"plan": {"clip_norm": 1.0, "clipping": "none"}},
            'file: plan: clip_norm contradicts clipping = "none"; leave one of them out',
        ),
        (
            {"plan": {"layer_clip_norms": [1.0]}},
            'file: plan: layer_clip_norms needs clipping = "per-layer"',
        ),
        (
            {"plan": {"clip_norm": 1.0, "layer_clip_norms": [1.0, 0.0], "clipping": "per-layer"}},
            "file: plan.layer_clip_norms.1 cannot be 0.0: input should be greater than 0",
        ),
        (
            {"model": {"pretrain": {"epoch": 1}}},
            "file has the unknown key 'model.pretrain.epoch';"
            " did you mean 'model.pretrain.epochs'?",
        ),
        (
            {"server": {"momentum": 1.0}},
            "file: server.momentum cannot be 1.0: input should be less than 1",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_one_sentence(data, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Experiment.from_data(data, "file")


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf", "-1.0", "0.0"])
@pytest.mark.parametrize(
    "key", ["plan.clip_norm", "plan.cohort", "update.learning_rate", "privacy.delta"]
)
def test_no_number_that_voids_a_guarantee_is_read(key, bad):
    section, _, name = key.partition(".")
    with pytest.raises(ValueError, match=f"^file: {key} cannot be "):
        Experiment.from_toml(f"[{section}]\n{name} = {bad}\n", "file")


def test_text_that_is_not_toml_is_refused():
    with pytest.raises(ValueError, match=r"^file is not TOML: "):
        Experiment.from_toml("rounds = = 3", "file")
