"""Attacks find the training utterances of a model that memorized them, and of no other model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tacit.audit.membership import LEFT_OUT
from tacit.audit.nlu import AskedUtterances, attack_utterances, choose_a
from tacit.audit.nlu_shadow import Shadow
from tacit.tasks.nlu.generated import generated_utterances
from tacit.tasks.nlu.predictions import Scored
from tacit.tasks.nlu.utterances import attack_roles

STEPS = 80


class BagOfWords(nn.Module):
    """An intent from the mean of word vectors, a tag from those of a token and the one before."""

    def __init__(self, train, steps, seed):
        super().__init__()
        self.words = {
            word: 2 + i for i, word in enumerate(sorted({w for u in train for w in u.tokens}))
        }
        self.intents = sorted({each.intent for each in train})
        self.tags = sorted({tag for each in train for tag in each.tags})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.vectors = nn.Embedding(len(self.words) + 2, 48)
            self.intent = nn.Linear(48, len(self.intents))
            self.tag = nn.Linear(96, len(self.tags))
        if steps:
            self._fit(train, steps)

    def _fit(self, train, steps):
        intents = torch.tensor([self.intents.index(each.intent) for each in train])
        tags = torch.tensor([self.tags.index(tag) for each in train for tag in each.tags])
        optimizer = torch.optim.Adam(self.parameters(), lr=0.03)
        for _ in range(steps):
            by_intent, by_tag = self(train)
            loss = nn.functional.cross_entropy(by_intent, intents)
            loss = loss + nn.functional.cross_entropy(by_tag, tags)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def forward(self, utterances):
        """Logits of intents, [n, I], and of the tags of all tokens together, [tokens, K]."""
        ids = [[self.words.get(word, 1) for word in each.tokens] for each in utterances]
        owners = torch.tensor([i for i, each in enumerate(ids) for _ in each])
        here = self.vectors(torch.tensor([one for each in ids for one in each]))
        before = self.vectors(torch.tensor([one for each in ids for one in [0, *each[:-1]]]))
        sums = torch.zeros(len(ids), 48).index_add(0, owners, here)
        means = sums / torch.tensor([[len(each)] for each in ids])
        return self.intent(means), self.tag(torch.cat([here, before], dim=1))

    @torch.no_grad()
    def scored(self, utterances) -> Scored:
        by_intent, by_tag = (each.double().log_softmax(dim=1) for each in self(utterances))
        tokens, likelihood, first = [], [], 0
        for place, each in enumerate(utterances):
            mine = by_tag[first : first + len(each.tokens)]
            first += len(each.tokens)
            tokens.append(mine.max(dim=1).values.exp().numpy())
            known = each.intent in self.intents and set(each.tags) <= set(self.tags)
            likelihood.append(
                float(by_intent[place, self.intents.index(each.intent)])
                + sum(
                    float(row[self.tags.index(tag)])
                    for row, tag in zip(mine, each.tags, strict=True)
                )
                if known
                else np.nan
            )
        return Scored(by_intent.exp().numpy(), tuple(tokens), np.array(likelihood))


@pytest.fixture(scope="module")
def corpora():
    """Two with no intent in common: the attacker's, and the target's with some to spare."""
    every = generated_utterances("generated:utterances=2500,seed=8")
    names = sorted({each.intent for each in every})
    mine = [each for each in every if each.intent in names[::2]]
    theirs = [each for each in every if each.intent not in names[::2]]
    return (mine[:200], mine[200:400]), (theirs[:200], theirs[200:900], theirs[900:1100])


@pytest.fixture(scope="module")
def attacked(corpora):
    """A function of a target: the result of all attacks on it, as if it were trained on `train`."""
    (shadow_train, shadow_test), (train, test, _) = corpora
    shadow_model = BagOfWords(shadow_train, STEPS, seed=1)
    shadow = Shadow("other intents", *map(shadow_model.scored, (shadow_train, shadow_test)))
    roles = attack_roles(test, references=2)
    references = [
        BagOfWords(part, STEPS, seed=2 + place) for place, part in enumerate(roles.references)
    ]
    trained = [[each.scored(part) for each in references] for part in roles.references]
    a = choose_a(trained, [each.scored(roles.population) for each in references])

    def of(target, confidence):
        def seen(utterances):
            scores = tuple(each.scored(utterances) for each in references)
            return AskedUtterances(tuple(utterances), target.scored(utterances), scores)

        return attack_utterances(
            seen(train),
            seen(roles.non_members),
            population=seen(roles.population),
            seen_by_references=roles.seen,
            shadows=[shadow],
            a=a,
            confidence=confidence,
        )

    return of


def test_members_of_an_overfitted_model_are_found(attacked, corpora):
    result = attacked(BagOfWords(corpora[1][0], STEPS, seed=9), 0.95)
    for name in ("shadow", "rmia", "loss"):
        figure = result.figure(name, LEFT_OUT)
        assert figure.auc > 0.6, name
        assert figure.auc_interval[0] > 0.55, name
    assert set(result.stated) == {"paper", "strongest"}


@pytest.mark.parametrize("steps", [0, STEPS], ids=["nothing", "others"])
def test_nobody_is_a_member_of_a_model_that_met_nobody(attacked, corpora, steps):
    result = attacked(BagOfWords(corpora[1][2], steps, seed=9), 0.999)
    for found in result.attacks:  # 8 of them: a false alarm in 125 draws at most
        low, high = found.auc_interval
        assert low < 0.5 < high, found.name
        assert high < 0.65
