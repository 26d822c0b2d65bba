"""The fast path of a round against the slow, literal Algorithm 1."""

import copy
import dataclasses
import itertools
from functools import cache

import numpy as np
import pytest

from tacit.federated.cohort import CohortJob, sum_over
from tacit.federated.server import ServerAdam, ServerSGD, normalised
from tacit.federated.user_update import FedAvg, FedSGD
from tacit.kernels.local_sgd import AutogradSGD, local_sgd_for
from tacit.mechanisms.clipping import FlatClip, NoClip, PerLayerClip
from tacit.mechanisms.estimators import (
    ClippedDenominator,
    FixedDenominator,
    TrueAverage,
    UserWeighting,
)
from tacit.mechanisms.noise import IndependentNoise
from tacit.mechanisms.samplers import PoissonSampler
from tacit.models.base import layer_sizes, to_vector
from tests.federated.tiny import (
    BOS,
    KEY,
    ListedUsers,
    few_users,
    plan,
    small,
    stream,
    task,
    texts,
)
from tests.oracles import algorithm1 as oracle

Q, Z, S, W_HAT, W_MIN = 0.5, 0.8, 0.4, 20.0, 4.0
COHORTS = ([0, 1, 2, 4, 6], [1, 3, 5])  # two rounds, given rather than drawn
USERS = few_users()

UPDATES = {
    "fedavg": FedAvg(learning_rate=0.5, batch_size=2, unroll=4),
    "fedavg-penalty": FedAvg(learning_rate=0.5, batch_size=2, unroll=4, update_penalty=0.3),
    "greedy": FedAvg(learning_rate=0.5, batch_size=2, unroll=4, clip_each_step=True),
    "greedy-penalty": FedAvg(
        learning_rate=0.5, batch_size=2, unroll=4, clip_each_step=True, update_penalty=0.3
    ),
    "fedsgd": FedSGD(learning_rate=0.9, unroll=4),
}
OTHER_UPDATES = {
    "two-epochs-shuffled": FedAvg(
        learning_rate=0.3, local_epochs=2, batch_size=3, unroll=3, shuffle=True
    ),
    "texts": FedAvg(learning_rate=0.5, batch_size=2, unroll=3, rows="texts"),
    "texts-greedy-shuffled": FedAvg(
        learning_rate=0.5, batch_size=2, unroll=9, rows="texts", clip_each_step=True, shuffle=True
    ),
    "fedsgd-texts": FedSGD(learning_rate=0.9, unroll=5, rows="texts"),
    "fedsgd-chosen-batch": FedSGD(learning_rate=0.9, unroll=4, batch_size=3),
}
ESTIMATORS = ("fixed", "clipped")
CLIPPERS = ("flat", "per-layer", "none")
WEIGHTINGS = ("equal", "by-examples", "weight-aware")


def layer_norms(model):
    """Unequal, so that a mix-up of layers shows."""
    shares = np.sqrt(np.arange(1, len(layer_sizes(model)) + 1.0))
    return tuple(float(share) for share in S * shares / np.linalg.norm(shares))


def oracles_pieces(update):
    cut = oracle.pieces_of_stream if update.rows == "stream" else oracle.pieces_of_texts
    return [cut(tokens.tolist(), update.unroll, BOS) for tokens in USERS.lists]


def noise(estimator, clipper, weighting):
    """Noise wherever a plan with it is sound."""
    unsound = clipper == "none" or (weighting == "weight-aware" and estimator == "clipped")
    return None if unsound else IndependentNoise(Z)


def literal(model, update, estimator, clipper, weighting):
    """The oracle with the same choices."""
    loss = oracle.Loss(copy.deepcopy(model).double(), BOS)
    if isinstance(update, FedSGD):
        user_update = oracle.FedSGD(update.batch_size, update.learning_rate)
    else:
        user_update = oracle.FedAvg(
            update.local_epochs,
            update.batch_size,
            update.learning_rate,
            update.clip_each_step,
            update.update_penalty,
        )
    clip = {
        "flat": oracle.flat_clip(S),
        "per-layer": oracle.per_layer_clip(layer_norms(model), layer_sizes(model)),
        "none": oracle.no_clip,
    }[clipper]
    return oracle.Algorithm1(
        q=Q,
        z=Z if noise(estimator, clipper, weighting) else 0.0,
        S=S,
        clip=clip,
        user_update=user_update,
        loss=loss,
        w_hat=None if weighting == "equal" else W_HAT,
        W_min=W_MIN if estimator == "clipped" else None,
        weight_aware=weighting == "weight-aware",
    )


def fast_plan(model, total_weight, estimator, clipper, weighting):
    """The plan with the same choices."""
    return plan(
        sampler=PoissonSampler(Q),
        clipper={
            "flat": FlatClip(S),
            "per-layer": PerLayerClip(layer_norms(model)),
            "none": NoClip(),
        }[clipper],
        estimator=(
            FixedDenominator(total_weight) if estimator == "fixed" else ClippedDenominator(W_MIN)
        ),
        noise=noise(estimator, clipper, weighting),
        weighting=UserWeighting(None if weighting == "equal" else W_HAT),
        weight_aware=weighting == "weight-aware",
        layers=layer_sizes(model),
    )


def drawn_by(update, round):
    """What each user draws from its own stream, as the oracle asks for it."""

    def of_user(k):
        own = stream(f"user {USERS.key(k)}", round)
        if isinstance(update, FedSGD):
            return lambda n: own.subset(n, update.batch_size)
        return own.permutation if update.shuffle else range

    return of_user


def slow_run(model, update, choices):
    """theta after each round."""
    algorithm, users = literal(model, update, *choices), oracles_pieces(update)
    thetas = [to_vector(model).astype(np.float64)]
    for round, cohort in enumerate(COHORTS):
        thetas.append(
            algorithm.round(
                thetas[-1],
                users,
                cohort,
                lambda sigma, n, round=round: sigma * stream("update-noise", round).normal(n),
                drawn_by(update, round),
            )
        )
    return thetas, algorithm.W(users)


def fast_run(model, update, one_plan, sgd):
    theta, clip_state, server = to_vector(model), one_plan.initial_clip_state(), ServerSGD()
    thetas = [theta]
    for round, cohort in enumerate(COHORTS):
        job = CohortJob(theta, clip_state, KEY, "main", round)
        total = sum_over(task(one_plan, update, USERS), job, cohort, sgd).total
        release = one_plan.release(total, clip_state, lambda p, round=round: stream(p, round))
        theta, _ = server.apply(theta, release.average, {})
        clip_state = release.clip_state
        thetas.append(theta)
    return thetas


def relative_distance(some, others):
    return np.linalg.norm(some - others) / np.linalg.norm(others)


def assert_agree(model, update, choices):
    slow, total_weight = slow_run(model, update, choices)
    one_plan = fast_plan(model, total_weight, *choices)
    hand, general = local_sgd_for(model), AutogradSGD(model)
    for sgd in [general] if isinstance(hand, AutogradSGD) else [general, hand]:
        fast = fast_run(model, update, one_plan, sgd)
        for before, (mine, theirs) in enumerate(zip(fast[1:], slow[1:], strict=True)):
            assert np.abs(mine - theirs).max() < 1e-5
            # Relative to what the round changed, which is the harder test.
            assert relative_distance(mine - slow[before], theirs - slow[before]) < 1e-5


@cache
def one_model():
    return small("lstm")


def all_choices():
    """All combinations; a third of them has each pair of choices once or more, the rest is slow."""
    for (u, update), estimator, (c, clipper), (w, weighting) in itertools.product(
        enumerate(UPDATES), ESTIMATORS, enumerate(CLIPPERS), enumerate(WEIGHTINGS)
    ):
        marks = [] if (u + c + w) % 3 == 0 else [pytest.mark.slow]
        yield pytest.param(update, estimator, clipper, weighting, marks=marks)


@pytest.mark.parametrize(("update", "estimator", "clipper", "weighting"), list(all_choices()))
def test_two_rounds_agree_with_the_literal_algorithm(update, estimator, clipper, weighting):
    assert_agree(one_model(), UPDATES[update], (estimator, clipper, weighting))


@pytest.mark.parametrize("update", list(OTHER_UPDATES))
@pytest.mark.parametrize(
    "choices", [("fixed", "flat", "by-examples"), ("clipped", "per-layer", "equal")], ids="-".join
)
def test_other_ways_to_cut_order_and_choose_agree_too(update, choices):
    assert_agree(one_model(), OTHER_UPDATES[update], choices)


@pytest.mark.parametrize("update", ["greedy-penalty", "fedsgd"])
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("lstm", {"output_bias": True, "unit_norm": False}),
        ("cifg", {}),
        ("gru", {"output_bias": True}),
        ("lstm-14m", {}),
        ("transformer-14m", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_every_model_agrees(name, overrides, update):
    model = small(name, **overrides)
    assert_agree(model, UPDATES[update], ("fixed", "flat", "by-examples"))


@pytest.mark.slow
def test_the_choices_can_be_told_apart():
    """Each choice matters by far more than the tolerance, so a mix-up would be found."""
    choices = itertools.product(UPDATES, ESTIMATORS, CLIPPERS, WEIGHTINGS)
    ends = {
        (update, *rest): slow_run(one_model(), UPDATES[update], tuple(rest))[0][1]
        for update, *rest in choices
    }
    # Without clipping there is no difference between clipping now, later, or by weight.
    same = {"greedy": "fedavg", "greedy-penalty": "fedavg-penalty", "weight-aware": "by-examples"}
    for one, other in itertools.combinations(ends, 2):
        simple = [
            tuple(same.get(part, part) for part in name) if name[2] == "none" else name
            for name in (one, other)
        ]
        if simple[0] != simple[1]:
            assert np.abs(ends[one] - ends[other]).max() > 1e-4, (one, other)


def test_no_clip_no_noise_everybody_is_exactly_federated_averaging():
    """Against FedAvg written here once more: the weighted mean of the users' models."""
    model, update = one_model(), UPDATES["fedavg"]
    one_plan = plan(
        sampler=PoissonSampler(1.0),
        clipper=NoClip(),
        estimator=TrueAverage(),
        weighting=UserWeighting(1000.0),  # beyond all users: w_k is in proportion to n_k
    )
    start, sgd = to_vector(model), AutogradSGD(model)
    cohort = one_plan.cohort(len(USERS), stream("cohort"))
    assert cohort.tolist() == list(range(len(USERS)))
    job = CohortJob(start, one_plan.initial_clip_state(), KEY, "main", 0)
    total = sum_over(task(one_plan, update, USERS), job, cohort, sgd).total
    average = one_plan.release(total, job.clip_state, None).average
    theta, _ = ServerSGD().apply(start, average, {})

    models, sizes = [], []
    for k, tokens in enumerate(USERS.lists):
        result = update.run(sgd, start, tokens, bos=BOS, stream=stream(f"user {k}"), clip=None)
        models.append(start.astype(np.float64) + result.update)
        sizes.append(result.examples)
    expected = np.average(models, axis=0, weights=sizes)
    assert np.abs(theta - expected).max() < 2**-22  # float32 weights, and a grid of 2^-32


@pytest.mark.parametrize("estimator", [FixedDenominator(20.0), ClippedDenominator(10.0)])
def test_empty_cohort_is_noised_like_any_other(estimator):
    model = one_model()
    one_plan = plan(estimator=estimator, noise=IndependentNoise(Z))
    job = CohortJob(to_vector(model), one_plan.initial_clip_state(), KEY, "main", 0)
    result = sum_over(task(one_plan, UPDATES["fedavg"]), job, [], AutogradSGD(model))
    assert not result.total.update.any()
    assert result.diagnostics.users == 0
    average = one_plan.release(result.total, job.clip_state, stream).average
    assert np.count_nonzero(average) == average.size
    # The sample deviation of 500 values is off by more than a fifth once in 10^9 times.
    assert average.std() == pytest.approx(one_plan.noise_stddev(), rel=0.2)


def test_server_renormalises_what_the_noise_has_moved():
    model = small("lstm")
    noisy = to_vector(model) + stream().normal(to_vector(model).size).astype(np.float32)
    back = normalised(model, noisy)
    size = model.embedding.weight.numel()
    assert np.linalg.norm(back[:size].reshape(30, 6), axis=1) == pytest.approx(1, abs=1e-6)
    assert np.array_equal(back[size:], noisy[size:])


def test_training_on_many_small_users_lowers_the_loss():
    users = ListedUsers(tuple(texts(12, seed) for seed in range(40)))
    model = small("lstm", embedding_size=16, cells=16)
    one_plan = plan(
        population=40, clipper=FlatClip(2.0), estimator=FixedDenominator(40.0)
    )  # without noise
    update = FedAvg(learning_rate=0.5, batch_size=4, unroll=8, rows="texts")
    server, sgd = ServerAdam(0.1), local_sgd_for(model)
    theta, clip_state, losses = to_vector(model), one_plan.initial_clip_state(), []
    state = server.initial(theta.size)
    for round in range(12):
        cohort = one_plan.cohort(len(users), stream("cohort", round))
        job = CohortJob(theta, clip_state, KEY, "main", round)
        result = sum_over(task(one_plan, update, users), job, cohort, sgd)
        release = one_plan.release(result.total, clip_state, stream)
        theta, state = server.apply(theta, release.average, state)
        theta, clip_state = normalised(model, theta), release.clip_state
        losses.append(result.diagnostics.loss_sum / result.diagnostics.examples)
    assert losses[0] > 3.0  # about log 30
    assert losses[-1] < losses[0] - 0.7, losses


def test_fields_of_an_update_are_public_facts():
    for update in (*UPDATES.values(), *OTHER_UPDATES.values()):
        assert type(update)(**dataclasses.asdict(update)) == update
