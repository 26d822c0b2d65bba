"""Packages that only some models need."""

from __future__ import annotations

import importlib.util


def require(package: str, extra: str, what: str) -> None:
    """`ValueError` with the way to install it if the package is not there."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"{what} needs the package {package}: pip install 'tacit-dp[{extra}]'")
