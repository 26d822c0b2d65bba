"""TOML tables that are read strictly: what every task's experiment is built from.

An experiment is a tree of `Section`s, one for each table of a TOML file.  Unknown keys are refused,
values are checked as they are read, and a mistake ends in one sentence that names the file, the key
and the key that was probably meant.  `merge` is how recipes extend one another, how `--set` works
and how a phase changes the plan: one rule for all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, get_origin

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tacit.privacy import documents
from tacit.privacy.visible import one_line

Whole = Annotated[int, Field(ge=1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Probability = Annotated[float, Field(gt=0, le=1, strict=True)]
Share = Annotated[float, Field(gt=0, lt=1, strict=True)]
Tables = dict[str, Any]  # as tomllib reads them
LONGEST_NAME = 500  # characters of a name, which may be that of a recipe and of its variant

_MOST_QUOTED = 200  # characters of a value that is wrong

# Keys of the plan that contradict each other: setting one of them removes the other.
_NORMS = {"clip_norm", "layer_clip_norms"}
_CONTRADICTORY = ({"noise_multiplier", "noise_stddev"}, _NORMS, {"schedule", "adaptive"})


class Section(BaseModel):
    """A table of the file.  Unknown keys are mistakes, and nothing changes after reading.

    All text in it is one line, without characters that act on whoever is shown it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    longest: ClassVar[int] = 4096  # characters of a text, which may be a path

    @field_validator("*")
    @classmethod
    def _texts_are_lines(cls, value: Any, info: ValidationInfo) -> Any:
        most = LONGEST_NAME if info.field_name == "name" else cls.longest
        for text in _texts(value):
            one_line("it", text, most)
        return value


class About(Section):
    """What the experiment stands for, in words."""

    longest: ClassVar[int] = 1000
    paper: str = ""
    section: str = ""
    says: str = ""
    users: Whole | None = None  # for about how many training users the setting is meant


class Complete(Section):
    """All that decides about a training: `from_toml` reads it, `to_toml` writes every value."""

    def parts(self) -> list[str]:
        """The names of its trainings, where a single experiment stands for several."""
        return []

    @classmethod
    def from_data(cls, data: Tables, where: str) -> Self:
        """An experiment from tables; a mistake is one sentence that names `where` and the key."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ValueError(sentence(error, where, cls)) from None

    @classmethod
    def from_toml(cls, text: str, where: str) -> Self:
        """The experiment that a TOML text holds; `where` names the text in an error."""
        return cls.from_data(read_toml(text, where), where)

    def to_toml(self) -> str:
        """Every value.  Reading it gives the same experiment; ledgers hold the text's digest."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def changed(self, **values: Any) -> Self:
        """A copy with other values, by section: changed(plan={"noise_multiplier": 1.0})."""
        return type(self).from_data(merge(self.model_dump(), values), "the changed experiment")

    def refuse_another(
        self, asked: Complete, holder: object, or_else: str, *, filled_in: Sequence[str] = ()
    ) -> None:
        """Raise if `asked` is not this experiment: a run goes on unchanged, or not at all.

        Names and words about an experiment may differ, and a seed need not be repeated.

        Args:
            asked: the experiment that a caller wants to go on with.
            holder: the directory that holds this experiment, for the error.
            or_else: what a caller can do instead, for the error.
            filled_in: keys that may differ, because they are filled in when a run begins.
        """
        old, new = (dict(by_dotted_key(one.model_dump())) for one in (self, asked))
        for key in {**new, **old}:
            free = key == "name" or key.startswith("about.")
            free = free or any(key == one or key.startswith(f"{one}.") for one in filled_in)
            free = free or (key == "seed" and new.get("seed") is None)
            if not free and old.get(key) != new.get(key):
                raise ValueError(
                    f"{holder} holds another experiment: {key} is {old.get(key)!r} there and"
                    f" {new.get(key)!r} here; resume it unchanged, or {or_else}"
                )


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, the keys of tables among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def read_toml(text: str, where: str) -> Tables:
    """The tables of a TOML text; `where` names it in an error."""
    return documents.parse_toml(text, where)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Tables:
    """Both tables in one, key by key; where both have a value, that of `changes`.

    Where a value of `changes` contradicts another key of `base` (a noise multiplier and a noise
    stddev, a clip norm and no clipping), that key of `base` is dropped.  Two keys of one table that
    contradict each other are kept, so that the experiment is refused.
    """
    set_keys = {key for key, value in changes.items() if value is not None}
    replaced = set().union(*(pair - set_keys for pair in _CONTRADICTORY if pair & set_keys))
    if changes.get("clipping") == "none":
        replaced |= _NORMS
    elif base.get("clipping") == "none" and _NORMS & set_keys:
        replaced.add("clipping")
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def by_dotted_key(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values of nested tables, each with its dotted key such as plan.clip_norm."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from by_dotted_key(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def sentence(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """The first mistake as one sentence: which key of which file, its value, what would be right.

    Args:
        error: what pydantic reports for `model`.
        where: the file or recipe, as the sentence's subject.
        model: the section or experiment that was to be read.
    """
    first = error.errors()[0]
    keys, table = _locate(model, first["loc"])
    key, message = ".".join(keys), first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    match first["type"]:
        case "extra_forbidden":
            return f"{where} has the unknown key {key!r}; {_hint(model, table, keys)}"
        case "missing":
            return f"{where}: {key} is missing"
        case "value_error":
            return f"{where}: {f'{key}: ' if key else ''}{message}"
    got = repr(first.get("input"))
    got = got if len(got) <= _MOST_QUOTED else f"{got[:_MOST_QUOTED]}..."
    return f"{where}: {key} cannot be {got}: {message}"


def _hint(model: type[BaseModel], table: type[BaseModel], keys: list[str]) -> str:
    """The known key that an unknown one was probably meant to be, or all that the table knows."""
    if len(keys) == 1:  # it may stand outside of its section
        for name, field in model.model_fields.items():
            section = _section_in(field.annotation)
            if section is not None and keys[0] in section.model_fields:
                return f"did you mean {f'{name}.{keys[0]}'!r}?"
    known = sorted(table.model_fields)
    near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {'.'.join([*keys[:-1], *near])!r}?"
    return f"known: {', '.join(known)}"


def _locate(
    model: type[BaseModel], location: tuple[int | str, ...]
) -> tuple[list[str], type[BaseModel]]:
    """The keys that lead to a mistake, and the innermost section on the way there.

    The names of types that pydantic adds to a location are left out.
    """
    keys: list[str] = []
    for part in location:
        keys.append(str(part))
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            break
        section = _section_in(field.annotation)
        if section is None:  # a value, or a table or list of values
            below = location[len(keys) : len(keys) + 1]
            is_container = get_origin(field.annotation) is dict or isinstance((*below, "")[0], int)
            keys += [str(key) for key in below if is_container]
            break
        model = section
    return keys, model


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field's type mentions: in `Plan`, `Plan | None`, `tuple[Phase, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = map(_section_in, getattr(annotation, "__args__", ()))
    return next(filter(None, parts), None)
