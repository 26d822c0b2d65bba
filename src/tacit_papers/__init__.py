"""The papers' experiments on top of tacit: recipes, grids of trainings, tables and pictures.

One package for each paper that needs more than a recipe; `tacit papers` has their commands.  tacit
does not import anything of it: it finds commands and recipes through the entry points that
pyproject.toml registers, as it would find those of any other package.
"""
