"""Runs and bundles of every kind, small: each function makes one in a folder and returns it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest_records
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.directory import RunDirectory
from tacit.runs.run import Run
from tacit.runs.session import Session
from tacit.tasks.language import canaries
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tokenizers import build, provenance
from tacit.tokenizers.learn import Users
from tacit.train import train
from tacit.train import train as train_nlu
from tacit_papers.bagdasaryan2022.heavy_hitters import HeavyHitters, learn_tokenizer
from tests.runs.small import WORDS, experiment, make_corpus, make_tokenizer, texts_of
from tests.runs.test_resume import Died, dies
from tests.tasks.nlu.small import of_method, small

GRID = {"sharers": [2.0], "example_probs": [1.0], "per_cell": 3, "max_share": 0.9, "words": 3}
PLAIN = {"clipping": "none", "clip_norm": None, "noise_multiplier": None}
SWITCH = {"sampled_tokens": 200, "size": 15}
SWITCHED = [{"rounds": 1}, {"rounds": 2, "tokenizer": SWITCH}]
MADE_UP = {"source": "synthetic:users=60,words=40,vocabulary=50", "identity": ""}

# What differs from a private training of two rounds.
TRAINED: dict[str, dict] = {
    "private": {"rounds": 3, "privacy": {"accountant": None, "budget_epsilon": 50.0}},
    "simulated": {"seed": 5},
    "plain": {"plan": PLAIN},
    "iid": {"corpus": {"view": "iid"}},
    "synthetic": {"corpus": MADE_UP},
    "phases": {
        "rounds": 3,
        "phases": [{"rounds": 1}, {"rounds": 2, "plan": {"noise_multiplier": 2.0}}],
    },
    "switched": {"rounds": 3, "phases": SWITCHED},
    "fixed": {"plan": {"sampling": "fixed"}},
    "truncated": {"plan": {"sampling": "truncated"}, "privacy": {"accountant": "pld"}},
    "adaptive": {
        "plan": {
            "clipping": "per-layer",
            "estimator": "clipped",
            "adaptive": {"target_quantile": 0.5, "bit_noise_stddev": 5.0},
        }
    },
    "first users": {"corpus": {"users": 30}},
    "target": {
        "plan": {"noise_multiplier": None},
        "privacy": {"accountant": None, "target_epsilon": 3.0},
    },
    "canaries": {"audit": {"canaries": GRID}},
    "clients": {"audit": {"canary_clients": 20}},
    "pretrained": {"model": {"pretrain": {"source": "PUBLIC"}}},
    "oracle": {"tokenizer": {"source": "ORACLE", "accept_oracle": True}},
    "out of budget": {"rounds": 6, "privacy": {"budget_epsilon": 2.5}},
}
NLU: dict[str, Callable] = {
    "nlu sgd": lambda own: of_method("sgd"),
    "nlu dp-sgd": lambda own: of_method("dp-sgd"),
    "nlu edp-sgd": lambda own: of_method("edp-sgd", noise={"scaling": "private"}),
    "nlu edp-sgd-paper": lambda own: of_method("edp-sgd-paper"),
    "nlu printed, public": lambda own: of_method(
        "edp-sgd-paper", noise={"scaling": "architecture"}
    ),
    "nlu noiseless": lambda own: of_method("dp-sgd", noise={"noise_multiplier": 0.0}),
    "nlu people": lambda own: small(seed=None, data={"source": str(said(own))}),
    "nlu users": lambda own: small(
        seed=None, data={"source": str(said(own))}, training={"unit": "user", "batch_size": 4}
    ),
    "nlu oracle": lambda own: small(model={"vocabulary": "oracle", "accept_oracle": True}),
    "nlu budget": lambda own: small(
        seed=None, data={"source": str(said(own))}, privacy={"budget_epsilon": 3.0}
    ),
}
EXPORTED = (
    *("private", "simulated", "plain", "switched", "adaptive"),
    *("branch", "same", "beside", "started"),
)


def make_folder(path: Path) -> Path:
    """A corpus, another one of other people, a dictionary and a list of words."""
    path.mkdir()
    make_corpus(path / "corpus")
    make_tokenizer(path)
    (path / "candidates.txt").write_text(" ".join(WORDS) + "\n")
    (path / "public.txt").write_text("a red dog sleeps\na blue cat eats\n" * 20)
    build.word_level(WORDS, provenance=provenance.ORACLE).save(path / "oracle" / "tokenizer.json")
    return path


def private(own: Path, **changes):
    return experiment(own, seed=None).changed(**{"seed": None, "rounds": 2} | changes)


def trained(kind: str) -> Callable[[Path, Path], None]:
    def make(own: Path, path: Path) -> None:
        given = json.dumps(TRAINED[kind]).replace("PUBLIC", str(own / "public.txt"))
        train(private(own, **json.loads(given.replace("ORACLE", str(own / "oracle")))), path)

    return make


def branch(own: Path, path: Path) -> None:
    parent = own / "parent"
    if not parent.exists():
        train(private(own), parent)
    train(private(own, rounds=4, plan={"noise_multiplier": 2.0}), path, branch_from=(parent, 1))


def branch_after_a_switch(own: Path, path: Path) -> None:
    parent = own / "switching parent"
    if not parent.exists():
        train(private(own, rounds=3, phases=SWITCHED), parent)
    train(private(own, rounds=4), path, branch_from=(parent, 3))


def learnt(own: Path, part: str, corpus: str = "corpus") -> Path:
    """A tokenizer from the words of some users."""
    made = own / f"learnt-{corpus}-{part.replace('/', '-')}"
    if not made.exists():
        users = Users.of(str(own / corpus), part, delta=1e-3)
        method = HeavyHitters(30.0, hashes=8, width=64, threshold=0.0)
        candidates = str(own / "candidates.txt")
        learn_tokenizer(users, candidates, method, "word", 60).save(made)
    return made


def with_tokenizer(own: Path, path: Path, source: Path, part: str) -> None:
    wanted = private(own, tokenizer={"source": str(source)}, corpus={"part": part})
    train(wanted.changed(plan={"cohort": 5}), path)


def same(own: Path, path: Path) -> None:
    with_tokenizer(own, path, learnt(own, ""), "")


def beside(own: Path, path: Path) -> None:
    with_tokenizer(own, path, learnt(own, "1/2"), "2/2")


def make_others(own: Path) -> None:
    """A corpus of other people."""
    if not (own / "others").exists():
        records = [(f"somebody else {n}", texts_of(n + 1000)) for n in range(60)]
        options = UserOptions(test_fraction=0.3, held_out_fraction=0.0)
        ingest_records(records, own / "others", count=60, options=options)


def elsewhere(own: Path, path: Path) -> None:
    make_others(own)
    with_tokenizer(own, path, learnt(own, "", "others"), "")


def sampled(own: Path, path: Path) -> None:
    """With a tokenizer that a model of the same people was asked for."""
    parent, made = own / "asked", own / "sampled words"
    if not made.exists():
        run = train(private(own), parent)
        parent = Run.open(run.path)
        parent.sampled_tokenizer(1, "word", 60, bytes(32), tokens=300).save(made)
    with_tokenizer(own, path, made, "")


def dying(
    owner: object, name: str, call: int, *, after: bool, **changes
) -> Callable[[Path, Path], None]:
    """Killed in the middle, and left so."""

    def make(own: Path, path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Died):
            dies(patch, owner, name, call=call, after=after)
            train(private(own, **{"rounds": 4} | changes), path)

    return make


def charged_again(own: Path, path: Path) -> None:
    """Resumed after its releases were forgotten, so that a round is charged a second time."""
    dying(LanguageTrainer, "run", 2, after=False)(own, path)
    (path / "private" / "releases.jsonl").unlink()
    train(None, path, resume=True)


def key_kept(own: Path, path: Path) -> None:
    train(private(own), path, keep_key=True)


def started(own: Path, path: Path) -> None:
    """From the bundle of a model that other people's text is in."""
    others, bundle = own / "run of others", own / "bundle of others"
    if not bundle.exists():
        make_others(own)
        train(private(own, corpus={"source": str(own / "others")}), others)
        tacit("export", others, "--out", bundle)
    train(private(own, model={"start": str(bundle / "model.safetensors")}), path)


def nlu(kind: str) -> Callable[[Path, Path], None]:
    def make(own: Path, path: Path) -> None:
        train_nlu(NLU[kind](own), path)

    return make


def nlu_killed(own: Path, path: Path) -> None:
    """Between the charges of its second epoch and the checkpoint."""
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Died):
        dies(patch, Session, "save", call=2, after=False)
        train_nlu(NLU["nlu people"](own), path)


def said(own: Path) -> Path:
    """80 utterances of 20 people."""
    file = own / "said.jsonl"
    if not file.exists():
        rows = [
            {
                "tokens": ["please", "call", f"n{place}"],
                "tags": ["O", "O", "B-who"],
                "intent": f"i{place % 2}",
                "user": f"u{place % 20}",
            }
            for place in range(160)
        ]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def tacit(*words: object) -> int:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as stop,
    ):
        main([str(word) for word in words])
    assert stop.value.code == 0, err.getvalue()
    return 0


MADE: dict[str, Callable[[Path, Path], None]] = {
    **{kind: trained(kind) for kind in TRAINED},
    "branch": branch,
    "branch after a switch": branch_after_a_switch,
    "same": same,
    "beside": beside,
    "elsewhere": elsewhere,
    "sampled": sampled,
    "started": started,
    "charged again": charged_again,
    "key kept": key_kept,
    "killed before its first round": dying(LanguageTrainer, "prepare", 1, after=False),
    "killed between HMAC and ledger": dying(Ledger, "charge", 3, after=False),
    "killed after a charge": dying(LanguageTrainer, "run", 3, after=False),
    "killed after a checkpoint": dying(Checkpoints, "write", 3, after=True),
    "killed before a switch is recorded": dying(
        RunTokenizers, "keep", 1, after=True, rounds=3, phases=SWITCHED
    ),
    "killed after a switch is recorded": dying(
        RunTokenizers, "use", 1, after=False, rounds=3, phases=SWITCHED
    ),
    "killed after a switch": dying(Checkpoints, "write", 3, after=True, rounds=3, phases=SWITCHED),
    "killed before its canaries are bound": dying(
        canaries, "_digest_of", 1, after=False, audit={"canaries": GRID}
    ),
    "killed before its result": dying(RunDirectory, "finish", 1, after=False),
    **{kind: nlu(kind) for kind in NLU},
    "nlu killed": nlu_killed,
}
