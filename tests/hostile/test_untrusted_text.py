"""What people wrote does nothing on a terminal, in a log or on a page but be read."""

import io
import warnings

import pytest

from tacit.cli import main as cli
from tacit.cli.output import emit, note, say, table
from tacit.privacy.visible import visible
from tacit.report.page import _environment
from tacit.runs import progress
from tacit.runs.terminal import Terminal

# As it comes, and as it is shown.
ACTING = {
    "\x1b[2J\x1b]0;title\x07": r"\x1b[2J\x1b]0;title\x07",
    "\x9b31m": r"\x9b31m",
    "\x7f\x00\x08": r"\x7f\x00\x08",
    "\u202eevil\u202c \u2066a\u2069": r"\u202eevil\u202c \u2066a\u2069",
    "zero\u200bwidth\u200d\ufeff": r"zero\u200bwidth\u200d\ufeff",
    "two\u2028lines\u2029": r"two\u2028lines\u2029",
    "tag\U000e0041": r"tag\U000e0041",
    "half \ud800": r"half \ud800",
    "soft\xadhyphen\rback": r"soft\xadhyphen\rback",
}
each = pytest.mark.parametrize(("text", "shown"), ACTING.items(), ids=[*map(ascii, ACTING)])
HARMLESS = "naïve Ünïcode 日本語 עברית العربية 👍🏽 a\u0301 \u00a0[red] $x$ \\x1b"


@each
def test_what_acts_is_spelled(text, shown):
    assert visible(text) == visible(text, lines=True) == shown
    assert visible(shown) == shown


def test_what_is_seen_stays():
    assert visible(HARMLESS) == HARMLESS
    assert visible("a\nb\tc") == r"a\nb\tc"
    assert visible("a\nb\tc", lines=True) == "a\nb\tc"


@each
def test_messages_and_results_show_it(capsys, text, shown):
    note(f"it is {text}")
    say(f"said {text}")
    said = capsys.readouterr()
    assert (said.err, said.out) == (f"tacit: it is {shown}\n", f"said {shown}\n")


def test_a_message_is_one_line_of_a_log(capsys):
    note("first\ntacit: a line of its own")
    assert capsys.readouterr().err.count("\n") == 1


@each
def test_tables_show_it_in_cells_headings_and_titles(monkeypatch, capsys, text, shown):
    monkeypatch.setenv("COLUMNS", "200")
    made = table(f"head {text}", rows=[(f"cell {text}",)], title=f"title {text} " + 40 * "long")
    emit({}, False, lambda console: console.print(made, f"sentence {text}"))
    out = capsys.readouterr().out
    for where in ("head", "cell", "title", "sentence"):
        assert f"{where} {shown}" in out


def test_markup_and_emoji_codes_are_text(capsys):
    text = "[red]a[/red] [link=https://evil.example]b[/link] :smile:"
    emit({}, False, lambda console: console.print(table("x", rows=[(text,)])))
    assert text in capsys.readouterr().out


def test_json_is_left_alone(capsys):
    emit({"text": "\x1b[2J\u202e"}, True, lambda console: None)
    assert '"\\u001b[2J\\u202e"' in capsys.readouterr().out


def test_a_log_of_progress_shows_it(capsys):
    with progress.Display("[red]\x1b[2J") as display:
        display.tell("reading \u202e", 0, 1)
    assert capsys.readouterr().err == "[red]\\x1b[2J: reading \\u202e\n"


def test_a_bar_shows_it_and_reads_no_markup(monkeypatch):
    file = io.StringIO()
    terminal = Terminal(file=file, force_terminal=True, width=150, color_system=None)
    monkeypatch.setattr(progress, "_stderr", lambda quiet: terminal)
    monkeypatch.setattr(progress, "_is_terminal", lambda console: True)
    with progress.bar("[red]title\u202e") as show:
        show("[blue]step\u200b", 1, 2, "state\x07\nbelow \x9b1m")
        terminal.print("done")
    drawn = file.getvalue()
    for shown in (r"[blue]step\u200b", r"state\x07", r"below \x9b1m"):
        assert shown in drawn
    assert not set("\u202e\u200b\x07\x9b") & set(drawn)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "there\x1b[2Jis\u202eno.toml", "--run", "runs/x"],
        ["report", "\x1b]0;no run\x07"],
        ["evaluate", "no\u2028run"],
        ["\x1b[31mcommand"],
        ["ingest", "\x9b1m.txt", "--out", "out"],
    ],
)
def test_errors_that_quote_what_was_typed_show_it(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert visible(said, lines=True) == said


def test_warnings_that_quote_text_show_it(capsys, monkeypatch):
    def run(_):
        warnings.warn("the word \x1b[2J\nis odd", stacklevel=1)
        return 0

    monkeypatch.setattr(cli, "_run", run)
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().err == "tacit: warning: the word \\x1b[2J is odd\n"


@each
def test_a_report_shows_it_and_stays_html(text, shown):
    page = _environment().from_string(
        "<p>{{ text }}</p>{% set t %}<b>{{ text }}</b>{% endset %}{{ t }}"
    )
    assert page.render(text=f"<i>{text}") == f"<p>&lt;i&gt;{shown}</p><b>&lt;i&gt;{shown}</b>"


def test_people_s_texts_are_shown_by_corpus_head(tmp_path, capsys):
    file = tmp_path / "chats.jsonl"
    file.write_text(
        "".join(f'{{"user": "u{n}", "text": "\\u001b[2J hi \\u202e {n}"}}\n' for n in range(30))
    )
    with pytest.raises(SystemExit):
        cli.main(["ingest", str(file), "--out", str(tmp_path / "corpus")])
    with pytest.raises(SystemExit) as stopped:
        cli.main(["corpus", "head", str(tmp_path / "corpus")])
    out = capsys.readouterr().out
    assert stopped.value.code == 0
    assert r"\x1b[2J hi \u202e" in out
    assert not set("\x1b\u202e") & set(out)
