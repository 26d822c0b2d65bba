"""docs/notebook.ipynb runs from top to bottom, and prints what it shows.

Cells are run in order in one namespace by `exec`, so that no Jupyter is needed.  What a cell with
the tag `deterministic` prints has to be what is stored.  To store new outputs:

    python -m tests.test_notebook
"""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


def run_cells(notebook: dict[str, Any]) -> list[str]:
    """What each code cell prints, in order."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec("".join(cell["source"]), namespace)
            printed.append(output.getvalue())
    return printed


def stored_text(cell: dict[str, Any]) -> str:
    """What a cell shows of its standard output."""
    return "".join(line for output in cell["outputs"] for line in output["text"])


def test_notebook_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    compared = 0
    for cell, printed in zip(cells, run_cells(notebook), strict=True):
        assert stored_text(cell), "run python -m tests.test_notebook to store the outputs"
        if "deterministic" in cell["metadata"].get("tags", []):
            assert printed == stored_text(cell)
            compared += 1
    assert compared >= 4


def _store() -> None:
    """Run the notebook, and keep what its cells print in it."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TACIT_STATE"] = f"{folder}/state"
        os.chdir(folder)
        printed = run_cells(notebook)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(cells, printed, strict=True), start=1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _store()
