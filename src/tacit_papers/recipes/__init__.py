"""The papers' settings as TOML files, found by name through the entry point of `tacit.recipes`.

`tacit.tasks.catalogue` says what the two tables are.  Whoever records a recipe, or records it anew,
adds its line here; a test holds the pages against this table.
"""

SHELVES = {
    "secret-sharer": (
        "tacit_papers.thakkar2020.grid:GRIDS",
        "tacit papers secret-sharer NAME --out DIR",
    )
}

RECORDS = {
    "mcmahan2018": (
        "docs/results/next-word.md",
        "200 rounds of 50 users on the Supreme Court's arguments, one seed; FedAvg by --set",
    ),
    "secret-sharer-small": (
        "docs/results/memorization.md",
        "extended: four arms on 4,000 people of the #ubuntu channel, two seeds",
    ),
    "thakkar2020-headline-small": (
        "docs/results/memorization.md",
        "29 of 60 rounds of FedAvg on IID and non-IID data, one seed; no canary came out yet",
    ),
    "dupuy2021-generated": (
        "docs/results/nlu.md",
        "SGD and both forms of eDP-SGD without decay, one seed",
    ),
    "dupuy2021-clc": (
        "docs/results/nlu.md",
        "SGD and calibrated eDP-SGD on ATIS, SNIPS and NLU-EVAL, DP-SGD on ATIS only, one seed;"
        " as printed, eDP-SGD was timed and never trained",
    ),
    "dupuy2021-bert": (
        "docs/results/nlu.md",
        "SGD and calibrated eDP-SGD on ATIS, SNIPS and NLU-EVAL, DP-SGD on ATIS only, one seed;"
        " as printed, eDP-SGD was timed and never trained",
    ),
    "dupuy2021-clc-times": ("docs/results/nlu.md", "DP-SGD in three ways on ATIS, 200 steps"),
    "dupuy2021-bert-times": ("docs/results/nlu.md", "DP-SGD in three ways on ATIS, 200 steps"),
}
