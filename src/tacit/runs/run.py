"""A run to read: its experiment, its models, its metrics, and what it may claim.

`Run` is what runs of every task have in common.  `LanguageRun` and `NluRun` add what only one task
has: models with their tokenizers, or with their labels.  Reading never changes a run, and nothing
here needs its key: what may be claimed follows from the ledger alone.

Torch is imported by what needs a model's weights, and text by what reads the corpus: whoever reads
what a run says of itself, as a report does, waits for neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tacit.config.experiment import Experiment
from tacit.corpus.people_ledger import remark_on_others
from tacit.evaluation.names import ACCURACIES
from tacit.mechanisms.plan import RoundPlan
from tacit.models.stored_size import stored_numbers
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.projection import Projection
from tacit.runs.directory import RunDirectory
from tacit.runs.figures import FIGURES
from tacit.tasks import AnyExperiment
from tacit.tasks.language.plans import round_plans
from tacit.tasks.language.run_tokenizers import RunTokenizers
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tokenizers.tokenizer import Kind, Tokenizer

if TYPE_CHECKING:
    from tacit.corpus.source import UserCorpus
    from tacit.evaluation.sampling import Sampling
    from tacit.models.base import LanguageModel
    from tacit.tasks.nlu.data import NLUData
    from tacit.tasks.nlu.metrics import NLUMetrics
    from tacit.tasks.nlu.models import NluModel
    from tacit.tokenizers.history import LearntTokenizer

_COMPARED = ("targets", *ACCURACIES, "perplexity")


@dataclass(frozen=True, repr=False)
class Run:
    """A run directory, finished or not.

    `open` checks that its parts belong together: the experiment is the one whose digest is in the
    ledger's header, and the ledger is at least as long as the last checkpoint says.
    """

    directory: RunDirectory
    experiment: AnyExperiment
    ledger: Ledger
    leg: int  # legs done: rounds of a language model, epochs of an intent and slot model

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The run at `path`, as the class of its task.

        Raises:
            ValueError: if a part is damaged or shortened, or the run is of another task than the
                class that it is opened as (`LanguageRun.open` of an intent model's run, say).
        """
        directory = RunDirectory.open(path)
        last = directory.checkpoints.read()
        ledger = Ledger.read(directory.ledger_file, last.head)
        directory.refuse_edited(ledger.header)
        experiment = directory.experiment()
        kind = NluRun if isinstance(experiment, NluExperiment) else LanguageRun
        if not issubclass(kind, cls):
            raise ValueError(f"{path} is a run of the task {experiment.task}: {kind.not_for}")
        run = kind(directory, experiment, ledger, last.leg)
        run.check()
        assert isinstance(run, cls)
        return run

    @classmethod
    def finish(cls, path: str | Path, ending: str, *, keep_key: bool) -> Self:
        """End a training, and return its run: first the key goes, then what may fail is written.

        A process that dies in between leaves a run without a key and without a result, which
        `start.ending_without_result` recognises; it can only be finished, never trained further.
        """
        directory = RunDirectory.open(path)
        if not keep_key:
            directory.destroy_key()
        run = cls.open(path)
        compared = {"baselines": run.measure_baselines()}
        directory.finish(run.summary(ending) | compared | {"key_kept": keep_key})
        return run

    def __repr__(self) -> str:
        """One line: where it is, how far it got, and its last figures.

        No epsilon, which says nothing without the rest of `guarantee().claim`.
        """
        ending = "finished" if self.is_complete else "not finished"
        done = f"{self.experiment.leg_name} {self.leg:,} of {self.experiment.legs:,}, {ending}"
        last = self.directory.last_metrics()
        measured = [
            f"{figure.name} {figure.show(last.get(figure.key))}"
            for figure in FIGURES[self.experiment.task]
            if figure.compared and last
        ]
        name = f"{type(self).__name__} {self.path}"
        return f"<{name}: {'; '.join([done, *filter(None, [', '.join(measured)])])}>"

    def check(self) -> None:
        """Refuse files of the task that do not belong to the last checkpoint."""

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def first_leg(self) -> int:
        """Where it began: 0, or the leg after which it left the run that it is a branch of."""
        return self.ledger.header.first_round

    @property
    def is_complete(self) -> bool:
        return self.directory.result() is not None

    @property
    def checked_against(self) -> str:
        """What says how long the ledger has to be."""
        return f"the checkpoint of {self.experiment.leg_name} {self.leg}"

    def metrics(self) -> list[dict[str, Any]]:
        """Metrics on text that is not trained on, by leg."""
        return self.directory.metrics()

    def guarantee(self) -> Guarantee:
        """What may be claimed for the model: a function of the ledger."""
        return Guarantee.of(self.ledger).beside(remark_on_others(self.ledger))

    def results(self) -> dict[str, Any]:
        """What the run reached, in its task's figures."""
        return {}

    def measure_baselines(self) -> dict[str, dict[str, Any]]:
        """Figures of simple models that may be published beside those of this one, by name."""
        return {}

    def summary(self, ending: str = "") -> dict[str, Any]:
        """The figures that `train --json` prints and result.json keeps.

        The claim and its epsilons, how far the training went (`rounds` or `epochs`), and `results`.
        All of it is public: nothing comes from `private/`.
        """
        guarantee = self.guarantee()
        return {
            "run": str(self.path),
            "task": self.experiment.task,
            "ending": ending,
            **guarantee.as_row(),
            "charged_rounds": guarantee.rounds,
            **self.results(),
            f"{self.experiment.leg_name}s": self.leg,
            "intact": True,
            "simulation": self.ledger.header.simulation,
        }


class LanguageRun(Run):
    """A run of a language model."""

    experiment: Experiment
    not_for = "what was asked for is for intent and slot models"

    def check(self) -> None:
        self.tokenizer  # noqa: B018  (raises if it is not the one that was trained with)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.leg

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the last model."""
        return self.tokenizer_at(self.leg)

    def tokenizer_at(self, round: int) -> Tokenizer:
        """The tokenizer of the model after a round, which is not the last one's after a switch."""
        facts = self.directory.checkpoints.read(round).facts
        return RunTokenizers(self.path).by_fingerprint(facts["tokenizer"])

    def model(self, round: int | None = None) -> LanguageModel:
        """The model after a round, by default the last one."""
        from tacit.models import weights

        checkpoint = self.directory.checkpoints.read(round)
        size = self.tokenizer_at(checkpoint.leg).vocab_size
        choice = self.experiment.model
        return weights.load(
            checkpoint.model_file,
            vocab_size=size,
            own_factory=choice.own_factory,
            trained=choice.trained,
        )

    @property
    def parameters(self) -> int:
        """How many numbers the last model has."""
        if self.experiment.model.own_factory:  # may keep more in its file than parameters
            return sum(values.numel() for values in self.model().parameters())
        return stored_numbers(self.directory.checkpoints.read().model_file)

    def plans(self) -> tuple[RoundPlan, ...]:
        """The plan of each phase."""
        from tacit.models.base import layer_sizes

        return round_plans(self.experiment, layer_sizes(self.model()))

    def plans_to_read(self) -> tuple[RoundPlan, ...]:
        """The same plans as they are told of, perhaps without the sizes of the model's layers.

        Those are for whoever clips, and the model has to be built to know them.  Where layers have
        norms of their own the plan depends on them.
        """
        experiment = self.experiment
        phases = range(max(len(experiment.phases), 1))
        if any(experiment.phase_plan(number).clipping == "per-layer" for number in phases):
            return self.plans()
        return round_plans(experiment, None)

    def corpus(self) -> UserCorpus:
        """The corpus it was trained on, where it was or where it was moved to."""
        from tacit.corpus.builtin import find_corpus, load_corpus

        named = self.experiment.corpus
        return load_corpus(find_corpus(named.source, named.identity, self.ledger.header.data))

    def sampled_tokenizer(
        self,
        round: int | None,
        kind: Kind,
        size: int,
        key: bytes,
        *,
        tokens: int = 1_000_000,
        sampling: Sampling | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> LearntTokenizer:
        """A tokenizer learnt from what the model after a round (None: the last) says.

        Its history is the run's ledger up to that round: the people have paid for the model, and
        the tokenizer costs them nothing more.  A run whose own tokenizer was learnt from others of
        the corpus is refused before anything is sampled, since there would be two histories to pass
        on.  `key` decides about the samples and protects nobody: the model was released already.
        """
        from tacit.evaluation.sampling import DEFAULT, sample_texts
        from tacit.tokenizers import learn
        from tacit.tokenizers.history import History

        for cost in self.ledger.header.prior_costs:
            if cost.whom == "beside":
                raise ValueError(
                    f"the tokenizer of {self.path} was learnt from part {cost.part} of the users,"
                    " and what is sampled from its model would tell about both parts; sample from a"
                    " run with a public tokenizer"
                )
        checkpoint = self.directory.checkpoints.read(round)
        leg, old = checkpoint.leg, self.tokenizer_at(checkpoint.leg)
        model, run_id = self.model(leg), self.ledger.header.run_id
        texts = sample_texts(
            model, old, key, tokens=tokens, sampling=sampling or DEFAULT, progress=progress
        )
        how = f"{tokens} tokens sampled from the model of the run {run_id} after round {leg}"
        learnt = learn.from_samples(texts, old, kind=kind, size=size, of=how)
        history = History.of(self.ledger, checkpoint.head, learnt.tokenizer, how, leg)
        return replace(learnt, history=history)

    def measure_baselines(self) -> dict[str, dict[str, Any]]:
        """Figures of the starting model, and of a unigram and a bigram of the test users.

        All are of the texts that were measured on in training, and none has read the training
        users' text (`evaluation.cross_fitted` says why).  The first is left out where the tokenizer
        was switched, since figures of other tokens do not compare; the others where the corpus is
        not at hand any more, since a run must come to its end all the same.
        """
        from tacit.evaluation.cross_fitted import cross_fitted_baselines
        from tacit.evaluation.held_out import held_out_texts

        settings, tokenizer, rows = self.experiment, self.tokenizer, self.metrics()
        baselines = {}
        is_switched = any(row.get("switched") for row in rows)
        if len(rows) > 1 and rows[0]["round"] == self.first_leg and not is_switched:
            baselines["start"] = {name: rows[0].get(name) for name in _COMPARED}
        try:
            users = self.corpus().test
            texts = held_out_texts(users, tokenizer, settings.evaluation.max_tokens)
            cap = settings.corpus.max_tokens_per_user
            measured = cross_fitted_baselines(users, tokenizer, texts, cap)
        except (ValueError, OSError):
            return baselines
        return baselines | {name: metrics.as_row() for name, metrics in measured.items()}

    def projection(self) -> Projection | None:
        """The larger training that the experiment declares; None where nothing can be projected."""
        return projection_of(self.experiment, self.guarantee())

    def results(self) -> dict[str, Any]:
        """The last metrics on the text of test users, and the projected claim if there is one."""
        measured = self.directory.last_metrics()
        measured["tokens"] = measured.pop("targets", None)
        figures = {name: measured[name] for name in measured if name not in ("round", "epsilon")}
        to = self.projection()
        if to is None:
            return figures
        return figures | {"projected_claim": self.guarantee().projected(to).claim}


def projection_of(experiment: Experiment, guarantee: Guarantee) -> Projection | None:
    """Where a run's guarantee is to be projected to; None where there is nothing to project."""
    larger, is_noisy = experiment.projection, guarantee.rounds and not guarantee.reasons
    if larger is None or not is_noisy or not guarantee.header.about_people:
        return None
    return larger.as_projection(experiment.plan.cohort)


class NluRun(Run):
    """A run of an intent and slot model."""

    experiment: NluExperiment
    not_for = "what was asked for is for language models"

    def stored(self, epoch: int | None = None) -> NluModel:
        """The model after an epoch, by default the last, with its encoder and labels."""
        from tacit.tasks.nlu.models import NluModel

        return NluModel.load(self.directory.checkpoints.read(epoch).model_file)

    def data(self) -> NLUData:
        """The utterances it was trained on, if they are still where they were."""
        from tacit.tasks.nlu.utterances import data_of

        return data_of(self.experiment)

    def test_metrics(self) -> NLUMetrics:
        """Metrics on the utterances of test."""
        from tacit.tasks.nlu.predictions import evaluate

        return evaluate(self.stored(), self.data().test)

    def results(self) -> dict[str, Any]:
        """What was trained how, and its metrics on test."""
        return {
            "method": self.experiment.training.method,
            "model": self.experiment.model.name,
            "data": self.experiment.data.source,
            "test": self.test_metrics().as_row(),
        }
