"""`tacit papers`: tables and pictures of published experiments.

The group is registered as an entry point of `tacit.commands` in pyproject.toml: the package itself
does not know that it exists.
"""
