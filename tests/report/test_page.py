"""The page: whole in itself, escaped, and with every part that the facts have."""

import json
import re
from html.parser import HTMLParser

import pytest

from tacit.privacy.projection import Projection
from tacit.report.figures import (
    _Axis,
    _line_chart,
    heat_map,
    histogram,
    level_chart,
    matrix_chart,
    short,
)
from tacit.report.page import _draw, _environment, _figure, render
from tests.report import audits

VOID = {"meta", "link", "br", "line", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """The text by element id, the headers of tables, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append((tag, dict(attrs).get("id")))

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        for _, name in self._open:
            if name is not None:
                self.text[name] = f"{self.text.get(name, '')} {data.strip()}".strip()


@pytest.fixture
def page_of(facts_of):
    return lambda path, **options: Page(render(facts_of(path, **options)))


def test_a_reviewer_reads_in_this_order(audited, page_of):
    page = page_of(audited)
    order = [value for tag, name, value in page.attributes if (tag, name) == ("h2", "id")]
    assert order == [
        "the-claim",
        "warnings",
        "epsilon",
        "training",
        "audit",
        "excluded",
        "ledger",
        "experiment",
    ]


def test_the_page_says_what_the_facts_say(audited, page_of, facts_of):
    page, facts = page_of(audited), facts_of(audited)
    assert page.text["claim"] == facts["claim"]["sentence"]
    for warning in facts["warnings"]:
        assert warning["text"] in page.text["warning-list"]
    for wanted in ("clip norm, S 0.3", "noise multiplier, z 1", "probability, q"):
        assert wanted in page.text["claim-facts"]
    assert facts["ledger"]["head"] in page.text["ledger-facts"]
    assert page.text["experiment-toml"] == facts["experiment"].strip()
    assert page.text["canary-cells"].endswith("16 1 4 16.0 160.0 4 1 23.2")
    assert "4 of 24" in page.text["audit-summary"]
    assert "at least 0.3 with 95% confidence; estimate 1.4" in page.text["audit-summary"]
    assert "3.479, the most that 500 canary clients can show" in page.text["audit-summary"]
    for text in facts["claim"]["excluded"]:
        assert text in page.text["excluded-list"]


def test_the_page_needs_no_network_and_no_script(audited, facts_of):
    html = render(facts_of(audited, internal=True))
    page = Page(html)
    assert not {"script", "img", "iframe", "object", "embed", "form"} & set(page.tags)
    assert not [value for _, name, value in page.attributes if name.startswith("on")]
    links = [value for _, name, value in page.attributes if name in {"href", "src"}]
    assert links == ["data:,"]  # or the browser would ask for an icon
    assert not re.findall(r"https?:|url\(|@import", html)
    assert len(html) < 200_000


def test_texts_from_a_corpus_are_escaped(audited, facts_of):
    html = render(facts_of(audited))
    assert audits.HOSTILE not in html
    assert "&lt;script&gt;alert(&#39;canary&#39;)&lt;/script&gt;" in html


def test_nothing_private_is_in_a_page_unless_it_is_internal(audited, facts_of):
    public = render(facts_of(audited))
    assert audits.SECRET not in public
    assert audits.PHRASE not in public
    assert 'id="internal"' not in public
    assert "chart-roc" not in public
    internal = render(facts_of(audited, internal=True))
    assert audits.SECRET in internal
    assert audits.PHRASE in internal
    assert "Internal: this report holds" in Page(internal).text["internal"]
    assert "chart-roc" in internal


def test_every_chart_is_described_and_every_table_has_headers(audited, facts_of):
    facts = facts_of(audited, internal=True)
    assert set(_draw(facts)) == {
        "epsilon",
        "accuracy",
        "perplexity",
        "accuracy_over_epsilon",
        "heat_rs",
        "heat_bs",
        "exposure",
        "empirical_epsilon",
        "roc",
    }
    html = render(facts)
    page = Page(html)
    for name in _draw(facts):
        assert f'id="chart-{name.replace("_", "-")}"' in html
    charts = re.findall(r"<svg[^>]*>", html)
    assert len(charts) == 9
    assert all(
        'role="img"' in chart and re.search(r'aria-label=".{30,}"', chart) for chart in charts
    )
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    assert len(tables) == page.tags.count("table") > 8
    assert all("<th scope=" in table for table in tables)
    assert all("nan" not in chart.lower() for chart in re.findall(r"(?s)<svg.*?</svg>", html))


def test_a_projection_is_labelled_on_the_page(run, page_of):
    page = page_of(run, projection=Projection(100, 1_000))
    assert "projected, not trained with this guarantee" in page.text["projected-claim"]
    assert "projected" not in page.text["claim"]
    assert "projected-claim" not in page_of(run).text


def test_an_unaudited_run_says_so(run, page_of):
    assert "not audited: run tacit audit RUN" in page_of(run).text["not-audited"]


@pytest.mark.parametrize("kind", ["plain", "simulated", "synthetic", "iid", "large"])
def test_every_kind_of_run_has_a_page(run_of, page_of, facts_of, kind):
    page = page_of(run_of(kind))
    facts = facts_of(run_of(kind))
    assert page.text["claim"] == facts["claim"]["sentence"]
    assert ("synthetic users: no claim" in page.text["top"]) is (kind in {"synthetic", "iid"})
    assert ("simulation, not for release" in page.text["top"]) is (kind == "simulated")
    assert ("no privacy guarantee" in page.text["top"]) is (kind == "plain")


def test_both_accuracies_are_on_the_page_and_a_run_of_before_has_one(run, facts_of):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    papers = rows[-1] | {"accuracy_top1": 0.1234, "accuracy_top1_unk_competes": 0.0567}
    older = {key: value for key, value in rows[0].items() if "unk_competes" not in key}
    lines = [json.dumps(row) + "\n" for row in (older, papers)]
    (run / "metrics.jsonl").write_text("".join(lines))
    html = render(facts_of(run))
    assert html.count('<th scope="col" class="n">top-1 if UNK competes</th>') == 2
    assert '<td class="n">12.34%</td><td class="n">5.67%</td>' in html
    first = f'<td class="n">{100 * older["accuracy_top1"]:.2f}%</td><td class="n">-</td>'
    assert first in html


def test_a_run_that_measured_nothing_has_a_page(run, facts_of):
    (run / "metrics.jsonl").unlink()
    html = render(facts_of(run))
    assert "Nothing was measured yet" in html
    assert "chart-accuracy" not in html


def test_an_audit_of_phrases_alone_has_a_page(run, page_of):
    counts = {"canaries": 0, "memorized_rs": 0, "memorized_bs": 0, "memorized": 0, "rows": []}
    nothing = {"controls": None, "empirical_epsilon": None, "accounted_epsilon": None}
    audits.put(run, audits.audit(**counts, **nothing))
    page = page_of(run)
    assert "phrase 1" in page.text["phrases"]
    assert "canary-cells" not in page.text
    assert "accounted epsilon -" in page.text["audit-summary"]


def test_all_canaries_may_lack_an_exposure(run, facts_of):
    found = audits.audit()
    for row in found["rows"]:
        row["exposure"] = row["rank"] = None
    audits.put(run, found)
    facts = facts_of(run)
    assert "exposure" not in _draw(facts)
    assert render(facts)


def test_a_histogram_counts_every_canary_once(audited, facts_of):
    facts = facts_of(audited)
    said = _draw(facts)["exposure"]["about"]
    known = [row for row in facts["audit"]["rows"] if row["exposure"] is not None]
    assert sum(int(part.split()[0]) for part in said.split(", ")) == len(known) == 23


def test_axes_mark_round_values():
    assert _Axis("", 0, 10).ticks() == [0, 2, 4, 6, 8, 10]
    assert _Axis("", 0.001, 1, is_log=True).ticks() == pytest.approx([0.001, 0.01, 0.1, 1])
    assert _Axis("", 55, 170, is_log=True).ticks() == [60, 80, 100, 120, 140, 160]
    assert _Axis("", 1, 1e12, is_log=True).ticks()[:2] == [1, 1000]


def test_axes_scale_values():
    assert _Axis("", 0, 10).share(5) == 0.5
    assert _Axis("", 0.01, 1, is_log=True).share(0.1) == pytest.approx(0.5)
    assert _Axis.over("", [0.0, 0.0]).share(0.0) == 0.0  # no division by a range of 0
    assert 0 < _Axis.over("", [3.0], is_log=True).share(3.0) < 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (1234, "1,234"),
        (1e-9, "1e-9"),
        (2_000_000, "2e6"),
        (61100, "61,100"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.3, "0.3"), (3.4792, "3.479"), (10016.2, "10,016"), (3e12, "3.000e+12")],
)
def test_figures_in_tables_read_well(value, text):
    assert _figure(value) == text


def test_charts_escape_their_words():
    words, axis = audits.HOSTILE, _Axis(audits.HOSTILE, 0, 1)
    charts = (
        _line_chart(words, words, axis, axis, {words: [(0.5, 0.5)]}),
        histogram(words, (words, words), words, {words: [1.0]}),
        level_chart(words, [(words, 1.0, words)]),
        heat_map(words, (words, words), [(1.0, 1.0, 1.0, words)]),
        matrix_chart(words, (words, words), [[1.0], [-0.5, 1.0]]),
    )
    module = _environment().get_template("charts.html").make_module()
    for chart in charts:
        svg = str(module.draw(chart))
        assert "<script" not in svg
        assert svg.count("&lt;script&gt;") >= 3
        assert Page(svg)
