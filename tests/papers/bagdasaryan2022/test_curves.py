"""The picture of switches: what is drawn, and what cannot be."""

import math

import pytest

from tacit.train import train
from tacit_papers.bagdasaryan2022.curves import curve_of, draw, figure, measure_again
from tests.runs.small import experiment

BASELINE = [(0, 9000.0), (10, 800.0), (20, 500.0), (30, 400.0)]
SWITCHED = [(10, 800.0), (10, 2500.0), (20, 480.0), (30, 360.0)]


def row(round, value, **more):
    return {"round": round, "perplexity_per_word": value, "perplexity": 1.0, **more}


def test_a_switch_is_a_step_with_what_was_before_it_first():
    rows = [row(0, 9.0), row(20, 6.0), row(10, 8.0, switched=True), row(10, 7.0)]
    assert curve_of(rows) == [(0, 9.0), (10, 7.0), (10, 8.0), (20, 6.0)]


def test_what_is_not_a_number_is_a_gap():
    first, second = curve_of([row(0, None), row(1, 5.0)])
    assert math.isnan(first[1])
    assert second == (1, 5.0)


def test_metrics_without_words_are_refused():
    with pytest.raises(ValueError, match="no perplexity_per_word"):
        curve_of([{"round": 0, "perplexity": 3.0}])


def test_the_models_that_were_kept_have_the_figures_of_the_training(folder, tmp_path):
    wanted = experiment(folder, rounds=4, evaluation={"every": 1, "snapshot_every": 2})
    run = train(wanted, tmp_path / "run")
    found = measure_again(run)
    assert [round for round, _ in found] == [0, 2, 4]
    trained = dict(curve_of(run.metrics()))
    assert len(trained) == 5
    for round, value in found:
        assert value == pytest.approx(trained[round], rel=1e-6)
    assert measure_again(run, 50)[0][1] != found[0][1]


def test_every_curve_is_a_line_in_both_panels_and_every_switch_a_cross():
    for axes in figure({"baseline": BASELINE, "switched": SWITCHED}).axes:
        baseline, switched, crosses = axes.lines
        assert [list(line.get_xdata()) for line in (baseline, switched, crosses)] == [
            [0, 10, 20, 30],
            [10, 10, 20, 30],
            [10],
        ]
        assert list(switched.get_ydata()) == [800.0, 2500.0, 480.0, 360.0]
        assert list(crosses.get_ydata()) == [2500.0]
        assert crosses.get_color() == switched.get_color() != baseline.get_color()
    whole, end = figure({"baseline": BASELINE, "switched": SWITCHED}).axes
    assert [text.get_text() for text in whole.get_legend().get_texts()] == ["baseline", "switched"]
    assert whole.get_yscale() == "log"
    assert end.get_ylim() == pytest.approx((0.97 * 360, 1.5 * 400))


def test_a_curve_that_leaves_another_training_begins_with_a_cross():
    [axes, _] = figure({"baseline": BASELINE, "left": SWITCHED[1:]}).axes
    *_, crosses = axes.lines
    assert len(axes.lines) == 3
    assert list(crosses.get_xydata()[0]) == [10, 2500.0]


def test_a_gap_does_not_hide_the_rest():
    [_, end] = figure({"only": [(0, math.nan), (5, 30.0), (9, math.inf)]}).axes
    assert end.get_ylim() == pytest.approx((0.97 * 30, 1.5 * 30))


def test_more_curves_than_colours_can_be_told_apart():
    [axes, _] = figure({str(n): [(0, 2.0 + n)] for n in range(12)}).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == 12


@pytest.mark.parametrize(
    ("name", "head"),
    [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")],
    ids=["png", "svg", "pdf"],
)
def test_the_picture_is_drawn_and_nothing_else_is_left(tmp_path, name, head):
    draw({"baseline": BASELINE, "after 10": SWITCHED}, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(head)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, "there must be one curve at least"),
        ({"a": []}, "the curve 'a' has no finite value"),
        ({"a": [(0, math.nan)]}, "the curve 'a' has no finite value"),
        ({"a": [(0, 0.0)]}, "the curve 'a' must be above 0, got 0.0"),
        ({"a": [(2, 5.0), (1, 5.0)]}, "the rounds of the curve 'a' must not go back"),
    ],
    ids=["none", "empty", "nan", "zero", "backwards"],
)
def test_what_cannot_be_drawn_is_said(tmp_path, curves, message):
    with pytest.raises(ValueError, match=message):
        draw(curves, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_to_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be written: .*No such file or directory"):
        draw({"a": BASELINE}, tmp_path / "nowhere" / "a.png")
