"""Step by step a decoder says what the model says of each whole text, however rows are moved."""

import pytest
import torch

from tacit.evaluation.decoder import Output, _TiedHead, decoder_for, most_rows
from tacit.models.layers import TiedConfig, TiedEmbedding
from tacit.models.recurrent import LSTM
from tacit.models.registry import build
from tests.evaluation.tiny import SIZES, Table, tiny

BOS = 0
WORDS = 7


class OwnForward(LSTM):
    """A recurrent model with a forward of its own, of which only the interface is known."""

    def forward(self, tokens, state=None, context=None):
        scores, state = super().forward(tokens, state, context)
        return scores + 1, state


def rich():
    """Several layers, a context, and a bias."""
    model = build("cifg", WORDS, embedding_size=4, cells=5, layers=3, context_size=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.double()


TABLE = torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(4))
MODELS = {kind: tiny(kind) for kind in SIZES} | {
    "own": OwnForward(build("lstm", WORDS, **SIZES["lstm"]).config).double(),
    "rich": rich(),
    "table": Table(TABLE),
    "whole-text-table": Table(TABLE, carry=False),
}


def whole(model, text):
    """The logits after a text, from its beginning."""
    with torch.no_grad():
        return model(torch.tensor([text]))[0][0, -1]


def assert_says(decoder, model, texts):
    expected = torch.stack([whole(model, text) for text in texts])
    torch.testing.assert_close(decoder.output.logits().clone(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("longest", [None, 20])
@pytest.mark.parametrize("name", list(MODELS))
def test_every_step_is_that_of_the_whole_text_and_a_row_may_begin_another(name, longest):
    model = MODELS[name].eval()
    tokens = torch.randint(1, WORDS, (16, 3), generator=torch.Generator().manual_seed(0))
    decoder = decoder_for(model, 3, longest=longest)
    texts = [[BOS]] * 3
    decoder.advance(torch.full((3,), BOS), torch.arange(3))
    for step, row in enumerate(tokens):
        assert_says(decoder, model, texts)
        begun = torch.tensor([step % 3] if step in (4, 5, 9) else [], dtype=torch.int64)
        row[begun] = BOS
        texts = [[*text, int(token)] for text, token in zip(texts, row, strict=True)]
        for index in begun.tolist():
            texts[index] = [BOS]
        decoder.advance(row, begun)
    assert_says(decoder, model, texts)


@pytest.mark.parametrize("longest", [None, 12])
@pytest.mark.parametrize("name", list(MODELS))
def test_rows_that_are_taken_go_their_own_way(name, longest):
    model = MODELS[name].eval()
    blank = decoder_for(model, longest=longest)
    decoder = blank.take(torch.zeros(3, dtype=torch.int64))
    for column in torch.tensor([[BOS] * 3, [3, 4, 5]]):
        decoder.advance(column)
    branch = decoder.take(torch.tensor([2, 0, 2, 1]))
    branch.advance(torch.tensor([6, 5, 4, 3]))
    assert_says(decoder, model, [[BOS, 3], [BOS, 4], [BOS, 5]])
    assert_says(branch, model, [[BOS, 5, 6], [BOS, 3, 5], [BOS, 5, 4], [BOS, 4, 3]])
    decoder.advance(torch.tensor([2, 2, 2]))
    assert_says(branch, model, [[BOS, 5, 6], [BOS, 3, 5], [BOS, 5, 4], [BOS, 4, 3]])
    assert_says(decoder, model, [[BOS, 3, 2], [BOS, 4, 2], [BOS, 5, 2]])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("has_head", [True, False])
def test_some_logits_are_those_of_all_words(bias, has_head):
    generator = torch.Generator().manual_seed(1)
    embedding = TiedEmbedding(TiedConfig(50, 6, output_bias=bias), generator)
    vectors = torch.randn(4, 6, generator=generator)
    with torch.no_grad():
        if bias:
            embedding.output_bias.normal_(generator=generator)
        logits = embedding.score(vectors)
    output = Output(vectors, _TiedHead(embedding)) if has_head else Output(logits)
    rows, words = torch.tensor([3, 0, 0, 2]), torch.tensor([49, 7, 8, 0])
    torch.testing.assert_close(output.logits(), logits)
    torch.testing.assert_close(output.logits_at(rows, words), logits[rows, words])
    torch.testing.assert_close(output.logits_among(words), logits[:, words])
    torch.testing.assert_close(output.take(rows).logits(), logits[rows])
    assert len(output) == 4


def test_rows_are_bounded_by_what_is_kept_or_computed_for_each():
    assert most_rows(MODELS["lstm"], 100) > 10**9
    assert most_rows(MODELS["whole-text-table"], 100) == 10
    assert most_rows(MODELS["transformer-14m"], 2**20) == 1
    assert most_rows(MODELS["transformer-14m"], 2**10) == 2**10
