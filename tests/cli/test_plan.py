"""`tacit plan` as a user meets it: figures, JSON, pictures, and one sentence for every mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tacit.cli.main import main
from tacit.privacy.accountants import accountant_named
from tacit.privacy.events import Composition, PoissonGaussian

PAPER = "--population 763430 --cohort 5000 --rounds 5000 --delta 1e-9".split()


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def rows(capsys, *arguments: str) -> list[dict]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_the_issue_s_first_example(capsys):
    found = rows(capsys, *PAPER, "--noise-multiplier", "1", "--accountant", "all")
    by_name = {row["accountant"]: row for row in found}
    assert list(by_name) == ["pld", "rdp", "moments"]
    assert f"{by_name['moments']['epsilon']:.3f}" == "4.634"
    assert by_name["rdp"]["epsilon"] == pytest.approx(4.18329, rel=1e-4)
    assert 3.8988 <= by_name["pld"]["epsilon"] <= 3.8988 * 1.001
    for row in found:
        assert row["delta"] == 1e-9
        assert row["noise_multiplier"] == 1.0
        assert row["sampling_prob"] == pytest.approx(5000 / 763430)
        assert row["rounds"] == 5000
        assert (row["unit"], row["adjacency"]) == ("user", "add/remove-one")
        assert "declared public" in row["claim"]
        assert not row["projected"]


def test_noise_is_solved_for_and_never_overshoots(capsys):
    arguments = "--population 1e6 --cohort 10000 --rounds 500 --target-epsilon 2 --delta 1e-9"
    [row] = rows(capsys, *arguments.split())
    assert 1.99 <= row["epsilon"] <= 2.0
    event = PoissonGaussian(1e-2, row["noise_multiplier"])
    again = accountant_named("pld").epsilon(Composition.of([(event, 500)]), 1e-9)
    assert again == row["epsilon"]


def test_rounds_are_solved_for(capsys):
    arguments = "--population 1e6 --cohort 20000 --noise-multiplier 1 --target-epsilon 2"
    [row] = rows(capsys, *arguments.split())
    assert row["epsilon"] <= 2.0
    event = PoissonGaussian(2e-2, 1.0)
    more = Composition.of([(event, row["rounds"] + 1)])
    assert accountant_named("pld").epsilon(more, row["delta"]) > 2.0


def test_the_papers_extrapolation_is_labelled_and_stands_beside_the_actual_figure(capsys):
    projected, actual = rows(capsys, *PAPER, "--from-experiment", "cohort=100,sigma=0.003,clip=15")
    assert projected["projected"]
    assert "projected, not trained with this guarantee" in projected["claim"]
    assert projected["noise_multiplier"] == pytest.approx(1.0)
    assert projected["epsilon"] == pytest.approx(3.899, rel=1e-3)
    assert not actual["projected"]
    assert actual["noise_multiplier"] == pytest.approx(0.02)
    assert actual["cohort"] == pytest.approx(100)
    assert actual["epsilon"] > 1000


def test_the_cohort_is_solved_for_at_a_given_noise_on_the_average(capsys):
    arguments = "--population 763430 --rounds 5000 --delta 1e-9 --target-epsilon 4"
    projected, _ = rows(
        capsys, *arguments.split(), "--from-experiment", "cohort=100,sigma=0.003,clip=15"
    )
    assert 4800 < projected["cohort"] < 5000
    assert projected["epsilon"] <= 4


def test_fixed_size_sampling_is_accounted_by_rdp_at_half_the_multiplier(capsys):
    [row] = rows(capsys, *PAPER, "--noise-multiplier", "1", "--sampling", "fixed")
    assert row["accountant"] == "rdp"
    assert row["adjacency"] == "replace-one"
    assert row["noise_multiplier"] == 1.0
    assert row["accounted_noise_multiplier"] == 0.5
    assert row["epsilon"] == pytest.approx(42.7019, rel=1e-3)


def test_the_clipped_denominator_costs_the_same_at_the_same_multiplier(capsys):
    fixed, clipped = (
        rows(capsys, *PAPER, "--noise-multiplier", "1", "--estimator", name)[0]["epsilon"]
        for name in ("fixed", "clipped")
    )
    assert fixed == clipped


def test_truncated_sampling_costs_little_more_than_poisson(capsys):
    poisson, truncated = (
        rows(capsys, *PAPER, "--noise-multiplier", "1", "--sampling", name)[0]["epsilon"]
        for name in ("poisson", "truncated")
    )
    assert poisson <= truncated <= 1.02 * poisson


def test_precise_is_tighter(capsys):
    default = rows(capsys, *PAPER, "--noise-multiplier", "1")[0]["epsilon"]
    precise = rows(capsys, *PAPER, "--noise-multiplier", "1", "--precise")[0]["epsilon"]
    assert precise < default
    assert precise == pytest.approx(3.898795, rel=1e-5)


def test_delta_defaults_to_the_papers_choice(capsys):
    arguments = "--population 1e6 --cohort 100 --rounds 10 --noise-multiplier 1".split()
    assert rows(capsys, *arguments)[0]["delta"] == pytest.approx(1e6**-1.1)


def test_the_table_explains_itself(capsys):
    code, out, err = run(capsys, *PAPER, "--noise-multiplier", "1", "--accountant", "all")
    flat = " ".join(out.split())
    assert code == 0
    assert err == ""
    assert "User-level (3.900, 1e-09)-differential privacy" in flat
    assert "In words:" in flat
    assert "zcdp: not shown, because" in flat


def test_a_picture_is_drawn(capsys, tmp_path):
    for name in ("plot.png", "plot.svg"):
        path = tmp_path / name
        arguments = "--population 1e5 --cohort 100 --rounds 4 --noise-multiplier 1".split()
        code, _, _ = run(capsys, *arguments, "--plot", str(path))
        assert code == 0
        assert path.stat().st_size > 5000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plot.png", "plot.svg"]


GOOD = "--population 1000 --cohort 50 --rounds 5 --noise-multiplier 1"


def test_a_large_delta_is_taken_by_name_and_the_claim_says_what_it_allows(capsys):
    [row] = rows(capsys, *GOOD.split(), "--delta", "0.01", "--accept-large-delta")
    assert "any one user, since delta is not below 1 in 1,000" in row["claim"]
    [row] = rows(capsys, *GOOD.split(), "--delta", "0.0001", "--accept-large-delta")
    assert "any one user" not in row["claim"]


MISTAKES = [
    ("--population nan --cohort 5 --rounds 5 --noise-multiplier 1", "'nan' is not a whole number"),
    ("--population 1.5 --cohort 1 --rounds 5 --noise-multiplier 1", "'1.5' is not a whole number"),
    ("--population many --cohort 1 --rounds 5 --noise-multiplier 1", "'many' is not a whole"),
    ("--population -5 --cohort 1 --rounds 5 --noise-multiplier 1", "population must be at least 2"),
    ("--population 0 --cohort 1 --rounds 5 --noise-multiplier 1", "population must be at least 2"),
    ("--cohort 5 --rounds 5 --noise-multiplier 1", "give --population K"),
    ("--population 100 --cohort 500 --rounds 5 --noise-multiplier 1", "population of 100, got 500"),
    ("--population 100 --cohort 0 --rounds 5 --noise-multiplier 1", "cohort must be at least 1"),
    ("--population 100 --cohort 5 --rounds 0 --noise-multiplier 1", "rounds must be at least 1"),
    ("--population 100 --cohort 5 --rounds 5 --noise-multiplier nan", "above 0, got nan"),
    ("--population 100 --cohort 5 --rounds 5 --noise-multiplier -1", "above 0, got -1"),
    ("--population 100 --cohort 5 --rounds 5 --noise-multiplier 0", "above 0, got 0"),
    ("--population 100 --cohort 5 --rounds 5 --noise-multiplier inf", "above 0, got inf"),
    ("--population 100 --cohort 5 --rounds 5 --noise-multiplier x", "'x' is not a number"),
    (f"{GOOD} --delta 0.01", "below 1/population = 0.001"),
    (f"{GOOD} --delta 0.001", "below 1/population = 0.001"),
    (f"{GOOD} --delta 0", "delta must be above 0"),
    (f"{GOOD} --delta 1 --accept-large-delta", "delta must be above 0"),
    (f"{GOOD} --delta nan --accept-large-delta", "got nan"),
    (f"{GOOD} --delta nan", "got nan"),
    (f"{GOOD} --target-epsilon 3", "leaves nothing to solve for"),
    ("--population 100 --cohort 5 --rounds 5", "noise-multiplier is missing"),
    ("--population 100 --rounds 5 --noise-multiplier 1", "cohort is missing"),
    ("--population 100 --cohort 5 --target-epsilon 3", "multiplier and --rounds are missing"),
    ("--population 100 --rounds 5 --noise-multiplier 1 --target-epsilon 3", "--from-experiment"),
    ("--population 100 --cohort 5 --rounds 5 --target-epsilon 0", "--target-epsilon must be"),
    ("--population 100 --cohort 5 --rounds 5 --target-epsilon nan", "--target-epsilon must be"),
    (
        "--population 100 --cohort 50 --noise-multiplier 0.1 --target-epsilon 0.1",
        "allows no round at all",
    ),
    (f"{GOOD} --accountant mments", "did you mean 'moments'"),
    (f"{GOOD} --accountant zcdp", "no amplification by sampling"),
    (f"{GOOD} --accountant pld --sampling fixed", "use the rdp accountant"),
    (f"{GOOD} --accountant rdp --sampling truncated", "use the pld accountant"),
    (f"{GOOD} --sampling shuffle", "sampling must be one of poisson, truncated, fixed"),
    (f"{GOOD} --estimator mean", "estimator must be one of fixed, clipped"),
    (f"{GOOD} --unit person", "unit must be one of user, record"),
    (f"{GOOD} --max-cohort 60", "--max-cohort applies to truncated"),
    (f"{GOOD} --sampling truncated --max-cohort 10", "at least the expected cohort of 50"),
    (f"{GOOD} --from-experiment cohort=1,sigma=1,clip=1", "contradict each other"),
    ("--population 1e3 --cohort 5 --rounds 5 --from-experiment cohort=1", "sigma, clip is missing"),
    ("--population 1e3 --cohort 5 --rounds 5 --from-experiment foo=1", "not one of cohort, sigma"),
    (
        "--population 1e3 --cohort 5 --rounds 5 --from-experiment cohort=1,sigma=0,clip=1",
        "noise_stddev must be",
    ),
    (
        "--population 1e3 --cohort 5 --rounds 5 --from-experiment cohort=2e3,sigma=1,clip=1",
        "experiment's cohort must be at most",
    ),
    (f"{GOOD} --noise bltt", "noise must be one of independent, blt, banded, square-root, tree"),
    (f"{GOOD} --noise blt --min-separation 21", "must be at most 20, the population over"),
    (f"{GOOD} --min-separation 0", "separation must be at least 1, got 0"),
    (
        f"{GOOD} --min-separation 5 --sampling poisson",
        "separation of 5 is for users who take turns",
    ),
    (f"{GOOD} --noise banded --sampling fixed", "banded noise needs users who take turns"),
    (f"{GOOD} --noise blt --bands 5", "bands are a setting of banded and square-root noise, got 5"),
    (f"{GOOD} --noise banded --bands 0", "bands must be at least 1, got 0"),
    (f"{GOOD} --noise tree --buffers 5", "buffers are a setting of blt noise, got 5"),
    (f"{GOOD} --noise blt --buffers 33", "buffers must be at most 32, got 33"),
    (
        f"{GOOD} --noise banded --sampling cyclic-poisson --min-separation 5 --bands 6",
        "bands must be at most the separation of 5 for cyclic-poisson",
    ),
    (f"{GOOD} --noise blt --sampling cyclic-poisson", "noise must be banded or square-root for"),
    (f"{GOOD} --replace-one", "--replace-one is for min-separation sampling, got poisson"),
    (
        "--population 1e3 --cohort 50 --noise-multiplier 5 --noise blt --epsilon 3",
        "rounds cannot be solved for where users take turns",
    ),
    (
        "--population 1e3 --cohort 5 --rounds 5 --noise blt --from-experiment"
        " cohort=1,sigma=1,clip=1",
        "it says nothing about kinds of noise",
    ),
    (f"{GOOD} --plot x.bmp", "must end in .png, .svg, .pdf"),
    (f"{GOOD} --plot nowhere/x.png", "a folder that does not exist"),
    (f"{GOOD} --bogus 1", "--bogus"),
    ("--population 1e12 --cohort 5 --rounds 5 --noise-multiplier 1", "population must be at most"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    capsys, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments.split())
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("tacit: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def tacit(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tacit.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_from_a_shell_with_json_nothing_else_goes_to_standard_output():
    done = tacit("plan", *PAPER, "--noise-multiplier", "1", "--accountant", "all", "--json")
    assert done.returncode == 0
    assert [row["accountant"] for row in json.loads(done.stdout)] == ["pld", "rdp", "moments"]


def test_from_a_shell_a_mistake_has_no_traceback():
    done = tacit("plan", "--population", "10")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_has_an_example_and_no_arguments_show_help():
    assert "tacit plan --population 763430" in " ".join(tacit("plan", "--help").stdout.split())
    bare = tacit()
    assert bare.returncode == 0
    assert "plan" in bare.stdout
    assert tacit("--version").stdout.startswith("tacit ")


def test_a_closed_pipe_is_not_a_traceback():
    done = subprocess.run(
        f"{sys.executable} -m tacit.cli.main plan --help | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


TURNS = "--population 4000 --cohort 100 --rounds 60 --delta 1e-5".split()


def test_the_readme_s_setting_without_a_sampling_claim_is_worth_less_than_with_one(capsys):
    """4.34 with a square root of as many bands as the separation, beside 3.90 and 50.3."""
    found = rows(
        capsys,
        *PAPER,
        "--noise-multiplier",
        "1",
        "--min-separation",
        "152",
        "--noise",
        "independent",
    )
    assert found[0]["epsilon"] == pytest.approx(50.28, rel=0.01)
    by_kind = {(row["noise"], row["sampler"]): row for row in found[0]["noises"]}
    assert by_kind["independent", "poisson"]["epsilon"] == pytest.approx(3.90, rel=0.01)
    assert by_kind["square-root", "min-separation"]["epsilon"] == pytest.approx(4.34, rel=0.01)
    for row in found[0]["noises"]:
        assert row["running_sum_error"] == pytest.approx(found[0]["noises"][0]["running_sum_error"])


@pytest.mark.parametrize("noise", ["blt", "banded", "square-root", "tree", "independent"])
def test_every_kind_of_noise_meets_an_epsilon_and_is_shown_beside_the_others(capsys, noise):
    arguments = [*TURNS, "--epsilon", "4", "--noise", noise, "--min-separation", "20"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    said = " ".join(out.split())
    assert "no sampling assumed (each user at most 3 times, at least 20 rounds apart)" in said
    assert "all kinds of noise, at the same epsilon" in said
    for other in ("blt", "banded", "square-root", "tree", "independent"):
        assert other in said


def test_kinds_of_noise_are_compared_under_one_adjacency(capsys):
    more = ["--noise-multiplier", "8", "--noise", "blt", "--min-separation", "20", "--replace-one"]
    [row] = rows(capsys, *TURNS, *more)
    assert row["adjacency"] == "replace-one"
    assert {each["sampler"] for each in row["noises"]} == {"min-separation"}
    [once] = rows(capsys, *TURNS, *more[:-1])
    assert row["accounted_noise_multiplier"] == once["accounted_noise_multiplier"] / 2


def test_the_noise_that_is_accounted_is_that_of_all_rounds(capsys):
    """Three turns with independent noise: the square root of 3 less than in a single round."""
    [row] = rows(
        capsys,
        *TURNS,
        "--noise-multiplier",
        "2",
        "--noise",
        "independent",
        "--min-separation",
        "20",
    )
    assert row["accounted_noise_multiplier"] == pytest.approx(2 / 3**0.5)


def test_a_named_accountant_does_not_change_what_kinds_of_noise_are_compared_by(capsys):
    more = [*TURNS, "--noise-multiplier", "8", "--noise", "banded", "--min-separation", "20"]
    [usual], [named] = rows(capsys, *more), rows(capsys, *more, "--accountant", "zcdp")
    assert (usual["accountant"], named["accountant"]) == ("pld", "zcdp")
    assert usual["noises"] == named["noises"]


def test_a_picture_of_kinds_of_noise_is_drawn(capsys, tmp_path):
    path = tmp_path / "kinds.svg"
    more = ["--noise-multiplier", "8", "--noise", "tree", "--min-separation", "20"]
    code, _, _ = run(capsys, *TURNS, *more, "--plot", str(path))
    assert code == 0
    drawn = path.read_text()
    assert "error of the running sum" in drawn
    assert "min-separation" in drawn
