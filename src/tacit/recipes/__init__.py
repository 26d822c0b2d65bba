"""Experiments as TOML files, one per published setting; `tacit recipes list` shows them."""
