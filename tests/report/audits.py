"""Audits written by hand, as `tacit audit` writes them."""

import json
import random
from pathlib import Path
from typing import Any

SECRET = "sentinel-of-the-private-folder"
MEMBERS = 918_273_645
PHRASE = "my password is hunter2"
LOG_PERPLEXITY = 17.302585092994  # enough to find the phrase by
HOSTILE = "<script>alert('canary')</script>"


def canary(number: int, sharers: float, example_prob: float, exposure: float) -> dict[str, Any]:
    """One row; memorized if its exposure is large."""
    return {
        "text": f"canary number {number} of {sharers:g}",
        "expected_sharers": sharers,
        "example_prob": example_prob,
        "sharers": round(sharers),
        "copies": round(10 * sharers * example_prob),
        "log_perplexity": 40.0 - exposure,
        "memorized_rs": exposure > 20,
        "memorized_bs": exposure > 24,
        "rank": 2.0 ** (27 - exposure),
        "rank_standard_error": None,
        "exposure": exposure,
    }


def audit(**changes: Any) -> dict[str, Any]:
    """24 canaries in six cells, of which those with 16 sharers are memorized."""
    draw = random.Random(0)
    rows = []
    for sharers in (1.0, 4.0, 16.0):
        for example_prob in (0.1, 1.0):
            for number in range(4):
                exposure = 1.5 * sharers**0.5 * (1 + 2 * example_prob) + draw.uniform(0, 8)
                rows.append(canary(number, sharers, example_prob, round(exposure, 2)))
    rows[0]["text"] = HOSTILE
    rows[1]["exposure"] = rows[1]["rank"] = None
    rows[2]["rank_standard_error"] = 1200.0
    return {
        "round": 6,
        "settings": {"suffixes": 2_000_000, "beam_width": 5, "prefix_words": 2},
        "canaries": len(rows),
        "memorized_rs": sum(row["memorized_rs"] for row in rows),
        "memorized_bs": sum(row["memorized_bs"] for row in rows),
        "memorized": sum(row["memorized_rs"] or row["memorized_bs"] for row in rows),
        "controls": {"count": 100, "memorized_rs": 0, "memorized_bs": 0, "memorized": 0},
        "rows": rows,
        "phrases": [{"text": "phrase 1", "memorized_rs": False, "memorized_bs": False}],
        "empirical_epsilon": {
            "estimate": 1.4,
            "lower_bound": 0.3,
            "confidence": 0.95,
            "ceiling": 3.4792,
            "delta": 1e-3,
            "canaries": 500,
            "took_part": 250,
            "guesses": 100,
            "correct": 60,
            "try_number": 1,
            "confidence_asked": 0.9,
            "highest_lower_bound": 0.3,
            "normality_p": 0.4,
            "says": "Epsilon is at least 0.3 at a confidence of 0.95, which agrees.",
            "warnings": [],
        },
        "accounted_epsilon": 7.0,
        "delta": 1e-3,
        "accountant": "pld",
    } | changes


def membership() -> dict[str, Any]:
    """Two attacks on real users."""
    places = [number / 200 for number in range(201)]

    def attack(name: str, power: float, why_not: str | None) -> dict[str, Any]:
        rare = {"fpr": 0.001, "tpr": None, "interval": None, "why_not": why_not}
        common = {"fpr": 0.01, "tpr": 0.04, "interval": [0.02, 0.07], "why_not": None}
        return {
            "name": name,
            "members": MEMBERS,
            "non_members": 300,
            "member_units": MEMBERS,
            "non_member_units": 300,
            "excluded": {},
            "auc": 1 / (1 + power),
            "auc_interval": [0.5, 0.7],
            "confidence": 0.95,
            "tpr_at": [common, rare],
            "roc": [[place, place**power] for place in places],
        }

    why = f"only 300 non-members ({SECRET})"
    attacks = [attack("user inference", 0.6, why), attack(f"loss {SECRET}", 0.8, why)]
    found = {"members": MEMBERS, "non_members": 300, "attacks": attacks}
    found |= {"references": 1, "confidence": 0.95, "absent": {}}
    [phrase] = audit()["phrases"]
    phrase |= {"text": PHRASE, "log_perplexity": LOG_PERPLEXITY, "exposure": 11.5}
    phrase |= {"rank": 1234.0, "rank_standard_error": None}
    return {"membership": found, "phrases": [phrase], "round": 6}


def put(run: Path, found: Any | None = None, private: Any | None = None) -> None:
    """Write the files of an audit into a run directory."""
    (run / "audit.json").write_text(json.dumps(audit() if found is None else found))
    hidden = membership() if private is None else private
    (run / "private" / "audit.json").write_text(json.dumps(hidden))
