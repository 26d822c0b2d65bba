"""The papers' settings as TOML files, found by name through the entry point of `tacit.recipes`."""
