"""The CRF against its definition: the sum over every sequence of tags."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, vmap

from tacit.models.understanding import LinearChainCrf


def random_crf(tags: int, seed: int, scale: float = 1.0) -> LinearChainCrf:
    generator = torch.Generator().manual_seed(seed)
    crf = LinearChainCrf(tags).double()
    with torch.no_grad():
        for values in crf.parameters():
            values.normal_(0, scale, generator=generator)
    return crf


def score(crf: LinearChainCrf, emissions: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
    """s(y), term by term as the module's docstring writes it."""
    terms = [crf.start[path[0]], crf.end[path[-1]]]
    terms += [emissions[place, tag] for place, tag in enumerate(path)]
    terms += [crf.transitions[before, after] for before, after in pairwise(path)]
    return torch.stack(terms).sum()


def every_score(crf: LinearChainCrf, emissions: torch.Tensor):
    """Each sequence of tags of one utterance, and its score."""
    paths = list(product(range(crf.tags), repeat=len(emissions)))
    return paths, torch.stack([score(crf, emissions, path) for path in paths])


@st.composite
def cases(draw):
    """A CRF, and utterances of different lengths in a batch with rubbish in the padding."""
    tags, longest = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=3))
    time = longest + draw(st.integers(0, 2))
    seed, scale = draw(st.integers(0, 10**6)), draw(st.sampled_from([0.1, 1.0, 10.0, 100.0]))
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), time, tags)
    emissions = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    chosen = torch.randint(tags, shape[:2], generator=generator)
    mask = torch.arange(time) < torch.tensor(lengths)[:, None]
    rubbish = draw(st.sampled_from([0.0, 1e30, -1e30, torch.inf, torch.nan]))
    emissions = emissions.masked_fill(~mask[..., None], rubbish)
    chosen = chosen.masked_fill(~mask, draw(st.sampled_from([0, -100, 10**9])))
    return random_crf(tags, seed, scale), emissions, chosen, mask


@given(cases())
@settings(max_examples=60, deadline=None)
def test_likelihood_is_the_share_of_the_sum_over_all_sequences(case):
    crf, emissions, chosen, mask = case
    found = crf(emissions, chosen, mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        _, scores = every_score(crf, emissions[row, :length])
        path = tuple(chosen[row, :length].tolist())
        expected = score(crf, emissions[row, :length], path) - scores.logsumexp(0)
        torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-9)


@given(cases())
@settings(max_examples=60, deadline=None)
def test_decoding_finds_a_sequence_with_the_highest_score(case):
    crf, emissions, _, mask = case
    found = crf.decode(emissions, mask)
    assert [len(row) for row in found] == mask.sum(1).tolist()
    for row, path in enumerate(found):
        own = emissions[row, : len(path)]
        _, scores = every_score(crf, own)
        torch.testing.assert_close(score(crf, own, tuple(path)), scores.max())


@given(cases())
@settings(max_examples=40, deadline=None)
def test_marginals_are_sums_over_the_sequences_with_that_tag(case):
    crf, emissions, _, mask = case
    found = crf.marginals(emissions, mask)
    assert not found.requires_grad
    assert (found[~mask] == 0).all()
    for row, length in enumerate(mask.sum(1).tolist()):
        paths, scores = every_score(crf, emissions[row, :length])
        shares, every = scores.softmax(0), torch.tensor(paths)
        for tag in range(crf.tags):
            expected = ((every == tag) * shares[:, None]).sum(0)
            torch.testing.assert_close(found[row, :length, tag], expected, atol=1e-9, rtol=1e-7)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_no_gradient_comes_from_padding(case):
    crf, emissions, chosen, mask = case
    emissions.requires_grad_()
    crf(emissions, chosen, mask).sum().backward()
    assert (emissions.grad[~mask] == 0).all()
    assert all(values.grad.isfinite().all() for values in crf.parameters())
    together = [values.grad.clone() for values in crf.parameters()]
    crf.zero_grad()
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = slice(row, row + 1), slice(length)
        crf(emissions[alone], chosen[alone], mask[alone]).sum().backward()
    for values, expected in zip(crf.parameters(), together, strict=True):
        torch.testing.assert_close(values.grad, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("apart", [10.0, 59.0, 61.0, 500.0])
def test_float32_is_enough_even_where_transitions_are_far_apart(apart):
    # The likely way in leads through an unlikely tag: what a careless product would round to 0.
    crf = LinearChainCrf(2)
    with torch.no_grad():
        crf.transitions.copy_(torch.tensor([[0.0, -apart], [0.0, 0.0]]))
    emissions = torch.tensor([[[0.0, -apart], [-2 * apart, 0.0]]], requires_grad=True)
    tags, mask = torch.tensor([[0, 1]]), torch.ones(1, 2, dtype=torch.bool)
    found = crf(emissions, tags, mask)  # 0 then 1 and 1 then 1 score -apart each, the others less
    torch.testing.assert_close(found, torch.tensor([0.5]).log(), rtol=1e-4, atol=1e-4)
    found.sum().backward()
    assert all(values.grad.isfinite().all() for values in [emissions, *crf.parameters()])


def test_gradients_of_each_example_by_vmap_are_those_of_one_at_a_time():
    crf = random_crf(4, seed=3)
    generator = torch.Generator().manual_seed(1)
    emissions = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    tags = torch.randint(4, (3, 5), generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 1, 3])[:, None]

    def likelihood(parameters, *example):
        return functional_call(crf, parameters, tuple(part[None] for part in example))[0]

    parameters = dict(crf.named_parameters())
    found = vmap(grad(likelihood), in_dims=(None, 0, 0, 0))(parameters, emissions, tags, mask)
    for row in range(3):
        crf.zero_grad()
        crf(emissions[row : row + 1], tags[row : row + 1], mask[row : row + 1]).backward()
        for name, values in crf.named_parameters():
            torch.testing.assert_close(found[name][row], values.grad)


def test_it_begins_with_every_sequence_as_likely():
    crf, mask = LinearChainCrf(3), torch.ones(1, 4, dtype=torch.bool)
    found = crf(torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64), mask)
    torch.testing.assert_close(found, -4 * torch.tensor([3.0]).log())


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3), (2, 2, 4), (2, 0, 4)])
def test_shapes_that_do_not_fit_are_refused(shape):
    mask = torch.ones(2, min(shape[1], 3), dtype=torch.bool)
    if shape == (2, 2, 4):
        mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"emissions must have the shape \[batch, time, 4\]"):
        LinearChainCrf(4).decode(torch.zeros(shape), mask)


def test_no_tags_are_refused():
    with pytest.raises(ValueError, match="tags must be between 1 and"):
        LinearChainCrf(0)
