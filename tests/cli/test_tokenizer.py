"""`tacit tokenizer train|sample|swap`: what they make, what they say, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch

from tacit.models import weights
from tacit.privacy.ledger import Ledger
from tacit.privacy.visible import visible
from tacit.runs.checkpoints import Checkpoints
from tacit.runs.run import Run
from tacit.tasks.task import State
from tacit.tokenizers import build, provenance
from tacit.tokenizers.history import LearntTokenizer
from tacit.tokenizers.tokenizer import Tokenizer
from tacit.train import train
from tests.cli.training import TINY
from tests.cli.training import tacit as tacit_command
from tests.runs.small import WORDS, experiment, make_folder

SIZE = 265  # BOS, EOS, the 256 bytes, and a few merges
TEXT = ["Don't run, the dog sleeps.", "Größe 🙂 \u0000 x", ""]
FEW = ["--tokens", 300, "--max-length", 12]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A corpus whose register no other test looks at, a public text, and BPE from it."""
    folder = make_folder(tmp_path_factory.mktemp("tokenizers"))
    (folder / "public.txt").write_text("\n".join([" ".join(WORDS)] * 3 + ["zebra and zebra ."]))
    made = build.learn("bpe", [" ".join(WORDS)] * 3, 262, provenance=provenance.public("words"))
    made.save(folder / "bpe" / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def bpe_run(own):
    """Four rounds with a byte-level tokenizer, from a seed."""
    changes = {"rounds": 4, "tokenizer": {"source": str(own / "bpe"), "kind": "bpe"}}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    train(experiment(own, **changes, evaluation={"snapshot_every": 2}), own / "run")
    torch.set_num_threads(before)
    return own / "run"


@pytest.fixture
def tacit(command):
    return command("tokenizer")


@pytest.fixture
def out(tmp_path):
    """Where a tokenizer is to be made; after a mistake nothing is left there."""
    return tmp_path / "out"


def learnt(tacit, out, *words):
    row = tacit.json("train", out, "--size", SIZE, *words)
    return row, LearntTokenizer.load(out)


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_it_is_a_file_that_the_plain_library_reads_with_the_same_ids(tacit, out, bpe_run):
    row, made = learnt(tacit, out, "--from", bpe_run, *FEW, "--seed", 1)
    plain = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    for text in TEXT:
        assert plain.encode(text).ids == made.tokenizer.encode(text)
    assert row["kind"] == made.tokenizer.kind == "bpe"
    assert row["size"] == made.tokenizer.vocab_size == plain.get_vocab_size() <= SIZE
    assert row["words"] == len(made.words) > 0


def test_what_a_model_says_costs_nothing_more(tacit, out, bpe_run):
    row, made = learnt(tacit, out, "--from", f"{bpe_run}@2", *FEW)
    assert row["provenance"].startswith("post-processing: 300 tokens sampled from the model")
    assert row["voids_guarantee"] is None
    two_rounds = made.history.ledger
    assert len(two_rounds.entries) == 1 + 2 + 1 < len(Run.open(bpe_run).ledger.entries)
    cost, origin = row["released_before"], row["origin"]
    assert 0 < cost["epsilon"] < Run.open(bpe_run).guarantee().epsilon["rdp"]
    assert (cost["delta"], cost["unit"], cost["accountant"]) == (1e-3, "user", "rdp")
    assert origin["part"] == ""
    assert two_rounds.header.simulation
    said = tacit.says("train", out.with_name("other"), "--from", f"{bpe_run}@2", *FEW)
    assert "user-level, add/remove" in said
    assert "the tokenizer costs nothing more." in said
    assert "A simulation, not for release." in said
    assert f"--set tokenizer.source={out.with_name('other')}" in said.replace(" ", "").replace(
        "--set", "--set "
    )


def test_a_seed_repeats_the_tokenizer_and_another_does_not(tacit, out, bpe_run):
    made = [
        learnt(tacit, out.with_name(str(place)), "--from", bpe_run, *FEW, "--seed", seed)[1]
        for place, seed in enumerate([1, 1, 2])
    ]
    assert made[0].words == made[1].words != made[2].words
    first, second = (out.with_name(name) / "tokenizer.json" for name in "01")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "word", "wordpiece", "char"])
def test_public_text_makes_every_kind_and_owes_nobody(tacit, own, out, kind):
    row, made = learnt(tacit, out, "--public", own / "public.txt", "--kind", kind)
    assert (row["kind"], row["origin"], row["released_before"]) == (kind, None, None)
    assert row["provenance"].startswith("public: public.txt (sha256 ")
    assert made.words["zebra"] == 2
    assert sorted(path.name for path in out.iterdir()) == ["tokenizer.json", "words.tsv.gz"]


def test_an_oracle_says_that_it_voids_everything_and_train_wants_that_accepted(tacit, own, out):
    words = ["--oracle", own / "corpus", "--part", "1/2", "--size", SIZE]
    assert "It voids every guarantee: its vocabulary was learnt" in tacit.says("train", out, *words)
    settings = [*TINY, "--set", f"tokenizer.source={out}", "--rounds", 2]
    run = out.with_name("run")
    code, _, err = tacit_command("train", "mcmahan2018", "--run", run, *settings)
    assert code == 2
    assert "voids every guarantee" in err
    assert "accept_oracle = true" in err
    assert not run.exists()


def test_partition_selection_takes_300_words_of_each_user(tacit, out):
    corpus = make_folder(out.with_name("users")) / "corpus"
    row, made = learnt(tacit, out, "--partition-selection", corpus, "--delta", 0.01)
    assert "300 words per user" in row["provenance"]
    assert row["released_before"]["epsilon"] == pytest.approx(8, rel=0.01)
    assert row["released_before"]["delta"] == 0.01
    assert set(made.words) <= set(WORDS)


STRAY = [
    ("--tokens 5 --public T", "--tokens is for --from; leave it out with --public"),
    ("--temperature 2 --oracle C", "--temperature is for --from"),
    ("--top-k 2 --oracle C", "--top-k is for --from"),
    ("--max-length 2 --public T", "--max-length is for --from"),
    ("--part 1/2 --public T", "--part is for --partition-selection and --oracle"),
    ("--part 1/2 --from R", "leave it out with --from"),
    ("--epsilon 8 --from R", "--epsilon is for --partition-selection; leave"),
    ("--epsilon 8 --oracle C", "--epsilon is for"),
    ("--population 90 --public T", "--population is for"),
    ("--words 3 --oracle C", "--words is for"),
    ("--delta 0.1 --from R", "--delta is for"),
    ("--seed 1 --public T", "--seed is for --from and"),
]
WRONG = [
    ("", "name one source of the tokenizer: --from, --public, --partition-selection"),
    ("--from R --public T", "name one source of the tokenizer: .* got --from and --public"),
    (
        "--public T --kind sentence",
        "kind must be one of word, bpe, wordpiece, char, got 'sentence'",
    ),
    ("--public T --size 257", "size must be at least 258 for kind 'bpe' .*256 bytes.*, got 257"),
    ("--public T --size 0", "--size must be at least 1, got 0"),
    ("--public nothing.txt", "is neither a file nor the name of a public text"),
    ("--from R --tokens 0", "--tokens must be at least 1, got 0"),
    ("--from R --top-k 0", "--top-k must be at least 1"),
    ("--from R --max-length 0", "--max-length must be at least 1"),
    ("--from R --temperature -1", "temperature must be a finite number of at least 0"),
    ("--from R --tokens 1.5", "'1.5' is not a whole number"),
    ("--from R --seed -1", "--seed must be at least 0"),
    ("--from R@1", "there is no checkpoint of round 1; the nearest is"),
    ("--from nowhere", "there is no run at nowhere"),
    ("--from C", "is not a run directory"),
    ("--oracle nowhere", "there is no corpus 'nowhere'"),
    ("--oracle C --part 3/2", "part must be from 1/2 to 2/2, got 3/2"),
    ("--oracle C --part x/y", "part must be such as 1/2, got 'x/y'"),
    ("--partition-selection C --words 0", "--words must be at least 1"),
    ("--partition-selection C --epsilon 0", "epsilon must be a finite number above 0"),
    ("--partition-selection C --population 0", "population must be at least 1"),
    (
        "--partition-selection C --population 3",
        "population must be at least the .* users",
    ),
    (
        "--partition-selection C --kind word --size 20",
        "size must be at least 36 for a list",
    ),
    ("--partition-selection C --delta 0", "delta must be strictly between 0 and 1"),
    ("--partition-selection C --delta 2", "delta must be strictly between 0 and 1"),
    ("--partition-selection C --words 1e6", "words_per_user must be at most 100,000"),
]


@pytest.mark.parametrize(("words", "message"), STRAY + WRONG, ids=lambda value: value[:30])
def test_a_mistake_is_one_sentence_and_leaves_nothing(tacit, own, bpe_run, out, words, message):
    names = {"R": str(bpe_run), "C": str(own / "corpus"), "T": str(own / "public.txt")}
    names["R@1"] = f"{bpe_run}@1"
    before = files_in(own)
    err = tacit.refused("train", out, *(names.get(word, word) for word in words.split()))
    assert matches(message, err)
    assert files_in(own) == before  # no line in the register either
    assert list(out.parent.iterdir()) == []


def matches(message: str, text: str) -> bool:
    import re

    return re.search(message.replace("(", r"\("), text) is not None


def test_what_exists_is_not_overwritten(tacit, own, bpe_run, out):
    out.mkdir()
    words = ["--public", own / "public.txt", "--size", SIZE]
    assert f"{out} exists already; name a new folder" in tacit.refused("train", out, *words)
    (out / "a").write_text("a file")
    assert f"because {out / 'a'} is a file" in tacit.refused("train", out / "a" / "b", *words)
    assert "exists already; name a new file" in tacit.refused(
        "sample", bpe_run, "--out", out / "a", *FEW
    )
    assert "exists and is not empty" in tacit.refused("swap", bpe_run, "--run", out, *FEW)
    assert [path.name for path in out.iterdir()] == ["a"]


def test_samples_are_texts_and_a_seed_repeats_them(tacit, bpe_run, tmp_path):
    words = ["sample", bpe_run, *FEW, "--seed", 4]
    found = tacit.json(*words)
    assert found["texts"] == len(found["sampled"]) > 0
    assert found["words"] == sum(len(text.split()) for text in found["sampled"])
    assert tacit.json(*words)["sampled"] == found["sampled"]
    assert tacit.json("sample", bpe_run, *FEW, "--seed", 5)["sampled"] != found["sampled"]
    assert tacit.json("sample", f"{bpe_run}@0", *FEW, "--seed", 4)["sampled"] != found["sampled"]
    path = tmp_path / "made" / "texts.txt"
    assert f"{found['texts']:,} texts of {found['words']:,} words in" in tacit.says(
        *words, "--out", path
    )
    assert path.read_text().removesuffix("\n").split("\n") == found["sampled"]
    code, out, _ = tacit(*words)
    shown = [visible(text) for text in found["sampled"]]
    assert (code, out.removesuffix("\n").split("\n")) == (0, shown)


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["train", "sample"])
def test_ctrl_c_while_sampling_leaves_nothing(tacit, bpe_run, out, monkeypatch, name):
    from tacit.evaluation import sampling

    monkeypatch.setattr(sampling, "in_threads", interrupted)
    words = [out, "--from", bpe_run] if name == "train" else [bpe_run, "--out", out]
    code, printed, err = tacit(name, *words, *FEW)
    assert (code, printed, err) == (
        130,
        "",
        "tacit: interrupted; nothing is half-written: the same command begins again\n",
    )
    assert list(out.parent.iterdir()) == []


def only_eos(run: Path, to: Path) -> Path:
    """A copy of a run whose model never says anything."""
    shutil.copytree(run, to)
    there = Run.open(to)
    model, checkpoints = there.model(), Checkpoints(to / "checkpoints")
    with torch.no_grad():
        model.projection.weight.zero_()
        model.projection.bias.zero_()
        model.projection.bias[0] = 100.0
        model.embedding.weight.zero_()
        model.embedding.weight[:, 0] = -1.0
        model.embedding.weight[there.tokenizer.eos, 0] = 1.0
    last = checkpoints.read()
    state = State(weights.to_bytes(model), last.arrays, last.facts)
    checkpoints.write(last.leg, state, last.head)
    return to


def test_a_model_that_only_says_eos_would_never_fill_a_corpus(tacit, bpe_run, tmp_path):
    silent = only_eos(bpe_run, tmp_path / "silent")
    commands = [
        ["train", tmp_path / "out", "--from", silent, "--size", SIZE],
        ["sample", silent, "--out", tmp_path / "out"],
        ["swap", silent, "--run", tmp_path / "out", "--rounds", 6, "--quiet"],
    ]
    for words in commands:
        assert "the model says almost nothing but EOS" in tacit.refused(*words, *FEW)
        assert [path.name for path in tmp_path.iterdir()] == ["silent"]


def test_a_model_needs_the_tokenizer_it_was_trained_with(tacit, own, bpe_run, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(bpe_run, damaged)
    other = build.learn("bpe", [" ".join(WORDS)] * 3, 260, provenance=provenance.public("words"))
    (damaged / "tokenizer.json").write_text(other.to_json())
    for words in (["sample", damaged], ["train", tmp_path / "out", "--from", damaged]):
        assert "is not the tokenizer that the run was trained with" in tacit.refused(*words)
    assert "not the tokenizer" in tacit.refused("swap", damaged, "--run", tmp_path / "out")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    shutil.copy(Checkpoints(bpe_run / "checkpoints").model_file(4), bundle / "model.safetensors")
    other.save(bundle)
    err = tacit.refused("sample", bundle)
    assert "has a vocabulary of 262 tokens and the tokenizer one of 260" in err
    assert {path.name for path in tmp_path.iterdir()} == {"damaged", "bundle"}


def test_a_run_without_a_model_is_refused_and_one_that_is_not_finished_is_used(
    tacit, bpe_run, tmp_path
):
    begun = tmp_path / "begun"
    shutil.copytree(bpe_run, begun)
    (begun / "result.json").unlink()
    assert tacit.json("sample", begun, *FEW)["texts"] > 0
    for path in (begun / "checkpoints").glob("state-*.safetensors"):
        path.unlink()
    assert "has no checkpoint" in tacit.refused("sample", begun)
    assert "has no checkpoint" in tacit.refused("train", tmp_path / "out", "--from", begun)
    assert "there is no run and no model" in tacit.refused("sample", tmp_path / "nothing")


SWAP = ["--rounds", 6, "--workers", 1, *FEW]


def test_a_swap_is_a_branch_with_a_tokenizer_of_its_own(tacit, bpe_run, tmp_path):
    new = tmp_path / "new"
    words = ["swap", f"{bpe_run}@2", "--run", new, "--size", SIZE, *SWAP]
    result = tacit.json(*words)
    run, parent = Run.open(new), Run.open(bpe_run)
    assert (result["rounds"], run.round, run.first_leg) == (6, 6, 2)
    assert run.tokenizer.kind == "bpe"
    assert run.tokenizer.fingerprint != parent.tokenizer.fingerprint
    assert run.tokenizer_at(2).fingerprint == parent.tokenizer.fingerprint
    kinds = [entry.kind for entry in Ledger.read(new / "ledger.jsonl").entries]
    assert kinds.count("tokenizer") == 2  # the one it began with, and the swap
    longer = experiment_epsilon(parent, 6)
    assert result["epsilon"]["rdp"] == pytest.approx(longer)


def experiment_epsilon(run: Run, rounds: int) -> float:
    """Of so many rounds of the run's plan and nothing else: what the swap adds is nothing."""
    from tacit.privacy.accountants import accountant_named
    from tacit.privacy.events import Composition

    composition = Composition.of([(run.plans()[0].event(), rounds)])
    return accountant_named("rdp").epsilon(composition, 1e-3)


def test_a_swap_that_was_interrupted_says_how_to_go_on(tacit, bpe_run, tmp_path, monkeypatch):
    from tacit.evaluation import sampling

    new = tmp_path / "new"
    with monkeypatch.context() as patched:
        patched.setattr(sampling, "in_threads", interrupted)
        code, out, err = tacit("swap", bpe_run, "--run", new, *SWAP, "--quiet")
    assert (code, out) == (130, "")
    assert err == (
        f"tacit: interrupted after round 4; nothing is lost: tacit train --resume --run {new}\n"
    )
    code, _, err = tacit_command("train", "--resume", "--run", new, "--workers", 1)
    assert code == 0, err
    assert Run.open(new).round == 6


def test_a_swap_to_a_given_tokenizer(tacit, own, bpe_run, tmp_path):
    made = build.learn("bpe", [" ".join(WORDS)] * 3, 270, provenance=provenance.public("words"))
    given = LearntTokenizer(made).save(tmp_path / "given")
    words = ["swap", bpe_run, "--run", tmp_path / "new", "--rounds", 5, "--workers", 1]
    assert tacit.json(*words, "--tokenizer", given)["rounds"] == 5
    assert Run.open(tmp_path / "new").tokenizer.fingerprint == made.fingerprint


def bad_tokenizer(folder: Path, name: str) -> Path:
    """A tokenizer that no model of BPE with BOS and EOS can go on with."""
    path = folder / name
    if name == "unknown-words":
        build.word_level(WORDS, provenance=provenance.public("words")).save(path)
    elif name == "oracle":
        build.learn("bpe", WORDS, 260, provenance=provenance.ORACLE).save(path)
    elif name == "cased":
        public = provenance.public("words")
        build.learn("bpe", WORDS, 260, normalisation="none", provenance=public).save(path)
    elif name == "no-eos":
        document = json.loads(build.learn("bpe", WORDS, 260).to_json())
        document["post_processor"]["single"].pop()
        path.mkdir()
        (path / "tokenizer.json").write_text(json.dumps(document))
    elif name == "special":
        document = json.loads(build.learn("bpe", WORDS, 260).to_json())
        token = {"id": 0, "content": "[CLS]", "special": True, "single_word": False}
        document["added_tokens"] = [token | {"lstrip": False, "rstrip": False, "normalized": False}]
        path.mkdir()
        (path / "tokenizer.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown-words", "the new word tokenizer has a token for unknown words and the old bpe"),
        ("oracle", "voids every guarantee"),
        ("cased", "their tokens are of different texts"),
        ("no-eos", "cannot be used: "),
        ("special", "it has added tokens ('[CLS]')"),
        ("nothing", "there is no tokenizer at"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused_and_no_run_is_left(
    tacit, own, bpe_run, tmp_path, name, message
):
    given = bad_tokenizer(tmp_path, name)
    before, registered = files_in(tmp_path), files_in(own)
    words = ["swap", bpe_run, "--run", tmp_path / "new", "--rounds", 5, "--workers", 1, "--quiet"]
    assert message in tacit.refused(*words, "--tokenizer", given)
    assert files_in(tmp_path) == before
    assert files_in(own) == registered


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("R", "there must be more rounds than that in all, got 4; add --rounds"),
        ("R@0 --rounds 5", "the tokenizer of an untrained model is swapped by beginning"),
        ("R@1 --rounds 5", "there is no checkpoint of round 1"),
        ("R --rounds 0", "--rounds must be at least 1"),
        ("R --rounds 5 --kind word", "has a token for unknown words and the old bpe tokenizer"),
        ("R --rounds 5 --kind sentence", "kind must be one of word, bpe, wordpiece, char"),
        ("R --rounds 5 --size 200", "size must be at least 258 for kind 'bpe'"),
        ("R --rounds 5 --tokens 0", "--tokens must be at least 1"),
        ("R --rounds 5 --temperature 0", "temperature cannot be 0.0"),
        ("R --rounds 5 --workers 0", "--workers must be at least 1"),
        ("R --rounds 5 --tokenizer B --size 300", "--size is for a tokenizer to be learnt"),
        ("R --rounds 5 --tokenizer B --tokens 300", "--tokens is for a tokenizer to be learnt"),
        ("R --rounds 5 --tokenizer nowhere.json", "there is no tokenizer at nowhere.json"),
        ("nowhere", "there is no run at nowhere"),
    ],
    ids=lambda value: value[:30],
)
def test_a_swap_that_cannot_be_is_refused(tacit, own, bpe_run, tmp_path, words, message):
    names = {"B": str(own / "bpe")} | {f"R{at}": f"{bpe_run}{at}" for at in ("", "@0", "@1")}
    arguments = [names.get(word, word) for word in words.split()]
    assert message in tacit.refused("swap", *arguments, "--run", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_kind_of_a_swap_is_that_of_the_tokenizer_and_not_the_default_of_recipes(
    tacit, own, tmp_path
):
    """A file says its kind itself, whatever tokenizer.kind is beside it."""
    changes = {"rounds": 2, "tokenizer": {"source": str(own / "bpe"), "kind": "word"}}
    train(experiment(own, **changes), tmp_path / "run")
    words = ["swap", tmp_path / "run", "--run", tmp_path / "new", "--rounds", 3, "--workers", 1]
    tacit.json(*words, *FEW)
    assert Run.open(tmp_path / "new").tokenizer.kind == "bpe"


def test_without_a_command_the_help_is_printed(tacit):
    said = tacit.says()
    assert all(name in said for name in ("train", "sample", "swap"))


def test_a_tokenizer_of_a_run_is_loaded_as_any_other(bpe_run):
    assert Tokenizer.load(bpe_run).fingerprint == Run.open(bpe_run).tokenizer.fingerprint
