"""CLC: each utterance by itself, whatever stands beside it, and gradients of each example."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tacit.models.clc import PADDING, Clc, ClcConfig, _CharCnn, _TwoWayLstm
from tacit.models.understanding import UtteranceBatch

SIZES = {"word_size": 5, "character_size": 3, "filters": 4, "hidden": 6}
CONFIG = ClcConfig(words=9, characters=8, intents=3, tags=5, **SIZES, dropout=0.0, word_dropout=0.0)


def small(seed: int = 0, **changes) -> Clc:
    """In float64, with a CRF that has learnt something, so that equal means equal."""
    fields = {"words": 9, "characters": 8, "intents": 3, "tags": 5, **SIZES}
    fields |= {"dropout": 0.0, "word_dropout": 0.0, **changes}
    model = Clc(ClcConfig(**fields), seed=seed).double()
    with torch.no_grad():
        for values in model.crf.parameters():
            values.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def batch(lengths: list[int], time: int, letters: int = 4, seed: int = 0) -> UtteranceBatch:
    """Utterances of these lengths with random words and labels; all padding is zeros."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), time)
    mask = torch.arange(time) < torch.tensor(lengths)[:, None]
    spelt = torch.randint(1, letters + 1, shape, generator=generator) * mask
    characters = torch.randint(1, 8, (*shape, letters), generator=generator)
    characters = characters * (torch.arange(letters) < spelt[..., None])
    words = torch.randint(9, shape, generator=generator) * mask
    tags = torch.randint(5, shape, generator=generator) * mask
    intents = torch.randint(3, shape[:1], generator=generator)
    return UtteranceBatch({"words": words, "characters": characters}, mask, tags, intents)


def alone(together: UtteranceBatch, row: int) -> UtteranceBatch:
    """One utterance without any padding."""
    length = int(together.mask[row].sum())
    cut = (slice(row, row + 1), slice(length))
    characters = together.inputs["characters"][cut]
    longest = int((characters != PADDING).sum(2).max())
    inputs = {"words": together.inputs["words"][cut], "characters": characters[..., :longest]}
    return UtteranceBatch(
        inputs, together.mask[cut], together.tags[cut], together.intents[row : row + 1]
    )


def gradients(model: Clc, of: UtteranceBatch) -> list[torch.Tensor]:
    model.zero_grad()
    model(of).sum().backward()
    return [values.grad.clone() for values in model.parameters()]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_loss_and_gradient_in_a_batch_are_those_of_the_utterances_alone(lengths, extra, seed):
    model, together = small(seed), batch(lengths, max(lengths) + extra, seed=seed)
    parts = [alone(together, row) for row in range(len(lengths))]
    expected = torch.cat([model(part) for part in parts])
    torch.testing.assert_close(model(together), expected)
    summed = [sum(each) for each in zip(*(gradients(model, part) for part in parts), strict=True)]
    for found, wanted in zip(gradients(model, together), summed, strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_stands_in_padding_is_not_felt():
    model, clean = small(), batch([2, 4], 5)
    words = clean.inputs["words"].masked_fill(~clean.mask, 7)
    characters = clean.inputs["characters"].masked_fill(~clean.mask[..., None], 6)
    inputs = {"words": words, "characters": characters}
    dirty = UtteranceBatch(
        inputs, clean.mask, clean.tags.masked_fill(~clean.mask, 3), clean.intents
    )
    torch.testing.assert_close(model(dirty), model(clean))
    for found, wanted in zip(gradients(model, dirty), gradients(model, clean), strict=True):
        torch.testing.assert_close(found, wanted)


def test_every_token_is_felt_by_every_tag_and_by_the_intent():
    """The other side of isolation: a layer in one direction only, say, would fail here."""
    model, one = small(), batch([4], 4)
    before = model.scores(one.inputs, one.mask)
    for name, places in (("words", 4), ("characters", 4)):
        for place in range(places):
            inputs = {key: values.clone() for key, values in one.inputs.items()}
            changed = inputs[name][0, place]
            changed.copy_((changed + 1) % 7 + 1 if name == "words" else (changed % 7) + 1)
            after = model.scores(inputs, one.mask)
            assert ((after.emissions - before.emissions).abs().sum(2) > 0).all()
            assert (after.intents != before.intents).any()


def test_two_way_layer_is_torchs_own_bidirectional_one():
    torch.manual_seed(0)
    ours, theirs = _TwoWayLstm(3, 4), nn.LSTM(3, 4, bidirectional=True, batch_first=True)
    onward, backward = ours.from_start.state_dict(), ours.from_end.state_dict()
    theirs.load_state_dict(onward | {f"{name}_reverse": kept for name, kept in backward.items()})
    values = torch.randn(2, 5, 3)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    found = ours(values, mask)
    torch.testing.assert_close(found[:1], theirs(values[:1])[0])
    torch.testing.assert_close(found[1:, :3], theirs(values[1:, :3])[0])
    assert (found[1, 3:] == 0).all()


def test_a_word_has_the_same_vector_wherever_it_stands_and_however_it_is_padded():
    torch.manual_seed(0)
    cnn = _CharCnn(9, size=3, filters=6, width=5)
    word, other = [3, 4, 5], [6, 7]

    def padded(*spelt):
        longest = max(map(len, spelt))
        return torch.tensor([[each + [PADDING] * (longest - len(each)) for each in spelt]])

    vector = cnn(padded(word))[0, 0]
    assert vector.max() > 0
    torch.testing.assert_close(cnn(padded(other, word, other))[0, 1], vector)
    torch.testing.assert_close(cnn(padded(word, [1] * 7))[0, 0], vector)
    assert not torch.allclose(cnn(padded(word[::-1]))[0, 0], vector)
    assert (cnn(padded(word, []))[0, 1] == 0).all()


def test_vectors_of_words_are_the_largest_answers_of_the_filters():
    torch.manual_seed(0)
    cnn = _CharCnn(9, size=2, filters=4, width=3)
    spelt = [3, 8, 1]
    vectors = [torch.zeros(2), *cnn.embedding(torch.tensor(spelt)), torch.zeros(2)]
    weight, bias = cnn.convolution.weight, cnn.convolution.bias
    answers = [
        bias + sum(weight[:, :, at] @ vectors[place + at] for at in range(3)) for place in range(3)
    ]
    expected = torch.stack(answers).relu().amax(0)
    torch.testing.assert_close(cnn(torch.tensor([[spelt]]))[0, 0], expected)


def test_gradients_of_each_example_with_opacus_are_those_of_one_at_a_time():
    """With its DPLSTM in our LSTM's place; the CRF, which Opacus does not know, stays frozen."""
    opacus = pytest.importorskip("opacus")
    from opacus.validators import ModuleValidator

    model, together = small(), batch([2, 5, 1, 4], 5)
    for values in model.crf.parameters():
        values.requires_grad_(False)
    private = ModuleValidator.fix(model).double()  # what it exchanges is float32
    assert "DPLSTM" in repr(private)
    torch.testing.assert_close(private(together), model(together))
    sampled = opacus.GradSampleModule(private)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampled(together).mean().backward()
    found = {
        name.removeprefix("_module."): values.grad_sample
        for name, values in sampled.named_parameters()
        if values.requires_grad
    }
    for row in range(4):
        model.zero_grad()
        model(alone(together, row)).sum().backward()
        for name, values in model.named_parameters():
            if values.requires_grad:
                torch.testing.assert_close(found[name][row], values.grad, msg=f"{name}, {row}")


def test_dropout_is_drawn_from_torchs_generator_and_only_in_training():
    model, one = small(dropout=0.5, word_dropout=0.3), batch([3, 4], 4)
    torch.manual_seed(1)
    first, second = model(one), model(one)
    torch.manual_seed(1)
    assert torch.equal(model(one), first)
    assert not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(one), model(one))


def test_dropout_of_an_utterance_does_not_depend_on_padding():
    model, one = small(dropout=0.5), batch([3], 3)
    wider = batch([3], 3).inputs
    inputs = {
        "words": nn.functional.pad(wider["words"], (0, 4)),
        "characters": nn.functional.pad(wider["characters"], (0, 2, 0, 4)),
    }
    mask, tags = (nn.functional.pad(each, (0, 4)) for each in (one.mask, one.tags))
    torch.manual_seed(5)
    expected = model(one)
    torch.manual_seed(5)
    torch.testing.assert_close(model(UtteranceBatch(inputs, mask, tags, one.intents)), expected)


def test_word_dropout_replaces_about_its_share_of_words_by_the_unknown():
    model = small(word_dropout=0.25, hidden=2)
    seen = []
    model.words.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    words = torch.full((50, 80), 3)
    inputs = {"words": words, "characters": torch.ones(50, 80, 1, dtype=torch.int64)}
    torch.manual_seed(0)
    model.scores(inputs, torch.ones(50, 80, dtype=torch.bool))
    share = (seen[0] == 0).double().mean().item()
    assert set(seen[0].unique().tolist()) == {0, 3}
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5  # alarms once in 1.7 million


def test_initial_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(1)
    first = Clc(CONFIG, seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    again, other = Clc(CONFIG, seed=3), Clc(CONFIG, seed=4)
    for ours, same in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, same)
    assert not torch.equal(first.words.weight, other.words.weight)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)  # making a model draws nothing


def test_it_learns_what_depends_on_neighbours_and_spelling():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 9, (64, 5), generator=generator)
    characters = torch.randint(1, 8, (64, 5, 3), generator=generator)
    mask = torch.ones(64, 5, dtype=torch.bool)
    after = torch.cat([words[:, 1:], words[:, :1]], dim=1)
    tags = (characters == 2).any(2) + 2 * (after > 4)
    intents = (words == 3).any(1).long()
    examples = UtteranceBatch({"words": words, "characters": characters}, mask, tags, intents)
    model = Clc(
        ClcConfig(9, 8, 2, 4, word_size=8, character_size=8, filters=16, hidden=16, dropout=0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    first = model(examples).mean().item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(examples).mean()
        loss.backward()
        optimizer.step()
    assert first > 5
    model.eval()
    found, paths = model.decode(examples.inputs, mask)
    assert (found == intents).double().mean() > 0.95
    assert (torch.tensor(paths) == tags).double().mean() > 0.95


def test_frozen_words_stay_and_all_else_is_trained():
    frozen = Clc(ClcConfig(9, 8, 3, 5, **SIZES, freeze_words=True))
    frozen(batch([3, 2], 3)).sum().backward()
    names = [name for name, values in frozen.named_parameters() if values.grad is None]
    assert names == ["words.weight"]
    assert not frozen.words.weight.requires_grad


def test_word_vectors_replace_those_that_were_found_only():
    model = Clc(ClcConfig(4, 8, 3, 5, **SIZES), seed=1)
    before = model.words.weight.detach().clone()
    values = torch.arange(15.0).reshape(3, 5).numpy()
    for word in (1, 3):
        model.set_word_vector(word, values[word - 1])
    after = model.words.weight.detach()
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert torch.equal(after[[1, 3]], torch.from_numpy(values)[[0, 2]])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("words", 0, "words must be between 1"),
        ("hidden", 2.5, "hidden must be a whole number"),
        ("layers", 0, "layers must be between 1 and 100"),
        ("width", 4, "width must be odd"),
        ("dropout", 1.0, "dropout must be at least 0 and below 1"),
        ("dropout", float("nan"), "dropout must be at least 0 and below 1"),
        ("word_dropout", "0.5", "word_dropout must be at least 0 and below 1"),
        ("freeze_words", 1, "freeze_words must be true or false"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        Clc(ClcConfig(**{"words": 9, "characters": 8, "intents": 3, "tags": 5, field: value}))
