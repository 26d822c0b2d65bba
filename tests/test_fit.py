"""docs/fit.md: every noise in its table is what accounting gives, and so is its example."""

import re
from pathlib import Path

import pytest

import tacit

PAGE = (Path(__file__).parents[1] / "docs" / "fit.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [\d,]+ \| [\d,]+ \|", line)
]
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def noise(users: int, cohort: int, epsilon: float) -> str:
    z = tacit.noise_multiplier(
        sampling_prob=cohort / users, epsilon=epsilon, rounds=30, delta=users**-1.1
    )
    return f"{1000 * z / cohort:.2g}"


def test_the_table_has_its_rows_and_columns():
    assert [len(row) for row in ROWS] == [7] * 7
    assert all(int(cohort) == min(int(users), 5000) for users, cohort, *_ in ROWS)
    headings = [line for line in PAGE.splitlines() if line.startswith("| users K")]
    assert re.findall(r"[\d.]+", headings[0]) == ["0.5", "1", "2", "4", "8"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_noise_at_epsilon_2(row):
    assert noise(int(row[0]), int(row[1]), 2.0) == row[4]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_noise_at_every_epsilon(row):
    assert [noise(int(row[0]), int(row[1]), epsilon) for epsilon in EPSILONS] == row[2:]


def test_the_example_prints_what_it_says(capsys):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.strip() == re.findall(r"# ([\d.]+)$", block, re.MULTILINE)[0]
