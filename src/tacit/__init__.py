"""tacit: train language models on people's text without letting the models remember the people.

`tacit.epsilon` and `tacit.noise_multiplier` say what a training of one's own costs, and how much
noise an epsilon asks for; training itself begins at `tacit.train`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.privacy.costs import epsilon, noise_multiplier

__version__ = "0.1.0"
__all__ = ["__version__", "epsilon", "noise_multiplier"]


def __getattr__(name: str) -> Any:
    """The functions above, imported when they are first asked for: accounting takes a second."""
    if name not in __all__:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    from tacit.privacy import costs

    return getattr(costs, name)
