"""What a user's texts are ordered by: numbers and ISO dates as they are, other dates by a format.

Text such as 03.02.2024 would be sorted by day before year, and a cap would keep the wrong texts, so
a date that is not ISO is refused unless its format is said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from tacit.privacy.checks import argument

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"\d{4}-\d\d(-\d\d)?\b|\d{4}-?W?\d\d")
_OTHER_DATE = re.compile(r"\s*\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\b|\s*\d{1,2}[. ]\s*[^\W\d]{3,}")


@dataclass
class OrderColumn:
    """Makes what is sorted of the values of an order column.

    format: how its dates are written, as `datetime.strptime` has it ("%d.%m.%Y"); None for numbers,
        ISO dates and text.
    texts: how many values so far were neither numbers nor dates, and are sorted as text.
    """

    format: str | None = None
    texts: int = 0

    def __post_init__(self) -> None:
        if self.format is None:
            return
        try:
            if "%" not in self.format:
                raise ValueError
            datetime.strptime(_EPOCH.strftime(self.format), self.format)
        except (ValueError, re.error):
            raise ValueError(
                f"{argument('order_format')} must be such as '%d.%m.%Y %H:%M', got {self.format!r}"
            ) from None

    def sortable(self, value: str, where: str) -> str:
        """The value as it is sorted; `where` names its record if it is refused."""
        if self.format is not None:
            return repr(self._seconds(value, self.format, where))
        try:
            float(value)
        except ValueError:
            if not _ISO.match(value):
                if _OTHER_DATE.match(value):
                    raise ValueError(
                        f"{where} has the order {value!r}, which would be sorted as text: say how"
                        f" dates are written with {argument('order_format')}, such as %d.%m.%Y"
                    ) from None
                self.texts += 1
        return value

    @staticmethod
    def _seconds(value: str, format: str, where: str) -> float:
        """The seconds since 1970; a time without a zone is taken for UTC."""
        try:
            moment = datetime.strptime(value.strip(), format)
        except ValueError:
            raise ValueError(
                f"{where} has the order {value!r}, which is not of the form {format!r} that"
                f" {argument('order_format')} says"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
