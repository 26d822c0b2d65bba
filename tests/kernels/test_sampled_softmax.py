"""A softmax over candidates: the right estimator, the right gradient, and nobody else's words."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tacit.config.experiment import Experiment
from tacit.federated.cohort import sum_over
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.handwritten import HandwrittenSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.kernels.rows import rows_of
from tacit.kernels.sampled_softmax import (
    Candidates,
    CandidateSGD,
    SampledSoftmax,
    _inclusion_probabilities,
    _law,
    _log_uniform,
    _systematic_sample,
)
from tacit.mechanisms.clipping import FlatClip
from tacit.models.base import to_vector, train_only
from tacit.models.registry import NAMES, build
from tacit.tasks.language.assembly import user_update
from tests.federated.tiny import BOS, VOCABULARY, ListedUsers, job, plan, small, stream, task, texts

WORDS = 60
LAW = _log_uniform(WORDS)
USER = texts(3, seed=3)  # of whose words there are at most 30
SAMPLED = SampledSoftmax(negatives=10, multiple_of=8)
FEDAVG = FedAvg(learning_rate=0.5, batch_size=2, unroll=4, sampled_softmax=SAMPLED)
UPDATES = {
    "fedavg": FEDAVG,
    "epochs": dataclasses.replace(FEDAVG, local_epochs=2, shuffle=True),
    "penalty": dataclasses.replace(FEDAVG, update_penalty=0.4),
    "greedy": dataclasses.replace(FEDAVG, clip_each_step=True),
    "texts": dataclasses.replace(FEDAVG, rows="texts", unroll=5),
    "fedsgd": FedSGD(learning_rate=0.5, unroll=4, sampled_softmax=SAMPLED),
    "fedsgd batch": FedSGD(learning_rate=0.5, unroll=4, batch_size=3, sampled_softmax=SAMPLED),
}


def clip(update):
    return FlatClip(0.3).clip(update).values


def rows(tokens=USER, update=FEDAVG):
    return rows_of(tokens, unroll=update.unroll, bos=BOS, layout=update.rows)


def run(update, sgd, start, tokens=USER, key="user"):
    return update.run(sgd, start, tokens, bos=BOS, stream=stream(key), clip=clip)


class Fixed:
    """A stream whose one uniform value is known."""

    def __init__(self, value):
        self.value = value

    def uniform(self, n):
        return np.full(n, self.value)


def with_biases(model):
    """The model with an output bias that is not zero."""
    with torch.no_grad():
        model.embedding.output_bias.normal_(generator=torch.Generator().manual_seed(1))
    return model


# The estimator against autograd.


def law(model):
    """The law that candidates are drawn by, in another way than the package computes it."""
    log_uniform = np.diff(np.log(np.arange(1, WORDS + 2))) / np.log(WORDS + 1)
    if not model.config.output_bias:
        return log_uniform
    return (
        log_uniform + torch.softmax(model.embedding.output_bias.double(), 0).numpy(force=True)
    ) / 2


def oracle(model, update, key="user"):
    """The update in float64: the whole model's scores, of which the candidates are kept.

    Each word moves by its share of Z' without the correction; what it has moved is divided by its
    probability at the end, or before a clip.
    """
    model, draws = copy.deepcopy(model).double(), stream(key)
    named = model.parameter_vectors()
    start = [p.detach().clone() for _, p in named]
    everything = rows(update=update)
    if isinstance(update, FedSGD):
        batches = [update.batch(everything, draws)]
        drawn = update.sampled_softmax.candidates(batches[0], law(model), draws)
    else:
        drawn = update.sampled_softmax.candidates(everything, law(model), draws)
        batches = update.batches(everything, draws)
    words = torch.from_numpy(drawn.words)
    index = {int(word): n for n, word in enumerate(words)}
    correction = torch.from_numpy(drawn.correction).double()
    pi = torch.ones(WORDS, dtype=torch.float64)
    pi[words] = torch.exp(-correction)

    def by_word(name, values):
        """The factor pi of each value: 1 in what does not belong to a word."""
        return pi.view(-1, *[1] * (values.dim() - 1)) if name.startswith("embedding.") else 1.0

    def estimate():
        return [
            (p.detach() - begun) / by_word(name, p)
            for (name, p), begun in zip(named, start, strict=True)
        ]

    for batch in batches:
        scores = model(batch.inputs)[0][batch.mask][:, words] + correction
        targets = torch.tensor([index[int(word)] for word in batch.targets[batch.mask]])
        loss = functional.cross_entropy(scores, targets)
        gradients = torch.autograd.grad(loss, [p for _, p in named])
        with torch.no_grad():
            for (name, p), begun, gradient in zip(named, start, gradients, strict=True):
                pull = getattr(update, "update_penalty", 0.0) * (p - begun)
                p.sub_(update.learning_rate * (gradient * by_word(name, p) + pull))
            table = model.embedding.weight
            is_free = model.config.unit_norm and table.requires_grad
            if is_free and isinstance(update, FedAvg):
                table[words] /= table[words].norm(dim=1, keepdim=True)
            if getattr(update, "clip_each_step", False):
                moved = estimate()
                norm = float(torch.cat([part.flatten() for part in moved]).norm())
                for (name, p), begun, part in zip(named, start, moved, strict=True):
                    p.copy_(begun + part * min(1.0, 0.3 / norm) * by_word(name, p))
    return torch.cat([part.flatten() for part in estimate()]).numpy()


@pytest.mark.parametrize("make", [AutogradSGD, local_sgd_for], ids=["autograd", "fastest"])
@pytest.mark.parametrize("update", UPDATES)
def test_update_is_the_estimators_gradient_descent(make, update):
    model = small("lstm", WORDS, unit_norm=update != "penalty")
    result = run(UPDATES[update], make(model), to_vector(model))
    expected = oracle(model, UPDATES[update])
    assert np.abs(result.update - expected).max() < 1e-5
    assert np.abs(expected).max() > 1e-2


@pytest.mark.parametrize("make", [AutogradSGD, local_sgd_for], ids=["autograd", "fastest"])
@pytest.mark.parametrize(
    "trained",
    [
        ("layers", "projection"),
        ("embedding.output_bias",),
        ("embedding.output_bias", "projection.bias"),
        ("embedding.weight", "layers.0.input_kernel", "projection.weight"),
    ],
    ids=str,
)
@pytest.mark.parametrize("update", ["epochs", "penalty", "greedy", "fedsgd"])
def test_part_of_a_model_is_updated_as_it_is_in_the_estimators_descent(make, trained, update):
    model = train_only(with_biases(small("lstm", WORDS, output_bias=True)), trained)
    result = run(UPDATES[update], make(model), to_vector(model))
    expected = oracle(model, UPDATES[update])
    assert result.update.shape == expected.shape
    assert np.abs(result.update - expected).max() < 1e-5
    assert np.abs(expected).max() > 1e-3


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_built_in_model_is_served(name, output_bias):
    """A trained output bias keeps its correction apart; one that there is not stays away."""
    model = small(name, WORDS, output_bias=output_bias)
    if output_bias:
        with_biases(model)
    found = run(UPDATES["epochs"], local_sgd_for(model), to_vector(model))
    assert np.abs(found.update - oracle(model, UPDATES["epochs"])).max() < 1e-5


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("form", ["torch", ""])
def test_all_words_without_correction_are_the_exact_softmax(form, output_bias):
    model = small("lstm", WORDS, output_bias=output_bias)
    start, sgd = to_vector(model), HandwrittenSGD(model, form)
    everything = Candidates(np.arange(WORDS), np.zeros(WORDS, np.float32))
    found = []
    for steps in (sgd, CandidateSGD(sgd, everything)):
        steps.load(start)
        losses = [steps.step(rows(), 0.5, penalty=0.1) for _ in range(3)]
        found.append((steps.weights(), losses))
    (exact, exact_losses), (sampled, sampled_losses) = found
    assert np.abs(exact - sampled).max() < 1e-5
    assert sampled_losses == pytest.approx(exact_losses, rel=1e-5)


@pytest.mark.parametrize("negatives", [WORDS, 10**9])
def test_enough_negatives_are_the_exact_update_bit_for_bit(negatives):
    model = small("lstm", WORDS)
    sgd, start = local_sgd_for(model), to_vector(model)
    exact = dataclasses.replace(UPDATES["epochs"], sampled_softmax=None)
    many = dataclasses.replace(exact, sampled_softmax=SampledSoftmax(negatives))
    assert run(many, sgd, start).update.tobytes() == run(exact, sgd, start).update.tobytes()


def test_words_that_are_no_candidates_do_not_move():
    model = small("gru", WORDS)
    start = to_vector(model)
    found = SAMPLED.candidates(rows(), LAW, stream("user"))
    update = run(FEDAVG, local_sgd_for(model), start).update
    moved = np.abs(update[: WORDS * 6].reshape(WORDS, 6)).max(1) > 0
    assert np.array_equal(np.flatnonzero(moved), found.words)


# The sample.


def test_normaliser_is_right_on_average_over_the_draw():
    """E Z' = Z: the mean over a fine grid of the one uniform value; without correction it is not.

    Systematic sampling draws nothing else, so this is the expectation up to words / grid.
    """
    scores = np.random.default_rng(1).normal(size=WORDS) * 2
    grid = 4000
    found, uncorrected = [], []
    for point in range(grid):
        candidates = SAMPLED.candidates(rows(), LAW, Fixed((point + 0.5) / grid))
        chosen = scores[candidates.words]
        found.append(np.exp(chosen + candidates.correction).sum())
        uncorrected.append(np.exp(chosen).sum())
    Z = np.exp(scores).sum()
    assert np.mean(found) == pytest.approx(Z, rel=5e-3)
    assert np.std(found) > 1e-2 * Z
    assert np.mean(uncorrected) != pytest.approx(Z, rel=5e-2)
    assert np.mean(np.log(found)) < np.log(Z)  # the bias that the module states


@given(
    law=st.lists(st.floats(1e-4, 1), min_size=1, max_size=40),
    share=st.floats(0, 1),
    u=st.floats(0, 1, exclude_max=True),
)
def test_sample_has_its_size_and_probabilities_follow_the_law(law, share, u):
    law = np.array(law)
    size = max(1, round(share * len(law)))
    pi = _inclusion_probabilities(law, size)
    assert pi.sum() == pytest.approx(size)
    assert np.all((pi > 0) & (pi <= 1)) or size == np.sum(pi == 1)
    below = pi < 1
    factors = pi[below] / law[below]
    assert factors == pytest.approx(np.full(below.sum(), factors.mean() if below.any() else 0))
    chosen = _systematic_sample(pi, Fixed(u))
    assert len(chosen) == size == len(set(chosen))
    assert np.all(np.diff(chosen) > 0)
    assert set(np.flatnonzero(pi == 1)) <= set(chosen)


def test_half_of_the_law_is_what_the_released_biases_say():
    """A frequent word with a late id is then all but certain to be among the candidates."""
    model = small("lstm", WORDS, output_bias=True)
    with torch.no_grad():
        model.embedding.output_bias[WORDS - 1] = 9.0
    sgd, start = local_sgd_for(model), to_vector(model)
    assert np.allclose(_law(sgd, start), law(model))
    assert _law(sgd, start).sum() == pytest.approx(1)
    frozen = local_sgd_for(train_only(model, ["layers"]))
    assert np.array_equal(_law(frozen, to_vector(model)), _law(sgd, start))
    drawn = SAMPLED.candidates(rows(), _law(sgd, start), stream("user"))
    assert drawn.words[-1] == WORDS - 1
    assert drawn.correction[-1] == 0
    assert LAW[-1] < 0.03 * LAW[0]


def test_estimate_of_many_steps_is_right_on_average():
    """The mean update over the one uniform draw is that of the whole softmax, after many steps.

    Were the words of the sample moved by their corrected gradients, it would be far off.
    """
    model = small("lstm", WORDS, output_bias=True, unit_norm=False)
    sgd, start = local_sgd_for(model), to_vector(model)
    tokens, rate, grid, even = rows(), 0.5, 40, np.full(WORDS, 1 / WORDS)

    def moved(steps):
        steps.load(start)
        for _ in range(10):
            steps.step(tokens, rate)
        return steps.update()

    exact, estimates, naive = moved(sgd), [], []
    for point in range(grid):
        drawn = SAMPLED.candidates(tokens, even, Fixed((point + 0.5) / grid))
        estimates.append(moved(CandidateSGD(sgd, drawn)))
        steps = CandidateSGD(sgd, drawn)
        steps._pi = np.ones_like(drawn.correction)
        naive.append(moved(steps))
    size = np.linalg.norm(exact)
    error = np.linalg.norm(np.mean(estimates, axis=0) - exact) / size
    naive_error = np.linalg.norm(np.mean(naive, axis=0) - exact) / size
    assert error < 0.1
    assert naive_error > 1.5 * error


def test_law_is_log_uniform():
    law = _log_uniform(10_000)
    assert law.sum() == pytest.approx(1)
    assert law[:100].sum() == pytest.approx(np.log(101) / np.log(10_001))
    assert np.all(np.diff(law) < 0)


@pytest.mark.parametrize("tokens", [USER, texts(1, seed=1), np.array([5, 7])], ids=len)
def test_own_words_are_all_there_and_not_corrected(tokens):
    own = set(tokens.tolist())
    found = SAMPLED.candidates(rows(tokens), LAW, stream())
    corrected = dict(zip(found.words.tolist(), found.correction.tolist(), strict=True))
    assert own <= set(corrected)
    assert all(corrected[word] == 0 for word in own)
    assert len(found.words) % 8 == 0
    assert len(found.words) >= len(own) + 10
    assert np.all(found.correction >= 0)
    assert np.any(found.correction > 0)


# Isolation.


def test_candidates_follow_the_users_own_stream():
    once, again, other = (SAMPLED.candidates(rows(), LAW, stream(key)) for key in "aab")
    assert np.array_equal(once.words, again.words)
    assert not np.array_equal(once.words, other.words)


def test_what_a_user_adds_does_not_depend_on_the_others():
    model = small("cifg", WORDS)
    users = ListedUsers(tuple(texts(count, seed) for seed, count in enumerate((2, 1, 0, 3))))
    one_plan = plan()
    one_task, one_job = task(one_plan, UPDATES["epochs"], users), job(model, one_plan)
    sgd = local_sgd_for(model)
    alone = [sum_over(one_task, one_job, [user], local_sgd_for(model)) for user in range(4)]
    together = sum_over(one_task, one_job, [3, 1, 2, 0], sgd)
    total = sum(each.total.update for each in alone)
    assert np.array_equal(together.total.update, total)
    assert total.any()


def test_a_user_leaves_nothing_for_the_next():
    model = small("lstm", WORDS)
    start, used = to_vector(model), local_sgd_for(model)
    fresh = run(FEDAVG, local_sgd_for(model), start)
    run(FEDAVG, used, start * 3, texts(3, seed=8), key="other")
    again = run(FEDAVG, used, start)
    assert fresh.update.tobytes() == again.update.tobytes()
    assert fresh.loss == again.loss
    exact = dataclasses.replace(FEDAVG, sampled_softmax=None)
    assert (
        run(exact, used, start).update.tobytes()
        == run(exact, local_sgd_for(model), start).update.tobytes()
    )


@pytest.mark.parametrize("update", ["fedavg", "greedy"])
def test_update_that_is_not_finite_is_handed_on(update):
    model = small("lstm", WORDS, unit_norm=False)
    start = to_vector(model) * np.float32(1e30)
    assert not np.isfinite(run(UPDATES[update], AutogradSGD(model), start).update).all()


def test_user_without_text_has_a_zero_update():
    model = small("lstm", WORDS)
    for update in (FEDAVG, UPDATES["fedsgd"]):
        result = run(update, local_sgd_for(model), to_vector(model), np.array([], np.uint16))
        assert not result.update.any()
        assert result.steps == 0


# Mistakes and configuration.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"negatives": 0}, "negatives must be at least 1, got 0"),
        ({"negatives": 2.5}, "negatives must be a whole number, got 2.5"),
        ({"negatives": 5, "multiple_of": 0}, "multiple_of must be at least 1, got 0"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        SampledSoftmax(**fields)


class Table(torch.nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(vocab_size, vocab_size))

    def forward(self, tokens):
        return self.table[tokens]


def test_model_whose_words_are_not_known_is_refused():
    model = build(f"{__name__}:Table", WORDS)
    with pytest.raises(ValueError, match=r"kind 'own' has no table of words .* sampled softmax"):
        run(FEDAVG, local_sgd_for(model), to_vector(model))


def test_tokens_that_the_model_does_not_know_are_refused():
    model = small("lstm", VOCABULARY)
    with pytest.raises(ValueError, match="must be tokens from 0 to 29, got 0 to 30"):
        run(FEDAVG, local_sgd_for(model), to_vector(model), np.array([0, 30, 1]))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_experiment_says_how_many_negatives(algorithm):
    experiment = Experiment().changed(update={"algorithm": algorithm})
    assert user_update(experiment).sampled_softmax is None
    sampled = experiment.changed(update={"sampled_negatives": 700})
    assert user_update(sampled).sampled_softmax == SampledSoftmax(700)
    assert Experiment.from_toml(sampled.to_toml(), "it") == sampled
    with pytest.raises(ValueError, match=r"update\.sampled_negatives cannot be 0"):
        experiment.changed(update={"sampled_negatives": 0})
