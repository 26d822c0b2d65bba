"""The figures of eDP-SGD as printed (Dupuy et al. 2021), each with its meaning."""

from __future__ import annotations

import math

from tacit.mechanisms.edp_accounting import PaperFigures
from tacit.privacy.claims import format_epsilon


def as_printed(found: PaperFigures) -> list[dict[str, object]]:
    """The figures of `edp-sgd-paper`, each with its meaning."""
    rows = (found.actual, found.given_public_scaling, found.as_published)
    return [
        {
            "epsilon": figure.epsilon if math.isfinite(figure.epsilon) else None,
            "shown": format_epsilon(figure.epsilon),
            "delta": figure.delta,
            "meaning": figure.meaning,
        }
        for figure in rows
    ]
