"""What is refused before any work: all that needs neither tokens nor training to be known.

Pre-training and tokenizing take minutes, a training hours.  Whatever contradicts the declared
numbers, or cannot fit on the disk or into memory, is said before any of them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tacit.config.experiment import Experiment
from tacit.mechanisms.samplers import TurnSampler
from tacit.mechanisms.turns import Turns
from tacit.models import registry
from tacit.models.base import (
    LanguageModel,
    layer_sizes,
    parameter_count,
    refuse_context,
    train_only,
)
from tacit.tasks.language import assembly, plans
from tacit.tasks.language.people import People
from tacit.tasks.language.starts import fill_in_start
from tacit.tokenizers.base import path_of
from tacit.tokenizers.tokenizer import FILE_NAME, Tokenizer

# Bytes that a process holds for each weight at the very least: the model, the local copy and its
# gradient in float32; an update, its grid and the sum in 64 bits.
BYTES_PER_WEIGHT = 36
BYTES_PER_NOISE = 8  # of a number in a vector of noise


def refuse_early(experiment: Experiment, people: People, run: Path) -> None:
    """Raise `ValueError` for a training that cannot begin, as far as that is known without work.

    Noise that is not spoken of, delta, cohort and population; a model that is to be given what no
    corpus has; the room for the run's checkpoints where `run` is to be written; the memory for the
    model.
    """
    experiment = fill_in_start(experiment)
    declared = plans.declared(experiment, user_count(experiment, people))
    people.refuse_unbudgeted(experiment)
    model = sized_model(experiment)
    refuse_context(model.config)
    if declared.noise_target is None:  # else the noise is still to be solved for
        plans.round_plans(declared, layer_sizes(model))
    _refuse_small_groups(declared, people, model)
    weights = parameter_count(model)
    _refuse_without_memory(weights, noise_vectors(declared, model))
    _refuse_without_disk(experiment, weights, run)


def refuse_missing_tokenizers(experiment: Experiment) -> None:
    """Raise if a tokenizer that a later phase goes on with cannot be read."""
    for phase in experiment.phases:
        if phase.tokenizer is not None and phase.tokenizer.source != "sampled":
            assembly.load_tokenizer(phase.tokenizer.source, experiment.tokenizer.accept_oracle)


def _refuse_small_groups(declared: Experiment, people: People, model: LanguageModel) -> None:
    """Raise if a group whose turn will come is too small for the noise that it is to share."""
    users = people.users
    for plan in plans.round_plans(plans.with_any_noise(declared), layer_sizes(model)):
        if plan.shared_noise is not None and isinstance(plan.sampler, TurnSampler):
            keys = (users.user_id(user) for user in range(len(users)))
            groups = Turns.of(keys, plan.sampler.separation).groups
            for round, group in enumerate(groups[: declared.rounds]):
                plan.refuse_few(len(group), round)


def noise_vectors(declared: Experiment, model: LanguageModel) -> int:
    """How many vectors of the model's size are kept of earlier rounds' noise."""
    made = plans.with_any_noise(declared)
    if not made.plan.noise_multiplier and not made.plan.noise_stddev:
        return 0
    noises = (plan.noise for plan in plans.round_plans(made, layer_sizes(model)))
    return max(noise.vectors(declared.rounds) if noise else 0 for noise in noises)


def noise_note(experiment: Experiment, people: People) -> str | None:
    """What correlated noise keeps in memory, in a sentence; None if it keeps nothing."""
    experiment = fill_in_start(experiment)
    model = sized_model(experiment)
    declared = plans.declared(experiment, user_count(experiment, people))
    vectors, weights = noise_vectors(declared, model), parameter_count(model)
    if not vectors:
        return None
    return (
        f"the noise of earlier rounds stays in memory: {_count(vectors)} of {weights:,} numbers,"
        f" {_size(vectors * weights * BYTES_PER_NOISE)}"
    )


def user_count(experiment: Experiment, people: People) -> int:
    """How many users take part: people, and the made-up clients of an audit."""
    return people.count + (experiment.audit.canary_clients or 0)


def sized_model(experiment: Experiment) -> LanguageModel:
    """An untrained model of the experiment's size; its dictionary may turn out to be smaller."""
    choice, words = experiment.model, experiment.tokenizer
    path = path_of(words.source)
    is_made = path.name == FILE_NAME or (path / FILE_NAME).is_file()
    size = Tokenizer.load(path).vocab_size if is_made else words.size
    model = registry.build(choice.name, size, seed=choice.seed, **choice.options)
    return train_only(model, choice.trained)


def checkpoint_bytes(experiment: Experiment, weights: int) -> int:
    """How much all checkpoints take that a run with so many weights keeps."""
    state = assembly.server_optimizer(experiment).initial(weights)
    each = 4 * weights + sum(array.nbytes for array in state.values())
    kept = sum(experiment.keeps_checkpoint(round) for round in range(experiment.rounds + 1))
    return each * (kept + 2)  # and the last two


def available_memory() -> int | None:
    """Bytes that processes may still use, as Linux estimates them; None where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else None


def _refuse_without_memory(weights: int, vectors: int) -> None:
    available = available_memory()
    needed = weights * (BYTES_PER_WEIGHT + vectors * BYTES_PER_NOISE)
    if available is None or needed <= available:
        return
    kept = f" with {_count(vectors)} of earlier noise" if vectors else ""
    fewer = "plan.bands or plan.buffers, or " if vectors else ""
    raise ValueError(
        f"a model of {weights:,} weights{kept} needs at least {_size(needed)} of memory to train,"
        f" and {_size(available)} are free; choose {fewer}a smaller one with --set model.options..."
    )


def _refuse_without_disk(experiment: Experiment, weights: int, run: Path) -> None:
    folder = next(path for path in run.absolute().parents if path.exists())
    free, needed = shutil.disk_usage(folder).free, checkpoint_bytes(experiment, weights)
    if needed > free:
        raise ValueError(
            f"the checkpoints of {experiment.rounds:,} rounds need about {_size(needed)}, and"
            f" {folder} has {_size(free)} free; name another --run, or keep fewer with --set"
            f" evaluation.snapshot_every={experiment.rounds}"
        )


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


def _count(vectors: int) -> str:
    return "1 vector" if vectors == 1 else f"{vectors:,} vectors"
