"""Intent and slot models as a task: what `train` and the run directory ask for."""

from __future__ import annotations

from tacit.privacy.randomness import RunKey
from tacit.tasks.nlu import beginning, plan
from tacit.tasks.nlu.experiment import NluExperiment
from tacit.tasks.nlu.trainer import NluTrainer
from tacit.tasks.nlu.utterances import Utterances
from tacit.tasks.task import Announce, Beginning, Inherited, LastState, Opened, Parent


class NluTask:
    """See `tasks.task.Task`."""

    name = "nlu"

    def load(self, experiment: NluExperiment, announce: Announce | None) -> Utterances:
        return Utterances.of(experiment)

    def begin(
        self,
        experiment: NluExperiment,
        data: Utterances,
        key: RunKey,
        announce: Announce | None,
    ) -> Beginning:
        return beginning.begin(experiment, data, key)

    def branch(
        self, experiment: NluExperiment, data: Utterances, key: RunKey, parent: Parent
    ) -> Beginning:
        return beginning.branch(experiment, data, key, parent)

    def resolve(
        self,
        experiment: NluExperiment,
        data: Utterances,
        last: LastState,
        inherited: Inherited | None,
    ) -> NluExperiment:
        return plan.resolved(experiment, data, inherited)

    def open(self, opened: Opened) -> NluTrainer:
        return NluTrainer(opened)
