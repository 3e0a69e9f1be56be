"""The notebook runs, and its stored outputs come from running it."""

import re
from pathlib import Path

import pytest
from tools.notebook import FOLDER, as_markdown, executed, printed, read

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_reduced(path: Path):
    """With little training every cell runs and has outputs of the stored kinds."""
    stored = read(path)
    made = executed(stored, reduced=True)
    for cell, own in zip(stored["cells"], made["cells"], strict=True):
        kinds, stored_kinds = ([out["output_type"] for out in found.get("outputs", ())] for found in (own, cell))
        assert kinds == stored_kinds, own["source"]
    assert printed(made) != printed(stored)  # training was reduced


@pytest.mark.slow
def test_in_full():
    """Both models learn the task without their chain, and the probe finds the steps, as the stored outputs say."""
    stored, made = read(FOLDER / "first-steps.ipynb"), executed(read(FOLDER / "first-steps.ipynb"))
    for text in (printed(stored), printed(made)):
        assert "accuracy without a chain: 1.0" in text
        (right,) = re.findall(r"^exact match without a chain, on new questions: (.*)$", text, re.MULTILINE)
        assert float(right) >= 0.97
        layers = [int(layer) for layer in re.findall(r" is read from layer (\d)$", text, re.MULTILINE)]
        assert len(layers) == 7
        assert max(layers[:4]) <= max(layers[4:6]) <= layers[6]
    for mine, theirs in zip(stored["cells"], made["cells"], strict=True):
        assert mine["source"] == theirs["source"]


def test_page():
    """The page of the site has text, code, printed output, and pictures with descriptions."""
    text = as_markdown(read(FOLDER / "first-steps.ipynb"))
    assert text.startswith("# First steps\n")
    assert text.count("```python") == text.count("```") // 2 - text.count("```text")
    assert len(re.findall(r'<img alt="\w[^"]+" src="data:image/png;base64,\w', text)) == 2
