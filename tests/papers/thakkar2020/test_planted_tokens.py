"""The cache that arms share is the one that a run would build for itself."""

import pytest

from tacit.tasks.language import assembly
from tacit.tasks.language.people import People
from tacit.tokenizers.cache import TokenCache
from tacit_papers.thakkar2020.planted_tokens import planted_tokens
from tests.papers.thakkar2020.small_grid import small_grid


@pytest.mark.parametrize("view", ["users", "iid"])
def test_a_run_would_find_the_same_tokens_under_the_same_name(folder, tmp_path, view):
    common = small_grid(folder).common().changed(corpus={"view": view, "max_tokens_per_user": 17})
    people = People.of(common)
    tokenizer = assembly.tokenizer_of(common, people.users).tokenizer
    found = planted_tokens(people, common, tokenizer, tmp_path)
    slow = TokenCache.open_or_build(
        people.view(common, tokenizer), tokenizer, tmp_path / "slow", max_tokens_per_user=17
    )
    assert found.path.parent == folder / "corpus"  # beside the corpus, where a run looks
    assert found.path.name == slow.path.name
    for user in range(len(slow)):
        assert found.tokens(user).tolist() == slow.tokens(user).tolist()


def test_the_two_views_have_caches_of_their_own(folder, tmp_path):
    common = small_grid(folder).common()
    people = People.of(common)
    tokenizer = assembly.tokenizer_of(common, people.users).tokenizer
    made = [
        planted_tokens(people, common.changed(corpus={"view": view}), tokenizer, tmp_path)
        for view in ("users", "iid")
    ]
    assert made[0].path != made[1].path
    assert any(
        made[0].tokens(u).tolist() != made[1].tokens(u).tolist() for u in range(len(made[0]))
    )
