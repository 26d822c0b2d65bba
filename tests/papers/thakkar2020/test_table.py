"""The table: what is counted, how it reads, and what is said about epsilon."""

import math

import pytest

from tacit.privacy.claims import PROJECTED
from tacit_papers.thakkar2020 import plot, table


def canary(sharers, prob, rs, *, bs=False, copies=1, exposure=2.0):
    return {
        "expected_sharers": sharers,
        "example_prob": prob,
        "copies": copies,
        "memorized_rs": rs,
        "memorized_bs": bs,
        "exposure": exposure,
    }


def found(arm="fedavg-non-iid-5", seed=0, canaries=(), **changes):
    optimizer, data = arm.rsplit("-", 1)[0], "non-iid"
    for order in ("non-iid", "iid"):
        if optimizer.endswith(order):
            optimizer, data = optimizer.removesuffix(f"-{order}"), order
            break
    row = {
        "arm": arm,
        "optimizer": {"fedavg-clip": "fedavg+clip"}.get(optimizer, optimizer),
        "data": data,
        "batch": int(arm.rsplit("-", 1)[1]),
        "unit": "users",
        "seed": seed,
        "canaries": list(canaries) or [canary(4.0, 0.1, True), canary(4.0, 0.1, False)],
        "controls": [{"memorized_rs": False, "memorized_bs": False, "exposure": 1.0}] * 3,
        "held_out": {"accuracy_top1": 0.25, "perplexity": 60.0},
        "epsilon": None,
        "claim": "No differential privacy: no noise.",
    }
    return row | changes


def text_of(row) -> dict[str, str]:
    return dict(zip(table.HEADERS, table.cells(row), strict=True))


def test_counts_are_listed_by_seed_and_figures_are_means():
    first = found(canaries=[canary(4.0, 0.1, True, bs=True), canary(4.0, 0.1, True)])
    second = found(seed=1, held_out={"accuracy_top1": 0.27, "perplexity": 50.0})
    [row] = table.table_rows([first, second])
    assert (row.memorized_rs, row.memorized_bs, row.canaries) == ([2, 1], [1, 0], [2, 2])
    shown = text_of(row)
    assert shown["RS"] == "2, 1 of 2"
    assert shown["BS"] == "1, 0"
    assert shown["Controls"] == "0, 0 of 3"
    assert (shown["Acc. %"], shown["Perp."]) == ("26.00", "55.0")
    assert shown["Acc. % if UNK competes"] == "-"  # results of before do not have it
    assert not any(note.startswith("Acc.:") for note in table.notes([row]))
    assert (shown["Optimizer"], shown["Data"], shown["Batch"]) == ("FedAvg", "Non-IID", "5 users")


def test_both_accuracies_are_shown_and_told_apart():
    held_out = {"accuracy_top1": 0.25, "accuracy_top1_unk_competes": 0.125, "perplexity": 60.0}
    [row] = table.table_rows([found(held_out=held_out), found(seed=1)])
    shown = text_of(row)
    assert (shown["Acc. %"], shown["Acc. % if UNK competes"]) == ("25.00", "12.50")
    assert any(note.startswith("Acc.:") for note in table.notes([row]))


def test_the_lowest_configuration_is_that_of_the_fewest_expected_insertions():
    rows = [
        canary(16.0, 0.1, True, copies=40),  # 1.6 expected for each text of a user
        canary(1.0, 1.0, True, copies=30),  # 1.0
        canary(4.0, 0.1, False, copies=9),  # 0.4, and not memorized
    ]
    lowest = table.lowest_memorized(rows)
    assert lowest == {"expected_sharers": 1.0, "example_prob": 1.0, "copies": 30}
    assert table.lowest_memorized(rows[2:]) is None


def test_no_noise_is_an_infinite_epsilon():
    [row] = table.table_rows([found()])
    assert text_of(row)["Epsilon"] == "infinity"


def test_an_epsilon_of_synthetic_users_is_not_printed():
    [row] = table.table_rows([found("dp-fedavg-iid-5", epsilon=3.0, delta=1e-4)])
    assert text_of(row)["Epsilon"] == "no claim"


def test_a_projected_epsilon_stands_beside_the_actual_one_and_says_so():
    projected = {"epsilon": 1.5, "delta": 1e-8, "label": PROJECTED}
    row = found("dp-fedavg-non-iid-5", epsilon=700.0, delta=1e-4, projected=projected)
    [row] = table.table_rows([row])
    assert text_of(row)["Epsilon"] == f"700.0 at 0.0001 (1.500 at 1e-08 {PROJECTED})"


def test_arms_that_differ_in_one_thing_are_compared_canary_by_canary():
    def arm(name, exposures):
        return found(name, canaries=[canary(4.0, 0.1, e > 9, exposure=e) for e in exposures])

    every = [
        arm("fedavg-iid-5", [20.0, 10.0]),
        arm("fedavg-non-iid-5", [12.0, 2.0]),
        arm("fedavg-clip-non-iid-5", [8.0, 2.0]),
        arm("dp-fedavg-non-iid-5", [1.0, 1.0]),
    ]
    made = {(p.arm, p.minus): p for p in table.comparisons(every)}
    assert set(made) == {
        ("fedavg-iid-5", "fedavg-non-iid-5"),
        ("fedavg-non-iid-5", "fedavg-clip-non-iid-5"),
        ("fedavg-clip-non-iid-5", "dp-fedavg-non-iid-5"),
    }
    first = made["fedavg-iid-5", "fedavg-non-iid-5"]
    assert first.memorized_rs == [1]
    assert first.exposure.mean == 8.0
    assert first.exposure.over_canaries == (8.0, 8.0)  # paired: no spread at all
    clip = made["fedavg-non-iid-5", "fedavg-clip-non-iid-5"].exposure
    assert clip.mean == 2.0
    assert clip.over_canaries[1] - 2 == pytest.approx(12.706205 * math.sqrt(8 / 2))


def test_without_ranks_there_is_no_exposure():
    row = found(canaries=[canary(4.0, 0.1, True, exposure=None)] * 2)
    row["controls"] = [{"memorized_rs": False, "memorized_bs": False, "exposure": None}]
    [made] = table.table_rows([row])
    assert made.exposure is None
    assert text_of(made)["Exposure"] == "-"
    assert not any("by chance" in note for note in table.notes([made]))


def test_the_markdown_has_a_line_for_each_arm_and_says_what_intervals_cover():
    every = [found("fedavg-iid-5"), found("fedavg-non-iid-5"), found("fedavg-iid-5", seed=1)]
    rows, compared = table.table_rows(every), table.comparisons(every)
    text = table.markdown(rows, compared)
    assert text.count("| FedAvg |") == 2
    assert "| fedavg-iid-5 | fedavg-non-iid-5 | +0 |" in text
    assert "interval over canaries" in text
    assert "Student's t on the seeds' means" in text
    assert "none is for release" in text


def test_the_picture_is_drawn(tmp_path):
    every = [found("fedavg-iid-5"), found("fedavg-non-iid-5")]
    plot.draw(tmp_path / "a.png", table.table_rows(every), every)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
