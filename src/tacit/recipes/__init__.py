"""Experiments as TOML files; `tacit recipes list` shows them with those of other packages."""

# What was run on record, where it stands, and how; see tacit.tasks.catalogue.
RECORDS = {
    "demo": (
        "docs/results/memorization.md#the-demo",
        "all three variants with canaries planted, by the demo of then, one seed",
    ),
}
