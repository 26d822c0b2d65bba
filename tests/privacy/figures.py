"""Published figures, and reference figures computed elsewhere (see `reference.json`).

Table 1 is that of the first version of McMahan et al. 2018; the final version prints 42 of its 63
cells.  Each row: users K, cohort C, noise multiplier z, epsilon after 1, 10, ..., 10^6 rounds at
delta = K^-1.1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TABLE_1 = [
    (10**5, 10**2, 1.0, "0.97 0.98 1.00 1.07 1.18 2.21 7.50"),
    (10**6, 10**1, 1.0, "0.68 0.69 0.69 0.69 0.69 0.72 0.73"),
    (10**6, 10**2, 1.0, "0.85 0.85 0.89 0.89 0.90 0.93 1.10"),
    (10**6, 10**3, 1.0, "1.17 1.17 1.20 1.28 1.39 2.44 8.13"),
    (10**6, 10**4, 1.0, "1.73 1.92 2.08 3.06 8.49 32.38 187.01"),
    (10**6, 10**3, 3.0, "0.47 0.47 0.48 0.48 0.49 0.67 1.95"),
    (10**7, 10**3, 1.0, "0.99 1.00 1.04 1.04 1.05 1.08 1.25"),
    (10**8, 10**3, 1.0, "0.90 0.92 0.92 0.92 0.92 0.96 0.97"),
    (10**9, 10**3, 1.0, "0.84 0.84 0.84 0.85 0.88 0.88 0.88"),
]

TABLE_1_CELLS = [
    (users, cohort, z, 10**power, printed)
    for users, cohort, z, row in TABLE_1
    for power, printed in enumerate(row.split())
]

# Table 2: K, C, printed epsilon at z = 1, 5000 rounds, delta = 1e-9.
TABLE_2 = [
    (763_430, 5000, "4.634"),
    (763_430, 1667, "2.314"),
    (763_430, 1250, "2.038"),
    (10**8, 5000, "1.152"),
    (10**8, 1667, "0.991"),
    (10**8, 1250, "0.987"),
]

# What the text states at z = 1: K, C, rounds, delta, the printed figure.  1.97 and 3.81 are
# truncated rather than rounded; 4.6 and 1.2 are printed to one decimal.
STATED = [
    (763_430, 1250, 3000, 1e-9, "1.97"),
    (763_430, 1250, 3000, 1e-6, "1.35"),
    (763_430, 5000, 3000, 1e-9, "3.81"),
    (763_430, 5000, 20_000, 1e-9, "8.92"),
    (763_430, 5000, 4980, 1e-9, "4.6"),
    (10**8, 5000, 4980, 1e-9, "1.2"),
]

REFERENCE: dict[str, Any] = json.loads((Path(__file__).parent / "reference.json").read_text())
CASES: list[dict[str, Any]] = REFERENCE["table1"] + REFERENCE["table2"] + REFERENCE["stated"]


def case_id(case: dict[str, Any]) -> str:
    return "K{K:g}-C{C:g}-z{z:g}-T{rounds:g}-d{delta:.1g}".format(**case)
