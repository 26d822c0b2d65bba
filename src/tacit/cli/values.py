"""How values are written on the command line."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import typer

from tacit.privacy.projection import SmallExperiment


def whole_number(text: str) -> int:
    """A whole number such as 763430, 763_430 or 1e8."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a whole number such as 763430 or 1e8") from None
    if not value.is_finite() or value != value.to_integral_value():
        raise typer.BadParameter(f"{text!r} is not a whole number such as 763430 or 1e8")
    if abs(value) > 10**15:
        raise typer.BadParameter(f"{text!r} is above 1e15, more than there is anything of")
    return int(value)


def number(text: str) -> float:
    """A number such as 1, 0.7 or 1e-9."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number such as 1, 0.7 or 1e-9") from None


def experiment(text: str) -> SmallExperiment:
    """cohort=100,sigma=0.003,clip=15 and, if they differ, population=... and rounds=..."""
    names = ("cohort", "sigma", "clip")
    example = "cohort=100,sigma=0.003,clip=15"
    values: dict[str, float] = {}
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in (*names, "population", "rounds"):
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(names)}; write {example}")
        if name in values or name in counts:
            raise typer.BadParameter(f"{name} is given twice; write {example}")
        if name in names:
            values[name] = number(value)
        else:
            counts[name] = whole_number(value)
    if len(values) < len(names):
        missing = ", ".join(name for name in names if name not in values)
        raise typer.BadParameter(f"{missing} is missing; write {example}")
    return SmallExperiment(values["cohort"], values["sigma"], values["clip"], **counts)
