"""Language models as a task: what `train` and the run directory ask for."""

from __future__ import annotations

from functools import partial

from tacit.config.experiment import Experiment
from tacit.models import weights
from tacit.privacy.randomness import RunKey
from tacit.tasks.language import beginning
from tacit.tasks.language.people import People
from tacit.tasks.language.trainer import LanguageTrainer
from tacit.tasks.task import Announce, Beginning, Inherited, LastState, Opened, Parent


class LanguageTask:
    """See `tasks.task.Task`."""

    name = "language"

    def load(self, experiment: Experiment, announce: Announce | None) -> People:
        people = People.of(experiment)
        people.corpus.verify(partial(announce, "verifying the corpus") if announce else None)
        return people

    def begin(
        self, experiment: Experiment, data: People, key: RunKey, announce: Announce | None
    ) -> Beginning:
        return beginning.begin(experiment, data, announce)

    def branch(
        self, experiment: Experiment, data: People, key: RunKey, parent: Parent
    ) -> Beginning:
        return beginning.branch(experiment, data, parent)

    def resolve(
        self,
        experiment: Experiment,
        data: People,
        last: LastState,
        inherited: Inherited | None,
    ) -> Experiment:
        model = weights.load(last.model_file, own_factory=beginning.own_factory(experiment))
        return beginning.resolve(experiment, data, model, inherited)

    def open(self, opened: Opened) -> LanguageTrainer:
        return LanguageTrainer(opened)
