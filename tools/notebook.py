"""Run the notebooks of docs/notebooks without Jupyter and store their outputs: `python -m tools.notebook`.

If a cell's metadata has `reduced`, tests replace the cell's variables by these values, which take less time. The last
expression of a cell is shown if it is a figure, with the cell's metadata `alt` as its description.
"""

import ast
import base64
import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
Cell = dict[str, Any]


def read(path: Path) -> Cell:
    """Return a notebook."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, notebook: Cell) -> None:
    """Write a notebook in Jupyter's format."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def executed(notebook: Cell, *, reduced: bool = False) -> Cell:
    """Run the cells one after another and return the notebook with their outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells: list[Cell] = []
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _outputs(ast.parse("".join(cell["source"])), names, count)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
        if reduced:
            names |= cell["metadata"].get("reduced", {})
    return {**notebook, "cells": cells}


def _outputs(code: ast.Module, names: dict[str, Any], count: int) -> list[Cell]:
    last = code.body[-1] if code.body else None
    shown = last.value if isinstance(last, ast.Expr) else None
    code.body = code.body[:-1] if shown is not None else code.body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(code, f"cell {count}", "exec"), names)
        if shown is not None:
            value = eval(compile(ast.Expression(shown), f"cell {count}", "eval"), names)
    outputs: list[Cell] = []
    if printed.getvalue():
        outputs.append(
            {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if isinstance(value, Figure):
        file = io.BytesIO()
        value.savefig(file, format="png", dpi=110)
        data = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": ["<Figure>"]}
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def printed(notebook: Mapping[str, Any]) -> str:
    """Return everything that a notebook printed."""
    return "".join(
        "".join(out["text"]) for cell in notebook["cells"] for out in cell.get("outputs", ()) if "text" in out
    )


def as_markdown(notebook: Mapping[str, Any]) -> str:
    """Return a notebook as Markdown, with its outputs."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Cell) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield re.sub(
            r"\$([^$`]+)\$", r"$`\1`$", source
        )  # formulas in the form of our pages, which Jupyter does not know
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        if "text" in output:
            yield f"```text\n{''.join(output['text']).rstrip()}\n```"
        else:
            yield f'<img alt="{cell["metadata"]["alt"]}" src="data:image/png;base64,{output["data"]["image/png"]}">'


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        write(path, executed(read(path)))


if __name__ == "__main__":
    main()
