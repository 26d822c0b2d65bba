"""The commands of `tacit papers`, each named for what its paper compares."""

from __future__ import annotations

import typer

from tacit_papers.bagdasaryan2022 import command as tokenizers
from tacit_papers.bagdasaryan2022 import hitters_command as hitters
from tacit_papers.dupuy2021 import command as nlu
from tacit_papers.dupuy2021 import pretrain_bert
from tacit_papers.mcmahan2018 import command as head_words
from tacit_papers.thakkar2020 import command as secret_sharer

app = typer.Typer(
    help="Reproduce the tables and figures of published experiments.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("secret-sharer", epilog=secret_sharer.EXAMPLES)(secret_sharer.secret_sharer)
app.command("nlu", epilog=nlu.EXAMPLES)(nlu.compare)
app.command("pretrain-bert", epilog=pretrain_bert.EXAMPLES)(pretrain_bert.pretrain_bert)
app.command("tokenizers", epilog=tokenizers.EXAMPLES)(tokenizers.compare)
app.command("heavy-hitters", epilog=hitters.EXAMPLES)(hitters.heavy_hitters)
app.command("head-words", epilog=head_words.EXAMPLES)(head_words.head_words)
