"""People's text, keyed by user: ingest, a memory-mapped store, splits, views, built-in corpora."""
