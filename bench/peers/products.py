"""The matrix products of a user's local steps, as torch does them, and nothing else.

The argument is how many users' products a round has.
"""

from __future__ import annotations

import sys
from pathlib import Path

from workload import serve

sys.path.append(str(Path(__file__).parents[1]))
from kernels import products


def main() -> None:
    cohort = int(sys.argv[1])
    run, operations = products("lstm")

    def one_round(_: list[str]) -> dict[str, object]:
        for _ in range(cohort):
            run()
        return {"users": cohort, "operations": operations, "finite": True}

    serve(one_round)


if __name__ == "__main__":
    main()
