"""A unigram and a bigram of a run's people with user-level privacy, to hold its model against.

Whoever cannot beat them should not train a network.  They are a release about these people beside
the run's model: asked for by an epsilon of their own, charged to a ledger of their own and to the
people's before any noise is drawn, and charged again if they are made again.  How the counts are
released is in `mechanisms.noisy_counts`; what is made of them here is post-processing, so that
their figures may be published with the model's.

    RUN/baselines/1/ledger.jsonl         what the release cost; its last entry names the next file
    RUN/baselines/1/bigram.safetensors   unigram and bigram
    RUN/baselines/1/figures.json         their figures on the test users that the run is measured on
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tacit.corpus.people_ledger import remark_on_others
from tacit.evaluation.accuracy import evaluate
from tacit.evaluation.baselines import Bigram, Unigram
from tacit.evaluation.held_out import held_out_texts
from tacit.evaluation.scoring import Predictor
from tacit.mechanisms.noisy_counts import NoisyCounts, ReleasedCounts, SparseSum
from tacit.privacy import checks, durable
from tacit.privacy.documents import read_json
from tacit.privacy.events import Composition, PostProcessing
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_lines import Charge, Header, LedgerError
from tacit.privacy.randomness import RunKey
from tacit.privacy.records import canonical_json
from tacit.runs.baselines import Tell, training_tokens
from tacit.runs.directory import RunDirectory
from tacit.runs.stored_model import StoredModel
from tacit.tasks.language.people import People
from tacit.tokenizers.history import LearntTokenizer

_LEDGER, _ARRAYS, _FIGURES = "ledger.jsonl", "bigram.safetensors", "figures.json"


@dataclass(frozen=True)
class PrivateBaselines:
    """Baselines that were released with differential privacy, their ledger and their figures."""

    bigram: Bigram
    ledger: Ledger
    tokenizer: str  # the fingerprint of the tokenizer whose tokens they predict
    figures: dict[str, Any]  # by name, as `Metrics.as_row` has them

    @property
    def predictors(self) -> dict[str, Predictor]:
        """The baselines by their names."""
        return {"private unigram": self.bigram.unigram, "private bigram": self.bigram}

    @property
    def guarantee(self) -> Guarantee:
        """What may be claimed for them, with what all releases on these people cost together."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))

    @classmethod
    def read(cls, run: Path) -> PrivateBaselines | None:
        """Those of a run that were released last; None if there are none."""
        baselines = RunDirectory(run).baselines
        numbers = _numbers(baselines)
        if not numbers:
            return None
        folder = baselines / str(numbers[-1])
        ledger = Ledger.read(folder / _LEDGER)
        data = (folder / _ARRAYS).read_bytes()
        last = ledger.entries[-1] if ledger.entries else None
        if last is None or last.plan_hash != hashlib.sha256(data).hexdigest():
            raise LedgerError(f"{folder / _ARRAYS} is not the file that its ledger is about")
        arrays = safetensors.numpy.load(data)
        tokenizer = bytes(arrays.pop("tokenizer")).decode()
        unigram = Unigram(arrays.pop("probs"))
        figures = read_json(folder / _FIGURES, dict[str, dict[str, Any]])
        return cls(Bigram(unigram, **arrays), ledger, tokenizer, figures)


def release_baselines(
    stored: StoredModel,
    epsilon: float,
    *,
    key: RunKey | None = None,
    progress: Tell | None = None,
) -> PrivateBaselines:
    """Release a unigram and a bigram of the people of a run, at this epsilon and the run's delta.

    Args:
        stored: the model of a run, whose corpus is where it was.
        epsilon: what the release may cost each of these people, on top of all else.
        key: only for a simulation; without it, a fresh one from the operating system.
        progress: called with what is being done, how much is done, and of how much.

    Raises:
        ValueError: the run's tokenizer or view allows no claim, or the corpus is another one.
        BudgetExceeded: the people's budget does not allow it; nothing was charged.
    """
    checks.positive("the epsilon of private baselines", epsilon)
    run = stored.run
    if run is None:
        raise ValueError(
            f"{stored.path} is no run, so there are no people to release private baselines of"
        )
    _refuse_unsound(stored)
    corpus, key = stored.corpus(None), key or RunKey.generate()
    tokenizer, terms = stored.tokenizer, run.ledger.header
    mechanism = NoisyCounts.for_epsilon(
        epsilon,
        terms.delta,
        population=terms.population,
        vocab_size=tokenizer.vocab_size,
        bos=tokenizer.bos,
    )
    people = People.of(run.experiment, corpus)
    header = _header(terms, mechanism, key)
    witness = people.ledger()
    if witness is not None:
        witness.refuse_hopeless(header, [mechanism.event])
    with training_tokens(stored, corpus, is_own=True, progress=progress) as cache:
        users = (cache.tokens(user) for user in _told(len(cache), progress))
        total = mechanism.total(users)
    baselines = run.directory.baselines
    folder = baselines / str(max(_numbers(baselines), default=0) + 1)
    durable.make_folder(folder.parent)
    with (
        durable.whole_folder(folder) as partial_folder,
        Ledger.create(partial_folder / _LEDGER, header) as ledger,
    ):
        if witness is not None:
            witness.witness(ledger)
        ledger.charge([Charge("counts", 0, 0, mechanism.event, mechanism.hash())])
        noise = key.hiding_stream(_proof(key, header, mechanism, total), "noise on counts")
        tell = partial(progress, "adding noise") if progress else None
        bigram = _bigram_of(mechanism.release(total, noise, tell), tokenizer.bos)
        data = _to_bytes(bigram, tokenizer.fingerprint)
        made = PostProcessing("a unigram and a bigram made of the noisy counts")
        digest = hashlib.sha256(data).hexdigest()
        ledger.charge([Charge("baselines", 0, 0, made, digest)])
        durable.write_whole(partial_folder / _ARRAYS, data)
        figures = _figures(stored, bigram)
        durable.write_whole(partial_folder / _FIGURES, json.dumps(figures, indent=2).encode())
    people.leave_copy()
    released = PrivateBaselines.read(run.path)
    assert released is not None
    return released


def _refuse_unsound(stored: StoredModel) -> None:
    """Refuse a run for whose people a claim about counts of tokens would not hold."""
    assert stored.run is not None
    tokenizer, header = stored.tokenizer, stored.run.ledger.header
    if header.view == "iid":
        raise ValueError(
            f"the users of {stored.path} are mixed from people's texts, so that private baselines"
            " of them would protect nobody"
        )
    if tokenizer.why_void or LearntTokenizer(tokenizer).needs_history:
        raise ValueError(
            f"private baselines need a public tokenizer, and that of {stored.path} was learnt from"
            f" people's text ({tokenizer.provenance})"
        )


def _header(terms: Header, mechanism: NoisyCounts, key: RunKey) -> Header:
    """The header of the release's own ledger: the terms of the run without what it has paid."""
    public = canonical_json([mechanism.to_json(), terms.people, terms.run_id]).encode()
    return replace(
        terms,
        run_id=key.hmac(b"counts of users", public).hex()[:16],
        budget=None,
        branch="main",
        parent=None,
        adjacency=Composition.of([mechanism.event]).adjacency,
        simulation=key.is_simulation,
        counted="releases",
        accountant=None,
        experiment="",
        public_inputs=tuple(one for one in terms.public_inputs if one.what == "dictionary"),
        prior_costs=(),
    )


def _proof(key: RunKey, header: Header, mechanism: NoisyCounts, total: SparseSum) -> bytes:
    """HMAC over all that the release is made from; its noise is keyed by it (design rule 12)."""
    return key.hmac(
        canonical_json([header.run_id, mechanism.to_json()]).encode(),
        key.digest(np.ascontiguousarray(total.index).data),
        key.digest(np.ascontiguousarray(total.values).data),
    )


def _bigram_of(released: ReleasedCounts, bos: int) -> Bigram:
    return Bigram.of_noisy_counts(
        released.tokens,
        released.before,
        released.after,
        released.pairs,
        bos=bos,
        token_noise=released.token_noise,
        pair_noise=released.pair_noise,
    )


def _to_bytes(bigram: Bigram, tokenizer: str) -> bytes:
    """All arrays of a bigram, and the fingerprint of its tokenizer, as a safetensors file."""
    arrays = {name: value for name, value in vars(bigram).items() if name != "unigram"}
    arrays |= {"probs": bigram.unigram.probs, "tokenizer": np.frombuffer(tokenizer.encode(), "u1")}
    return safetensors.numpy.save({n: np.ascontiguousarray(v) for n, v in arrays.items()})


def _figures(stored: StoredModel, bigram: Bigram) -> dict[str, Any]:
    """How well the baselines do on the test users, on the same texts as the run's own model."""
    assert stored.run is not None
    tokenizer, limit = stored.tokenizer, stored.run.experiment.evaluation.max_tokens
    texts = held_out_texts(stored.corpus(None).test, tokenizer, limit).sequences
    baselines: dict[str, Predictor] = {"unigram": bigram.unigram, "bigram": bigram}
    return {
        name: evaluate(one, texts, bos=tokenizer.bos, unk=tokenizer.unk).as_row()
        for name, one in baselines.items()
    }


def _numbers(folder: Path) -> list[int]:
    """The releases that there were, in their order."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _told(count: int, progress: Tell | None) -> Iterator[int]:
    """The numbers of all users, with their progress told."""
    for user in range(count):
        if progress is not None and user % 100 == 0:
            progress("counting", user, count)
        yield user
