"""Experiments as TOML: sections, recipes, and the mistakes one can make in them."""
