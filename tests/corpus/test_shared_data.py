"""The corpora for tests, where they are there: each ingests with one command."""

from pathlib import Path

import pytest

from tacit.corpus.grouping import UserOptions
from tacit.corpus.ingest import ingest

DATA = Path(__file__).parents[3] / "shared" / "data"
slow = pytest.mark.slow

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared corpora are not here")

# input, options, users, words (None: not known beforehand)
CORPORA = [
    ("ubuntu_irc/*.jsonl.gz", {"skip_bad_rows": True}, 16_916, 2_164_704),
    ("shakespeare/*.jsonl.gz", {}, 1410, 813_131),
    ("shakespeare/tinyshakespeare.txt.gz", {}, 1, 202_651),
    ("wikitext/*.txt.gz", {}, 3, None),
    ("wordfreq/*.tsv.gz", {"format": "text"}, 1, 120_000),
    ("atis/*/seq.in.gz", {"format": "text"}, 3, 65_364),
    ("snips/*/seq.in.gz", {"format": "text"}, 3, 130_438),
    ("nlu_eval/*.jsonl.gz", {"user_column": "intent", "text_column": "raw"}, 64, None),
    pytest.param("classics/*.jsonl.gz", {}, 364, 6_958_290, marks=slow),
    pytest.param("scotus/*.jsonl.gz", {}, 9325, 15_888_541, marks=slow),
]


@pytest.mark.parametrize(("pattern", "options", "users", "words"), CORPORA)
def test_every_corpus_ingests_with_one_call(tmp_path, pattern, options, users, words):
    corpus = ingest(
        str(DATA / pattern), tmp_path / "out", options=UserOptions(held_out_fraction=0), **options
    )
    info = corpus.info()
    assert info["users"] == users
    assert words in (None, info["words"])
    assert len(corpus.train) + len(corpus.test) == users
