"""`tacit federate`: train on text that stays with its owners.

`keys` decides who may talk to whom, `server` trains, `client` answers for one person or for the
people of a silo, and `try` does all of it on this machine.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tacit.cli.options import (
    AsJson,
    Delta,
    Quiet,
    Seed,
    Settings,
    argument,
    check_counts,
    count,
    flag,
    real,
    text,
)
from tacit.cli.output import Interrupted, emit, note, say, table

if TYPE_CHECKING:
    from tacit.federation.training import Federation

app = typer.Typer(
    help="Train on text that stays with its owners.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_keys = typer.Typer(
    help="Certificates, client keys, and who is enrolled.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(_keys, name="keys")

_Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS: on this machine (127.0.0.1) only.")
]
_Folder = Annotated[Path, argument(..., "DIR", "The server's folder of keys and enrolment.")]
_Hosts = Annotated[
    list[str], text(..., "HOST", "A name or address that clients call; repeatable.", "--host")
]
_Days = Annotated[float, real(..., "N", "How long the certificate is valid.")]


@app.command("server")
def _server(
    recipe: str | None = argument(None, "EXPERIMENT", "A name from tacit recipes list, or a file."),
    *,
    run: Path = text(..., "DIR", "The run directory."),
    clients: Path = text(..., "DIR", "The folder of tacit federate keys server."),
    listen: str = text("127.0.0.1:8443", "HOST:PORT", "Where clients reach this server."),
    evaluate_on: str | None = text(
        None, "CORPUS", "Whose test users the model is measured on.  [with EXPERIMENT: required]"
    ),
    secure_sum: bool = flag("--secure-sum", "See sums of updates only; clients need the roster."),
    always_on: str | None = text(
        None, "WHO", "Claim Poisson sampling by silos: who vouches that they are always on."
    ),
    resume: bool = flag("--resume", "Go on with the run that is in DIR."),
    settings: Settings = None,
    rounds: int | None = count(None, "T", "Rounds of training, in all."),
    target_epsilon: float | None = real(
        None, "EPSILON", "Solve for the noise that meets it.", "--epsilon", "--target-epsilon"
    ),
    noise: str | None = text(
        None,
        "NAME",
        "independent, blt, banded, square-root, tree, distributed.  [default: the plan's]",
    ),
    min_separation: int | None = count(
        None, "B", "Nobody is asked again within B rounds.  [default: as the cohort allows]"
    ),
    delta: Delta = None,
    population: int | None = count(None, "K", "People, public.  [default: the enrolled]"),
    seed: Seed = None,
    wait_for: int | None = count(
        None, "N", "Clients to wait for before the first round.  [default: all]"
    ),
    deadline: float = real(60.0, "S", "Seconds that a client has for a round, and to connect."),
    silence: float = real(15.0, "S", "Seconds after which a client that says nothing is gone."),
    insecure: _Insecure = False,
    keep_key: bool = flag("--keep-key", "Keep the run key at the end; the result says so."),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train with the clients that are enrolled; ends with the model's epsilon.

    The server knows ids and public keys, and none of the text.  It sees the clipped update of each
    client, so that it has to be trusted: docs/federation.md says with what.  A client that is
    absent, late or wrong is left out of its round.  A server that was stopped at any moment goes on
    with --resume.

    With --secure-sum it sees what the updates of a round add up to, and none alone.  A round then
    needs more than two thirds of those whose turn it is.  With --noise distributed as well, clients
    add the noise, and the server sees noisy sums only.

    With --always-on the claim names who vouches that every silo is always on and draws its people
    in secret; a round that lacks a silo fails, and is not released.
    """
    from tacit.cli import requests as asking
    from tacit.cli.train import carry_out
    from tacit.config.experiment import Experiment
    from tacit.corpus.builtin import always_on as vouching
    from tacit.corpus.builtin import enrolment_name, has_secure_sums
    from tacit.corpus.enrolment import Enrolment
    from tacit.federation.service import Address
    from tacit.federation.training import federation, refuse_unfit

    check_counts(wait_for=wait_for, rounds=rounds)
    if (recipe is None) != resume:
        raise ValueError("name an EXPERIMENT to begin with, or --resume a run that was begun")
    if (recipe is None) != (evaluate_on is None):
        raise ValueError(
            "--evaluate-on is for a new run, and needed there: a corpus of the server's own, whose"
            " test users the model is measured on"
        )
    if secure_sum and resume:
        raise ValueError("--secure-sum is for a new run: one that goes on sees what it saw before")
    if always_on is not None and (resume or not always_on):
        raise ValueError("--always-on is for a new run, and names who vouches for it")
    source, silos = None, Enrolment.open(clients).silos
    if evaluate_on is not None:
        vouched = always_on or ""
        source = enrolment_name(clients, evaluate_on, secure_sum=secure_sum, always_on=vouched)
        if silos and population is None:  # each has declared its own number
            population = sum(silos.values())
    options: dict[str, asking.Value] = {
        "corpus.source": source,
        "rounds": rounds,
        "seed": seed,
        "plan.noise": noise,
        "plan.separation": min_separation,
        "plan.population": population,
        "plan.population_is_counted": None if population is None else False,
        "privacy.delta": delta,
        "privacy.target_epsilon": target_epsilon,
    }
    changes = asking.all_settings(settings, options)
    asked = asking.requests(recipe, run, changes, resume=resume)
    if len(asked) > 1:
        raise ValueError(f"{recipe} has variants: name a recipe of one experiment")
    experiment = asked[0].experiment or _experiment_of(run, clients)
    if not isinstance(experiment, Experiment):
        raise ValueError("a federated training is of a language model, and this is none")
    refuse_unfit(experiment)
    asking.refuse_early(asked)
    address = Address.parse(listen)
    with federation(clients, address, insecure=insecure, deadline=deadline, silence=silence) as up:
        note(f"listening on {up.address}{' without TLS' if insecure else ''}")
        if has_secure_sums(experiment.source):
            note(f"secure sums, by the roster {up.roster.digest}")
        if vouching(experiment.source):
            wait_for = up.clients.enrolled
        _wait(up, wait_for, deadline)
        engine = up.engine_for(run, note)
        words = ["tacit", "federate", "server", "--resume", "--run", str(run)]
        again = shlex.join([*words, "--clients", str(clients), "--listen", listen])
        try:
            up.run(
                lambda: carry_out(asked, engine, as_json=as_json, keep_key=keep_key, quiet=quiet)
            )
        except Interrupted:
            raise Interrupted(f"interrupted; nothing is lost: {again}") from None


def _experiment_of(run: Path, clients: Path) -> Any:
    """The experiment of a run that goes on; the clients have to be those that it began with."""
    from tacit.corpus.builtin import enrolment_folder, is_enrolment
    from tacit.runs.directory import RunDirectory

    experiment = RunDirectory.open(run).experiment()
    if not is_enrolment(experiment.source):
        raise ValueError(f"{run} is no federated run: go on with tacit train --resume --run {run}")
    if enrolment_folder(experiment.source) != str(clients):
        raise ValueError(
            f"{run} was begun with the clients of {experiment.source}, not with those of {clients}"
        )
    return experiment


def _wait(up: Federation, wait_for: int | None, seconds: float) -> None:
    """Wait for clients; training without a single one would spend privacy on nothing."""
    enrolled = up.clients.enrolled
    wanted = enrolled if wait_for is None else wait_for
    there = up.clients.wait_for(min(wanted, enrolled), seconds)
    note(f"{there} of {enrolled} clients are connected")
    if there < (1 if wait_for is None else min(wait_for, enrolled)):
        raise ValueError(
            f"{there} clients are connected after {seconds:g} seconds; start clients first, or wait"
            " longer with --deadline"
        )


@app.command("client")
def _client(
    *,
    corpus: str = text(..., "CORPUS", "The text of one person, or of a silo's people."),
    server: str = text(..., "HOST:PORT", "The server's address."),
    key: Path = text(..., "FILE", "The key of tacit federate keys client."),
    user: str | None = text(None, "ID", "Of a corpus of several users: the hashed id of one."),
    part: str | None = text(
        None, "N/M", "Of a silo's corpus: one of M parts of its people.  [default: all of them]"
    ),
    ledger: Path | None = text(
        None, "FILE", "What this client has given.  [default: beside the key]"
    ),
    roster: Path | None = text(
        None, "FILE", "Who may be in secure sums.  [default: the one confirmed for the key, if any]"
    ),
    fewest: int = count(3, "N", "Take part in secure sums of so many clients at least."),
    sums_per_round: int = count(1, "N", "Help to unmask so many sums of a round; see the docs."),
    most: int | None = count(None, "N", "Give so many contributions of a person in all."),
    separation: int = count(1, "B", "Let a person take part again after B rounds at the earliest."),
    noise_seed: int | None = count(
        None, "N", "For trials: share a simulation's noise, which hides nothing."
    ),
    without_noise: bool = flag("--without-noise", "Take part though nobody is protected."),
    poll: float = real(1.0, "S", "Seconds between looking for an order."),
    patience: float | None = real(
        None, "S", "End when the server is gone for so long.  [default: never]"
    ),
    insecure: _Insecure = False,
    quiet: Quiet = False,
) -> None:
    """Answer a server's orders for one person, or for a silo's people, whose text stays here.

    It runs the code that is installed here, and refuses an order that comes too soon, too often, or
    that it does not know.  What it has given is on record beside its key, before it is given.

    With a roster (tacit federate keys confirm) it takes part in secure sums only, so that no server
    ever sees its update alone.

    With the key of a silo (tacit federate keys client --silo) it answers for all training users of
    the corpus: each is clipped alone, and one sum leaves.
    """
    from tacit.corpus.builtin import load_corpus
    from tacit.federation import roster as rosters
    from tacit.federation.client import Answering, Person, Trainer, client_app, serve
    from tacit.federation.connection import Connection, Unreachable
    from tacit.federation.keys import ClientKey
    from tacit.federation.own_ledger import Consent, OwnLedger
    from tacit.federation.own_noise import OwnNoise, SimulatedNoise
    from tacit.federation.secure_client import SumMember, ledger_beside, member_app
    from tacit.federation.service import Address
    from tacit.federation.silo import People, Silo
    from tacit.federation.silo_ledger import SiloLedger
    from tacit.federation.sum_ledger import SumLedger

    check_counts(most=most, separation=separation, fewest=fewest, sums_per_round=sums_per_round)
    if not 0 < poll < 1e6:
        raise ValueError(f"--poll must be a number of seconds above 0, got {poll}")
    address = Address.parse(server)
    if insecure:
        address.refuse_insecure()
    own = ClientKey.load(key)
    consent = Consent(most, separation, without_noise)
    record = ledger or key.with_name(f"{key.name}.given.jsonl")
    given: OwnLedger | SiloLedger
    trainer: Answering
    if own.silo is None:
        if part is not None:
            raise ValueError("--part is for a silo, and the key is that of one person")
        given = OwnLedger(record, consent)
        noise = OwnNoise.of(own) if noise_seed is None else SimulatedNoise(noise_seed)
        trainer = Trainer(Person.of(own.id, load_corpus(corpus), user), given, noise)
    else:
        for option, value in (("--user", user), ("--noise-seed", noise_seed)):
            if value is not None:
                raise ValueError(f"{option} is for one person, and the key is that of a silo")
        tokens = key.with_name(f"{key.name}.tokens")
        people = People(load_corpus(corpus), own.silo, tokens, _part(part or "1/1"))
        given = SiloLedger(record, consent)
        trainer = Silo(people, own.silo, given)
        note(f"a silo of {len(people):,} people, {own.silo:,} at most")
    tell = (lambda what: None) if quiet else note
    if noise_seed is not None:
        note("this client's noise follows from a seed, so that it hides nothing")
    note(f"client {own.id} of {address}; {len(given)} contributions given so far")
    confirmed = rosters.copy_of(key)
    if roster is not None or confirmed.is_file():
        known = rosters.Roster.load(roster or confirmed)
        known.refuse_stranger(own)
        sums = SumLedger(ledger_beside(record), sums_per_round)
        app = member_app(SumMember(trainer, own, known, sums, fewest), tell)
        note(f"secure sums only, among {len(known.keys)} clients")
    else:
        app = client_app(trainer, tell)
        note("no roster is confirmed for this key, so the server sees each update")
    try:
        serve(
            app,
            lambda: Connection(str(address), own, insecure=insecure),
            tell,
            poll=poll,
            patience=patience,
        )
    except Unreachable as gone:
        note(f"{gone}; {len(given)} contributions given")


def _part(said: str) -> tuple[int, int]:
    """N/M as two numbers; what is out of range is refused where it is used."""
    number, _, of = said.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise ValueError(f"--part must be N/M, such as 1/3, got {said!r}")
    return int(number), int(of)


@app.command("try")
def _try(
    *,
    clients: int = count(5, "N", "How many clients; each is a process."),
    out: Path = text(..., "DIR", "A new folder for keys, logs and both runs."),
    corpus: str = text("synthetic:users=60,words=60", "CORPUS", "Whose text the clients have."),
    rounds: int = count(4, "T", "Rounds of training."),
    secure_sum: bool = flag("--secure-sum", "Let the server see sums of updates only."),
    silos: bool = flag("--silos", "Deal the corpus's people out to the clients, as silos."),
    noise: str = text("independent", "NAME", "Or distributed, which clients add to secure sums."),
    as_json: AsJson = False,
) -> None:
    """Train with a server and clients on this machine, and compare with the same simulated.

    Keys, certificates, enrolment and TLS are as between machines.  The run is a simulation: its key
    comes from a seed, so that both trainings can be compared bit by bit; so does the noise of
    clients that share it, which between machines comes from each client's own key.
    """
    from tacit.federation.trial import Trial, rehearse
    from tacit.runs.directory import RunDirectory

    check_counts(clients=clients, rounds=rounds)
    trial = Trial(out, corpus, clients, secure_sum, silos, noise).set_up()
    of = f" with {trial.people} people" if silos else ""
    note(
        f"{clients} clients{of} have keys and are enrolled; starting a server and {clients} clients"
    )
    with trial.interruptible():
        rehearse(trial, *_small_training(trial, rounds))
        note("trained; training the same in one process")
        trial.simulate()
    different = trial.differences()
    result = RunDirectory.open(trial.run).result() or {}
    row = {
        "clients": clients,
        "people": trial.people,
        "secure_sum": secure_sum,
        "answered": trial.answered(),
        "epsilon": result.get("epsilon"),
        "claim": result.get("claim"),
        "same_bits": not different,
        "differences": different,
        "run": str(trial.run),
    }

    def show(console: Console) -> None:
        answered = [(str(number), str(many)) for number, many in enumerate(trial.answered())]
        console.print(table(">round", ">clients that answered", rows=answered, compact=True))
        say(f"The same training in one process: {'; '.join(different) or 'the same bits'}.")
        say(f"Claim: {row['claim']}")
        say(f"next: tacit ledger {shlex.quote(str(trial.run))}")

    emit(row, as_json, show)
    if different:
        raise typer.Exit(1)


def _small_training(trial: Any, rounds: int) -> list[str]:
    """What `try` trains: a few thousand weights, for seconds.

    In secure sums everybody is in every round: a few clients that took turns would be too few.
    Silos are in every sum, whoever of their people has a turn.
    """
    separation = 1 if trial.secure_sum and not trial.silos else 2
    settings = {
        "tokenizer.size": 200,
        "model.options.embedding_size": 8,
        "model.options.cells": 12,
        "update.learning_rate": 0.5,
        "plan.cohort": trial.people / separation,
        "plan.estimator": '"fixed"',
        "plan.clip_norm": 0.5,
        "plan.noise_multiplier": 1.0,
        "evaluation.max_tokens": 2000,
    }
    words = ["fedavg-small", "--evaluate-on", trial.corpus, "--rounds", str(rounds)]
    words += ["--seed", str(trial.seed)]
    words += ["--min-separation", str(separation), "--delta", "1e-3", "--quiet"]
    words += ["--secure-sum"] if trial.secure_sum else []
    words += ["--noise", trial.noise]
    return words + [
        word for name, value in settings.items() for word in ("--set", f"{name}={value}")
    ]


@_keys.command("server")
def _keys_server(
    folder: _Folder,
    host: _Hosts,
    days: _Days = 365.0,
    people: str | None = text(
        None, "ID", "The people of a corpus, to whose ledger trainings are charged.  [default: new]"
    ),
) -> None:
    """Make a server's folder: a certificate for the hosts that clients call, and nobody enrolled.

    ca.pem in it is what clients need to know the server by; server.key and ca.key never leave it.

    Example:

    `tacit federate keys server enrolled --host 127.0.0.1`
    """
    from tacit.federation import keys

    keys.make_server(folder, host, people=people, days=days)
    say(f"The server's certificate for {', '.join(host)} is in {folder}")
    say(f"next:  tacit federate keys client alice.key --authority {folder / 'ca.pem'}")


@_keys.command("renew")
def _keys_renew(folder: _Folder, host: _Hosts, days: _Days = 365.0) -> None:
    """Make the server's certificate anew, before it expires; clients need nothing new."""
    from tacit.federation import keys

    keys.renew(folder, host, days=days)
    say(f"The server's certificate for {', '.join(host)} in {folder} is new")


@_keys.command("client")
def _keys_client(
    key: Path = argument(..., "FILE", "The client's new key; FILE.pub is for the server."),
    authority: Path = text(..., "FILE", "The server's ca.pem."),
    user_id: str | None = text(
        None, "ID", "32 hexadecimal digits, to be known by.  [default: random]", "--id"
    ),
    silo: int | None = count(
        None, "N", "For a silo of at most N people, a public number.  [default: one person]"
    ),
) -> None:
    """Make a client's key, where the client is: it never leaves that machine."""
    from tacit.federation.keys import ClientKey

    made = ClientKey.generate(authority.read_text(encoding="utf-8"), user_id, silo)
    public = made.save(key)
    say(f"The key of client {made.id} is in {key}; hand {public} to the server")


@_keys.command("enrol")
def _keys_enrol(
    folder: _Folder,
    client: list[Path] = argument(..., "FILE...", "What clients handed over: FILE.pub."),
) -> None:
    """Enrol clients, of whose keys the server is sure: whoever is enrolled moves the model."""
    from tacit.corpus.enrolment import Enrolment
    from tacit.federation.keys import read_public

    grown = Enrolment.open(folder).add([read_public(path) for path in client])
    of = f" as silos, of at most {sum(grown.silos.values()):,} people" if grown.silos else ""
    say(f"{len(grown.clients)} clients are enrolled in {folder}{of}")


@_keys.command("roster")
def _keys_roster(folder: _Folder) -> None:
    """Write roster.json for all clients: who may be in secure sums, and by which key.

    The owners of the clients compare its digest among themselves, and not with the server alone.
    """
    from tacit.corpus.enrolment import Enrolment
    from tacit.federation.roster import FILE, Roster

    made = Roster.of(Enrolment.open(folder))
    made.save(folder / FILE)
    say(f"The roster of {len(made.keys)} clients is in {folder / FILE}; its digest is")
    say(made.digest)


@_keys.command("confirm")
def _keys_confirm(
    key: Path = argument(..., "FILE", "A client's key."),
    roster: Path = argument(..., "ROSTER", "The server's roster.json."),
    *,
    digest: str = text(..., "HEX", "The roster's digest, as the other clients' owners know it."),
) -> None:
    """Let a client take part in secure sums with those in a roster, and in nothing else.

    Whoever chooses the roster can fill it with clients of its own: so the digest has to come from
    the other owners, or from where all of them see the same one.
    """
    from tacit.federation.roster import confirm

    known = confirm(key, roster, digest)
    say(f"{key} takes part in secure sums among {len(known.keys)} clients")
