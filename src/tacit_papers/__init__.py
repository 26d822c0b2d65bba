"""The papers' recipes, grids, tables and plots, on top of tacit."""
