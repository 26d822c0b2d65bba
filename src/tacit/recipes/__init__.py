"""Experiments as TOML files; `tacit recipes list` shows them with those of other packages."""
