"""Silos: many people behind one client, each clipped alone, and one sum of them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

flower = pytest.importorskip("tacit.federation.flower", exc_type=ImportError)

from tacit.corpus.builtin import (  # noqa: E402
    always_on,
    enrolment_folder,
    enrolment_name,
    has_secure_sums,
    load_corpus,
)
from tacit.corpus.enrolment import Enrolment  # noqa: E402
from tacit.engines.engine import SerialEngine  # noqa: E402
from tacit.federated.cohort import CohortTask, user_result  # noqa: E402
from tacit.federation import keys  # noqa: E402
from tacit.federation.bounds import Bound  # noqa: E402
from tacit.federation.engine import Absent  # noqa: E402
from tacit.federation.orders import Answer, public_fields  # noqa: E402
from tacit.federation.own_ledger import Consent, Refused  # noqa: E402
from tacit.federation.participations import FILE, Participations  # noqa: E402
from tacit.federation.roster import Roster  # noqa: E402
from tacit.federation.secure_client import SumMember  # noqa: E402
from tacit.federation.secure_gathering import NoSum  # noqa: E402
from tacit.federation.silo import People, SiloJob, SilosHere  # noqa: E402
from tacit.federation.silo_ledger import SiloLedger  # noqa: E402
from tacit.federation.sum_ledger import SumLedger  # noqa: E402
from tacit.federation.sum_terms import SumTerms  # noqa: E402
from tacit.federation.training import refuse_unfit  # noqa: E402
from tacit.kernels.local_sgd import local_sgd_for  # noqa: E402
from tacit.mechanisms.clipping import FlatClip  # noqa: E402
from tacit.mechanisms.estimators import FixedDenominator  # noqa: E402
from tacit.mechanisms.fixed_point import WHOLE_WEIGHT, Contribution  # noqa: E402
from tacit.mechanisms.plan import RoundPlan  # noqa: E402
from tacit.mechanisms.samplers import (  # noqa: E402
    FixedSizeSampler,
    MinSeparationSampler,
    PoissonSampler,
)
from tacit.models import registry  # noqa: E402
from tacit.privacy.ledger import Ledger  # noqa: E402
from tacit.train import train  # noqa: E402
from tests.federation.members import MASKED, Members, secured  # noqa: E402
from tests.federation.silos import SILOS, WHO, SiloWorld  # noqa: E402
from tests.federation.small import CalledClients, charges_of, federated, models_of  # noqa: E402
from tests.federation.test_bounds import plan  # noqa: E402
from tests.federation.test_orders import order as any_order  # noqa: E402


@pytest.fixture
def world(tmp_path):
    return SiloWorld(tmp_path / "world")


def order(sampler=None, **changes):
    made = plan(layers=None, sampler=sampler or MinSeparationSampler(2, 1.0))
    return any_order(**{"plan": made, "seed": bytes(32), "round": 0, "attempt": 0} | changes)


def of_people(population, **parts):
    estimator = FixedDenominator(float(population))
    return plan(layers=None, population=population, estimator=estimator, **parts)


def assert_same(one, other):
    assert models_of(one) == models_of(other)
    assert charges_of(one) == charges_of(other)


# The same bits.


def test_silos_give_the_bits_of_the_simulation_on_all_their_people(tmp_path):
    """The simulation knows of no silo at all: local training that draws nothing needs none."""
    world = SiloWorld(tmp_path / "world", shuffle=False)
    federated(world, tmp_path / "run", CalledClients(world))
    train(world.simulated, tmp_path / "alone", progress=False)
    assert_same(tmp_path / "run", tmp_path / "alone")
    took_part = [world.drawn(silo)[round, 0] for silo in world.people for round in (0, 1)]
    assert sum(map(len, took_part)) == len(world.corpus.train)


def test_local_training_that_shuffles_has_the_bits_of_a_simulation_that_knows_the_silos(tmp_path):
    world = SiloWorld(tmp_path / "world", rounds=2)
    federated(world, tmp_path / "run", CalledClients(world))
    silos = lambda model: SilosHere(model, world.silo_of)  # noqa: E731
    train(world.simulated, tmp_path / "alone", engine=silos, progress=False)
    assert_same(tmp_path / "run", tmp_path / "alone")
    train(world.simulated, tmp_path / "blind", progress=False)
    assert models_of(tmp_path / "run") != models_of(tmp_path / "blind")


class Without:
    """Computes cohorts in this process, without the people of one silo."""

    kernel = "without a silo"

    def __init__(self, model, world, silo):
        self._engine, self._world, self._silo = SerialEngine(local_sgd_for(model)), world, silo

    def sum(self, task, job, users, progress=None):
        there = [u for u in users if self._world.silo_of[task.users.key(u)] != self._silo]
        return self._engine.sum(task, job, there, progress)

    def close(self):
        pass


def test_the_people_of_an_absent_silo_count_as_zero_where_no_sampling_is_claimed(tmp_path):
    world = SiloWorld(tmp_path / "world", rounds=2, shuffle=False)
    gone = world.people[1]
    clients = CalledClients(world, lambda silo, of, content: None if silo == gone else content)
    federated(world, tmp_path / "run", clients)
    engine = lambda model: Without(model, world, gone)  # noqa: E731
    train(world.simulated, tmp_path / "alone", engine=engine, progress=False)
    assert_same(tmp_path / "run", tmp_path / "alone")


# What leaves a silo.


def oracle(world, silo, of):
    """A silo's sum, person by person, each as a contribution that is written down."""
    part = world.parts[world.people.index(silo)]
    users = world.trainer(silo).members.read(of)
    task = CohortTask(of.plan, of.update, of.bos, users)
    job, sgd = SiloJob(of.weights, of.clip_state, of.seed), local_sgd_for(registry.build(of.model))
    total = Contribution.zero(len(of.weights), of.plan.bits)
    for index in range(len(part)):
        if part.user_id(index) in world.drawn(silo)[of.round, of.attempt]:
            result = user_result(task, job, index, sgd)
            one = of.plan.contribution(result.update, result.examples, of.clip_state)
            Bound(of.plan, of.clip_state, len(of.weights)).check(one)
            total += one
    return total


def as_tuple(of):
    return of.update.tolist(), of.weight, of.bits.tolist()


def test_each_person_of_a_silo_is_clipped_alone(world, monkeypatch):
    """The sum is that of contributions which are within a person's bound each.  A silo that does
    not clip is refused by the server, and one that clips less is not the oracle's."""
    silo = world.people[0]
    made = plan(layers=None, clipper=FlatClip(0.001))  # everybody is above it
    of = order(plan=made, clip_state=made.initial_clip_state())
    answer = world.trainer(silo).answer(of).contribution
    people = len(world.drawn(silo)[0, 0])
    assert 1 < people < len(world.parts[0])
    assert answer.weight == people * WHOLE_WEIGHT
    assert as_tuple(answer) == as_tuple(oracle(world, silo, of))

    def unclipped(self, total, update, examples, clip_state, *_):
        grid = self.grid(clip_state)
        total += Contribution(
            grid.quantise(update.astype(np.float64)), WHOLE_WEIGHT, np.zeros(0, np.int64)
        )

    monkeypatch.setattr(RoundPlan, "add", unclipped)
    wrong = world.trainer(silo).answer(of).contribution
    assert as_tuple(wrong) != as_tuple(answer)
    with pytest.raises(ValueError, match=r"norm of an update|a coordinate"):
        Bound(of.plan, of.clip_state, len(of.weights), world.keys[silo].silo).check(wrong)


def test_an_answer_of_a_silo_has_the_fields_of_a_persons_and_one_size(world):
    contents = []
    for silo in world.people:
        trainer = world.trainer(silo)
        contents += [trainer.answer(order(round=round)).to_content(5, 9) for round in (0, 1)]
    assert {str(public_fields(content)) for content in contents} == {
        str({"update": ["units"], "bits": ["units"], "answer": ["attempt", "round", "weight"]})
    }
    assert len({len(content["update"]["units"].data) for content in contents}) == 1


def test_a_silo_that_sends_too_large_a_sum_is_left_out(world, tmp_path):
    """In one round by the norm of one person more than were enrolled, in another by the weight of
    one more; in the third a sum is right that is larger than any one person's could be."""
    told = []

    def too_much(of, people, weight):
        bound = Bound(of.plan, of.clip_state, len(of.weights), people)
        units = np.zeros(len(of.weights), np.int64)
        units[0] = int(people * of.clip_state.total_norm / bound.grid.step)
        content = Contribution(units, weight * WHOLE_WEIGHT, np.zeros(of.plan.bits, np.int64))
        return Answer(of.round, of.attempt, content).to_content(5, 2)

    def change(silo, of, content):
        number, size = world.people.index(silo), world.keys[silo].silo
        if of.round == 0:
            return too_much(of, size + 1, size)
        if of.round == 1:
            return too_much(of, size, size + 1)
        if of.round == 2 and number == 0:
            return too_much(of, size, size)
        return content

    run = tmp_path / "run"
    federated(world, run, CalledClients(world, change), told.append)
    record = Participations(run / "private" / FILE)
    assert [len(record.of(round, 0)) for round in range(4)] == [0, 0, SILOS, SILOS]
    assert len(told) == 2 * SILOS
    assert all("norm of an update" in line or "coordinate" in line for line in told[:SILOS])
    assert all("the weight must be from 0 to" in line for line in told[SILOS:])


# What a silo's people agree to.


def test_a_person_gives_no_more_than_its_limit_and_costs_the_others_nothing(world):
    silo = world.people[0]
    for round in range(4):
        world.trainer(silo, Consent(most=1)).answer(order(round=round))
    drawn = world.drawn(silo)
    assert set(drawn[0, 0]) | set(drawn[1, 0]) == {
        world.parts[0].user_id(index) for index in range(len(world.parts[0]))
    }
    assert not set(drawn[0, 0]) & set(drawn[1, 0])
    assert drawn[2, 0] == drawn[3, 0] == []
    assert world.trainer(silo, Consent(most=2)).answer(order(round=4)).contribution.weight > 0


def test_limits_are_counted_for_each_person_alone(tmp_path):
    own = SiloLedger(tmp_path / "given", Consent(most=2))
    assert own.give(order(round=0), lambda: ["b", "a"]) == ["a", "b"]
    assert own.give(order(round=1), lambda: ["a", "c"]) == ["c"]  # a gave a round ago
    assert own.give(order(round=2), lambda: ["a", "c"]) == ["a"]
    again = SiloLedger(tmp_path / "given", Consent(most=2))  # after a restart
    assert len(again) == 4
    assert again.give(order(round=4), lambda: ["a", "b"]) == ["b"]  # a gave both
    assert again.give(order(round=4, attempt=1), lambda: ["b", "c"]) == ["c"]
    assert again.give(order(run="another run"), lambda: ["a", "c", "d"]) == ["d"]


def test_a_separation_that_shrinks_during_a_run_asks_nobody_earlier(tmp_path):
    own = SiloLedger(tmp_path / "given", Consent())
    own.give(order(MinSeparationSampler(5, 1.0), round=0), lambda: ["a"])
    assert own.give(order(MinSeparationSampler(1, 1.0), round=4), lambda: ["a", "b"]) == ["b"]
    assert own.give(order(MinSeparationSampler(1, 1.0), round=5), lambda: ["a"]) == ["a"]
    strict = SiloLedger(tmp_path / "given", Consent(separation=3))
    with pytest.raises(Refused, match="answers after 3 at the earliest"):
        strict.give(order(round=9), lambda: ["a"])


def test_one_order_has_one_answer_whatever_would_be_drawn_again(tmp_path):
    own = SiloLedger(tmp_path / "given", Consent(most=1))
    of = order(PoissonSampler(0.5), round=3)
    assert own.give(of, lambda: ["a"]) == ["a"]
    again = SiloLedger(tmp_path / "given", Consent(most=1))
    assert again.give(of, lambda: ["b"]) == ["a"]
    with pytest.raises(Refused, match="was answered before, to another order"):
        again.give(dataclasses.replace(of, seed=b"1" * 32), lambda: ["b"])
    with pytest.raises(Refused, match="round 2 is over"):
        again.give(order(PoissonSampler(0.5), round=2), lambda: ["b"])


# Poisson sampling by silos.

Q, DRAWS = 0.3, 400


def counts(world, drawn_with):
    """How often each person of all silos was drawn, by orders with this probability."""
    of = order(PoissonSampler(drawn_with))
    every = {person: 0 for person in world.silo_of}
    for silo in world.people:
        members = world.trainer(silo).members
        for _ in range(DRAWS):
            for person in members.draw(of):
                every[person] += 1
    return np.array(list(every.values()))


def test_silos_draw_everybody_independently_with_the_plans_probability(world):
    """By the sum of squares over 44 people, with a false-alarm rate of 1e-6; it rejects 0.36."""

    def is_right(seen):
        spread = ((seen - DRAWS * Q) ** 2).sum() / (DRAWS * Q * (1 - Q))
        return chi2.ppf(5e-7, len(seen)) < spread < chi2.ppf(1 - 5e-7, len(seen))

    assert is_right(counts(world, Q))
    assert not is_right(counts(world, Q * 1.2))


def test_what_a_silo_draws_does_not_follow_from_the_order(tmp_path):
    """Two copies of one world are sent the same order, seed and all."""
    drawn = []
    for name in ("one", "other"):
        world = SiloWorld(tmp_path / name)
        members = world.trainer(world.people[0]).members
        drawn.append([members.draw(order(PoissonSampler(0.5), round=r)) for r in range(8)])
    assert drawn[0] != drawn[1]


def test_a_silo_refuses_sampling_that_is_about_all_people_together(world):
    silo = world.trainer(world.people[0])
    of = order(FixedSizeSampler(100, 10))
    with pytest.raises(Refused, match="fixed-size sampling, which is about all people together"):
        silo.answer(of)


def test_sampling_is_claimed_by_declaration_and_says_who_vouches(world, tmp_path):
    world.federated = world.always_on.changed(seed=None)
    run = federated(world, tmp_path / "run", CalledClients(world))
    claim = run.guarantee().claim
    people = len(world.corpus.train)
    assert f"the population of {people} users declared public" in claim
    assert "Poisson" in claim
    assert f"of which {WHO} vouches that it does not occur" in claim
    assert "a round that lacks a silo fails and is not released" in claim
    assert "each silo's sum of clipped updates before the noise" in claim
    assert "people whose text is in several silos" in claim
    events = [entry.event for entry in run.ledger.entries if entry.kind == "round"]
    assert {event.sampling_prob for event in events} == {0.5}
    sizes = [sum(len(world.drawn(s)[round, 0]) for s in world.people) for round in range(4)]
    assert all(0 < size < people for size in sizes)


def test_without_sampling_nobody_vouches_for_anything(world, tmp_path):
    world.federated = world.federated.changed(seed=None)
    claim = federated(world, tmp_path / "run", CalledClients(world)).guarantee().claim
    assert "no sampling assumed" in claim
    assert "vouches" not in claim


@pytest.mark.parametrize("is_bad", [False, True], ids=["absent", "wrong"])
def test_a_round_that_lacks_a_silo_is_neither_charged_nor_released_where_sampling_is_claimed(
    world, tmp_path, is_bad
):
    """And when the silo is back, the round has the sample that was drawn for it at first."""
    world.federated, run, gone = world.always_on, tmp_path / "run", world.people[2]

    def change(silo, of, content):
        if (silo, of.round) != (gone, 2):
            return content
        return flower.RecordDict() if is_bad else None

    with pytest.raises(Absent, match="round 2 lacks 1 of 3 silos"):
        federated(world, run, CalledClients(world, change))
    assert [round for round, *_ in charges_of(run)[1:]] == [0, 1]
    assert Participations(run / "private" / FILE).of(2, 0) == []
    drawn = {silo: world.drawn(silo) for silo in world.people}
    federated(world, run, CalledClients(world), resume=True)
    charged = [(round, attempt) for round, attempt, *_ in charges_of(run)[1:]]
    assert charged == [(round, 0) for round in range(4)]
    for silo in world.people:
        assert world.drawn(silo)[2, 0] == drawn[silo][2, 0]
    assert len(Ledger.read(run / "ledger.jsonl").entries) == 5


# How many people there are.


def test_a_silo_has_no_more_people_than_it_was_enrolled_with(world):
    with pytest.raises(ValueError, match=r"at most the 3 that it declares .* has 44 training"):
        People(world.corpus, 3, world.folder / "tokens")
    silo = world.trainer(world.people[0])
    small = order(plan=of_people(silo.people - 1))
    with pytest.raises(Refused, match="is less than the"):
        silo.answer(small)
    silo.answer(order(plan=of_people(silo.people)))


def test_a_population_that_is_not_that_of_all_silos_is_refused(world):
    people = len(world.corpus.train)
    refuse_unfit(world.federated)
    refuse_unfit(world.always_on)
    for wrong in (people + 1, people - 1):
        with pytest.raises(ValueError, match=f"must be the {people} people .* got {wrong}"):
            refuse_unfit(world.federated.changed(plan={"population": wrong}))
    with pytest.raises(ValueError, match="whom only their silos know"):
        refuse_unfit(world.federated.changed(corpus={"users": 5}))


def test_silos_and_single_people_are_not_mixed_in_one_enrolment(world):
    enrolment = Enrolment.open(world.enrolled)
    alone = keys.ClientKey.generate((world.enrolled / "ca.pem").read_text())
    with pytest.raises(ValueError, match="whoever is one person among silos is enrolled as a silo"):
        enrolment.add([alone.enrolled()])
    with pytest.raises(ValueError, match="a silo must have at least 1 person, got 0"):
        keys.ClientKey.generate((world.enrolled / "ca.pem").read_text(), silo=0)


def test_how_many_people_a_silo_has_is_in_its_key_and_in_the_roster(world, tmp_path):
    silo = world.people[0]
    own = world.keys[silo]
    public = keys.read_public(own.save(tmp_path / "silo.key"))
    assert public["silo"] == own.silo == keys.ClientKey.load(tmp_path / "silo.key").silo
    world.roster.save(tmp_path / "roster.json")
    known = Roster.load(tmp_path / "roster.json")
    assert known.silos == world.roster.silos
    known.refuse_stranger(own)
    larger = Roster(known.keys, dict(known.silos) | {silo: own.silo + 1})
    assert larger.digest != known.digest
    with pytest.raises(ValueError, match="is in the roster with"):
        larger.refuse_stranger(own)
    with pytest.raises(ValueError, match="silos only, or none"):
        Roster(known.keys, {silo: 3})


# What is declared.


def test_only_silos_are_declared_to_be_always_on_and_only_for_poisson_sampling(world, tmp_path):
    with pytest.raises(ValueError, match=r"plan.sampling must be .poisson. with --always-on"):
        refuse_unfit(world.always_on.changed(plan={"sampling": "truncated"}))
    with pytest.raises(ValueError, match="or --always-on for silos that are"):
        refuse_unfit(world.federated.changed(plan={"sampling": "poisson", "separation": None}))
    people = keys.make_server(tmp_path / "people", ["127.0.0.1"])
    alone = keys.ClientKey.generate((tmp_path / "people" / "ca.pem").read_text())
    people.add([alone.enrolled()])
    name = enrolment_name(tmp_path / "people", "synthetic", always_on=WHO)
    with pytest.raises(ValueError, match="--always-on is for silos"):
        refuse_unfit(world.always_on.changed(corpus={"source": name}))
    with pytest.raises(ValueError, match="only silos can be declared to be always on"):
        load_corpus(name)


def test_who_vouches_is_in_the_name_that_the_experiment_has_for_the_silos():
    for secure in (False, True):
        name = enrolment_name(Path("some/where"), "corpus", secure_sum=secure, always_on=WHO)
        assert (enrolment_folder(name), always_on(name)) == ("some/where", WHO)
        assert has_secure_sums(name) == secure
    plain = enrolment_name(Path("some/where"), "corpus,always-on=me")
    assert (enrolment_folder(plain), always_on(plain)) == ("some/where", "")
    for wrong in ("a,b", "me; epsilon 0", "x" * 81, "two\nlines", " "):
        with pytest.raises(ValueError, match="must be named by 2 to 80"):
            enrolment_name(Path("some/where"), "corpus", always_on=wrong)


# Secure sums.


def members(world):
    """Silos that have just been started."""
    return {
        silo: SumMember(
            world.trainer(silo),
            world.keys[silo],
            world.roster,
            SumLedger(world.folder / f"{silo}.sums.jsonl"),
        )
        for silo in world.people
    }


def test_secure_sums_of_silos_have_the_bits_of_the_simulation(tmp_path):
    """Whoever's turn it is: each silo is in each sum."""
    world = SiloWorld(tmp_path / "world", rounds=2, secure=True, shuffle=False)
    run = secured(world, tmp_path / "run", Members(members(world)))
    train(world.simulated, tmp_path / "alone", progress=False)
    assert_same(tmp_path / "run", tmp_path / "alone")
    assert "by secure aggregation no silo's alone" in " ".join(run.ledger.header.excluded)


def test_a_secure_sum_that_lacks_a_silo_is_unmasked_only_where_no_sampling_is_claimed(tmp_path):
    """The clients see to it: they help to unmask a sum of all silos, or none."""
    world = SiloWorld(tmp_path / "world", rounds=1, secure=True)
    name = b"n" * 16
    turns, poisson = (
        order(plan=of_people(42, sampler=sampler))
        for sampler in (MinSeparationSampler(2, 1.0), PoissonSampler(0.5))
    )
    seven = {str(number) * 32: bytes([number]) * 32 for number in range(7)}
    wider = Roster(seven, dict.fromkeys(seven, 6))
    assert SumTerms.of(turns, wider, name).rules.survivors == 5
    assert SumTerms.of(poisson, wider, name).rules.survivors == 7
    world.federated, gone = world.always_on, world.people[1]
    clients = Members(
        members(world),
        lambda trip, silo, content: None if (trip, silo) == (MASKED, gone) else content,
    )
    with pytest.raises(NoSum, match="round 0 has no sum"):
        secured(world, tmp_path / "run", clients)
    assert charges_of(tmp_path / "run")[1:] == []
    secured(world, tmp_path / "run", Members(members(world)), resume=True)
    assert len(charges_of(tmp_path / "run")) == 2


def test_the_roster_and_the_plan_have_the_same_number_of_people(tmp_path):
    world = SiloWorld(tmp_path / "world", rounds=1, secure=True)
    of = order(plan=of_people(world.roster.people + 1))
    with pytest.raises(ValueError, match="is not that of all silos in the roster"):
        SumTerms.of(of, world.roster, b"n" * 16)


def test_silos_share_no_noise_whoever_asks(world, monkeypatch):
    shared = world.federated.changed(
        corpus={"source": world.federated.source.replace(",test=", ",sum=secure,test=")},
        plan={"noise": "distributed"},
    )
    with pytest.raises(ValueError, match='cannot be "distributed" with silos'):
        refuse_unfit(shared)
    of = order()
    monkeypatch.setattr(RoundPlan, "shared_noise", object())
    with pytest.raises(Refused, match="a silo shares no noise"):
        world.trainer(world.people[0]).answer(of)
    with pytest.raises(ValueError, match="silos share no noise"):
        SumTerms.of(of, world.roster, b"n" * 16)
