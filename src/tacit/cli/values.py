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
    """cohort=100,sigma=0.003,clip=15"""
    names = ("cohort", "sigma", "clip")
    example = "cohort=100,sigma=0.003,clip=15"
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not equals or name.strip() not in names:
            raise typer.BadParameter(f"{part!r} is not one of {', '.join(names)}; write {example}")
        if name.strip() in values:
            raise typer.BadParameter(f"{name.strip()} is given twice; write {example}")
        try:
            values[name.strip()] = float(number)
        except ValueError:
            raise typer.BadParameter(f"{part!r} has no number; write {example}") from None
    if len(values) < len(names):
        missing = ", ".join(name for name in names if name not in values)
        raise typer.BadParameter(f"{missing} is missing; write {example}")
    return SmallExperiment(values["cohort"], values["sigma"], values["clip"])
