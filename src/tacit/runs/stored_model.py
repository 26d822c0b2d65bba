"""A language model to use, wherever it lies: in a run, in a bundle, or in a folder by itself.

Commands that evaluate, sample, suggest or audit do not care which of these they are given.  What a
run or bundle says of itself is checked first: a model that is not the one of its ledger is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.corpus.builtin import load_corpus
from tacit.corpus.source import UserCorpus
from tacit.models import weights
from tacit.models.base import LanguageModel
from tacit.privacy import trusted
from tacit.runs.bundle import Bundle, is_bundle
from tacit.runs.run import LanguageRun, NluRun
from tacit.tasks.nlu.models import NluModel
from tacit.tokenizers.tokenizer import Tokenizer

MODEL_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
PRIVATE_MARKER = "PRIVATE"  # a file of this name says that the model is one person's own


def open_nlu_model(path: str | Path, epoch: int | None = None) -> NluModel:
    """The intent and slot model of a run after an epoch (by default the last), or of a bundle."""
    path = Path(path)
    if (path / "checkpoints").is_dir():
        return NluRun.open(path).stored(epoch)
    if epoch is not None:
        raise ValueError(f"{path} holds one model only, so leave out --round {epoch}")
    Bundle.open(path)  # its ledger says which weights it is of
    return NluModel.load(path / MODEL_FILE)


@dataclass(frozen=True)
class StoredModel:
    """A model, its tokenizer, and whatever is known about where they come from.

    `run` and `experiment` are None for a model that was trained on public text alone.
    """

    path: Path
    model: LanguageModel
    tokenizer: Tokenizer
    trained_on: tuple[str, ...]  # identities of the corpora whose users' text is in the weights
    round: int | None = None
    run: LanguageRun | None = None
    experiment: Experiment | None = None

    @classmethod
    def open(cls, path: str | Path, round: int | None = None) -> StoredModel:
        """The model of a run after a round (by default the last), or the one of a folder."""
        path = Path(path)
        if not path.is_dir():
            raise ValueError(f"there is no run and no model at {path}")
        trusted.refuse_irregular_in(path)
        if (path / "checkpoints").is_dir():
            return cls._of_run(LanguageRun.open(path), round)
        if not (path / MODEL_FILE).is_file():
            raise ValueError(f"{path} holds no model: neither a run nor a {MODEL_FILE}")
        if round is not None:
            raise ValueError(f"{path} holds one model only, so leave out --round {round}")
        if is_bundle(path):
            Bundle.open(path)  # its ledger says which weights and which tokenizer it is of
        experiment = None
        file = path / "experiment.toml"
        if file.is_file():
            experiment = Experiment.from_toml(file.read_text(encoding="utf-8"), str(file))
        tokenizer = Tokenizer.load(path / TOKENIZER_FILE)
        # A folder may come from anywhere, and is not allowed to choose which code makes its model.
        model = weights.load(path / MODEL_FILE, vocab_size=tokenizer.vocab_size)
        origins = weights.trained_on(path / MODEL_FILE)
        return cls(path, model, tokenizer, origins, None, None, experiment)

    @classmethod
    def _of_run(cls, run: LanguageRun, round: int | None) -> StoredModel:
        """The model of a checkpoint with the tokenizer that it was trained in."""
        checkpoint = run.directory.checkpoints.read(round)
        origins = weights.trained_on(checkpoint.model_file)
        model = run.model(checkpoint.leg)
        tokenizer = run.tokenizer_at(checkpoint.leg)
        return cls(run.path, model, tokenizer, origins, checkpoint.leg, run, run.experiment)

    def corpus(self, named: str | None) -> UserCorpus:
        """The corpus to measure on: the one named, or the run's own.

        Raises:
            ValueError: if the run's own corpus is not as it was, or has no test users.
        """
        if named is not None:
            corpus = load_corpus(named)
        elif self.run is None:
            raise ValueError(f"{self.path} is no run, so say on which text: add --corpus CORPUS")
        else:
            corpus = self.run.corpus()
            if corpus.commitment != self.run.ledger.header.data:
                # Of the same people perhaps, but its test users may be those who were trained on.
                raise ValueError(
                    f"{self.run.experiment.corpus.source} is another corpus than the one that"
                    f" {self.path} was trained on; add --corpus to measure on it all the same"
                )
        if len(corpus.test) == 0:
            raise ValueError(f"the corpus {named or self.path} has no test users to measure on")
        return corpus
