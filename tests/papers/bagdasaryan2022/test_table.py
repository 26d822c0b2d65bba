"""Tables of tokenizers: how they read, what the notes say, and the gap."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from tacit.privacy.claims import PROJECTED
from tacit_papers.bagdasaryan2022.rows import TokenizerRow
from tacit_papers.bagdasaryan2022.table import (
    HEADERS,
    as_json,
    cells,
    gap_closed,
    gap_note,
    markdown,
    notes,
    sources,
    table,
)


def made(name="wiki", **changes):
    row = TokenizerRow(
        name=name,
        kind="bpe",
        data="Wiki",
        oov=0.0,
        tokens_per_word=1.4123,
        kld=0.78251,
        word_accuracy=0.22161,
        word_accuracy_unk_competes=0.2216,
        perplexity_per_word=1276.54,
        epsilon=None,
        delta=1e-6,
        words=1000,
    )
    return replace(row, **changes)


def text_of(row) -> dict[str, str]:
    return dict(zip(HEADERS, cells(row), strict=True))


def test_a_row_reads_as_in_the_paper():
    projected = {"projected_epsilon": 2.0001, "projected_delta": 1e-8}
    shown = text_of(made(epsilon=156_283.7, **projected))
    assert shown == {
        "Tokenizer": "wiki",
        "Type": "BPE",
        "Learnt from": "Wiki",
        "OOV %": "0.0",
        "Tokens per word": "1.41",
        "KLD": "0.783",
        "Word acc. %": "22.16",
        "Word acc. % if UNK competes": "22.16",
        "Perp. per word": "1,276.5",
        "Epsilon": "156300 at 1e-06",
        "Projected epsilon": "2.001 at 1e-08",
    }
    shown = text_of(made(kind="word", oov=0.13, kld=None))
    assert (shown["Type"], shown["OOV %"], shown["KLD"]) == ("Word-level", "13.0", "-")
    assert (shown["Epsilon"], shown["Projected epsilon"]) == ("infinity", "-")


def test_the_papers_word_accuracy_stands_beside_ours_and_is_explained():
    row = made(kind="word", oov=0.13, word_accuracy=0.076, word_accuracy_unk_competes=0.021)
    shown = text_of(row)
    assert (shown["Word acc. %"], shown["Word acc. % if UNK competes"]) == ("7.60", "2.10")
    assert any("the paper's word accuracy" in note for note in notes([row]))
    assert json.loads(json.dumps(as_json([row])))[0]["word_accuracy_unk_competes"] == 0.021


def test_the_perplexity_of_a_dictionary_is_marked_and_explained():
    rows = [made(), made("words", kind="word", oov=0.13)]
    assert text_of(rows[0])["Perp. per word"] == "1,276.5"
    assert text_of(rows[1])["Perp. per word"] == "1,276.5*"
    assert any(note.startswith("* Predicts UNK") for note in notes(rows))
    assert not any(note.startswith("*") for note in notes(rows[:1]))


def test_notes_say_every_claim_once_and_which_rows_do_not_compare():
    rows = [made("a", claim="Claim."), made("b", claim="Claim.", projected_claim="Other.")]
    assert notes(rows)[3:] == ["a, b: Claim.", "b: Other."]
    assert notes(rows)[1].startswith("If UNK competes")
    assert notes(rows)[2].startswith("Epsilon is user-level, of the whole run")
    assert "1,000 words" in notes(rows)[0]
    rows.append(made("c", words=999, projected_epsilon=1.0, projected_delta=1e-8))
    said = notes(rows)
    assert "999 or 1,000 words" in said[0]
    assert "do not compare" in said[3]
    assert f"Projected epsilon: {PROJECTED}." in said


def test_markdown_and_terminal_have_a_line_for_each_row():
    far = {"projected_epsilon": 2.0, "projected_delta": 1e-8}
    rows = [made("a|b", data="[bold]x", **far), made("c")]
    lines = markdown(rows).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == len(HEADERS) + 1
    assert lines[2].startswith("| a\\|b | BPE | \\[bold\\]x | 0.0 | 1.41 |")
    assert lines[3].startswith("| c | BPE | Wiki |")
    console = Console(width=200, record=True, file=io.StringIO(), markup=False)
    console.print(table(rows), sources(rows))
    text = console.export_text()
    assert "[bold]x" in text
    assert all(header in text for header in HEADERS if header != "Word acc. %")


def test_nothing_projected_needs_no_column():
    rows = [made("a"), made("b", claim="Claim.")]
    lines = markdown(rows, ["One more sentence."]).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|") == len(HEADERS)
    assert lines[-1] == "One more sentence."
    figures = [header for header in HEADERS[:-1] if header not in ("Learnt from", "Word acc. %")]
    assert [column.header for column in table(rows).columns] == figures


def test_a_tokenizer_without_a_model_has_no_figures_of_one():
    none = dict.fromkeys(
        ("word_accuracy", "word_accuracy_unk_competes", "perplexity_per_word", "delta")
    )
    bare = made("bare", **none, oov=0.1)
    shown = text_of(bare)
    assert [shown[header] for header in HEADERS[6:]] == ["-"] * 5
    assert len(notes([bare])) == 1  # nothing about epsilon or about the perplexity of UNK


def test_epsilon_is_infinite_unknown_or_no_claim():
    assert text_of(made())["Epsilon"] == "infinity"
    assert text_of(made(delta=None))["Epsilon"] == "unknown"
    assert text_of(made(epsilon=3.0, synthetic_users=True))["Epsilon"] == "no claim"


def test_json_has_null_for_what_is_not_a_number():
    rows = [made(perplexity_per_word=math.inf), made()]
    first, second = json.loads(json.dumps(as_json(rows), allow_nan=False))
    assert first["perplexity_per_word"] is None
    assert second["perplexity_per_word"] == rows[1].perplexity_per_word
    assert {"name", "kind", "data", "oov", "tokens_per_word", "kld", "word_accuracy"} <= set(first)
    assert {"epsilon", "delta", "projected_epsilon", "claim"} <= set(first)


def test_the_gap_is_closed_as_far_as_in_table_2():
    # StackOverflow: wiki 124.6, oracle 108.2, heavy hitters 115.9, sampled 108.7.
    paper = {"wiki": 124.6, "oracle": 108.2, "hitters": 115.9, "sampled": 108.7}
    rows = [made(name, perplexity_per_word=value) for name, value in paper.items()]
    rows.append(made("words", kind="word", oov=0.02, perplexity_per_word=50.0))
    found = gap_closed(rows, "wiki", "oracle")
    assert found == pytest.approx(
        {"wiki": 0, "oracle": 1, "hitters": 8.7 / 16.4, "sampled": 15.9 / 16.4}
    )


@pytest.mark.parametrize(
    ("worst", "best", "message"),
    [
        ("wiki", "nobody", "there is no row 'nobody' .* but 'wiki', 'same'"),
        ("words", "wiki", "there is no row 'words'"),
        ("broken", "wiki", "there is no row 'broken'"),
        ("wiki", "same", "no gap to close: 'wiki' has a perplexity per word of 1276.54"),
        ("better", "wiki", "no gap to close"),
    ],
)
def test_a_gap_needs_two_ends(worst, best, message):
    rows = [
        made(),
        made("same"),
        made("better", perplexity_per_word=9.0),
        made("broken", perplexity_per_word=math.inf),
        made("words", oov=0.1),
    ]
    with pytest.raises(ValueError, match=message):
        gap_closed(rows, worst, best)


def test_the_gap_reads_as_a_sentence_or_says_why_there_is_none():
    rows = [
        made(),
        made("half", perplexity_per_word=1000.0),
        made("best", perplexity_per_word=800.0),
    ]
    said = gap_note(rows, "wiki", "best")
    assert said.endswith("from wiki to best, that is closed: half 58%.")
    assert gap_note(rows, "best", "wiki").startswith("Gap closed: there is no gap to close: 'best'")
    assert gap_note([rows[0], rows[2]], "wiki", "best").endswith("there is no other row.")


def test_a_narrow_terminal_breaks_no_header_inside_a_word():
    rows = [made("public", epsilon=156_283.7), made("sampled", epsilon=3.2, kld=0.1)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(rows))
    words = console.export_text().split()
    assert {"Tokenizer", "Type", "KLD", "Epsilon", "Perp.", "public", "sampled"} <= set(words)
    assert {"1,276.5", "156300", "22.16", "0.100"} <= set(words)
