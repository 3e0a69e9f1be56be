"""The pictures of the curricula show what the code hides today."""

from pathlib import Path

import pytest
from tools.curriculum_figures import FIGURES, attempts, drawn, pictures, staged

from internalize.lm.options import LM_METHODS
from internalize.lm.stages.removal import IGNORED

DRAWN = drawn()


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_pictures_are_current(path: Path):
    """If one is not, run `python -m tools.curriculum_figures`."""
    assert path.read_text(encoding="utf-8") == DRAWN[path]


def test_no_picture_is_left_over():
    assert sorted(FIGURES.glob("curriculum-*.svg")) == sorted(DRAWN)


def test_every_method_has_a_picture():
    text = " ".join(picture.title for picture in pictures())
    assert all(method in text for method in LM_METHODS)


def test_lines_are_those_of_the_curriculum():
    hidden = [sum(token == 91 for token in line.row.tokens) for line in staged("log-icot", (1, 1, 1, 2, 2, 3))]
    assert hidden == [0, 3, 5, 6]
    tried = [(sum(token == 91 for token in line.row.tokens), line.good) for line in attempts()]
    assert tried == [(0, True), (6, False), (4, False), (2, True), (4, True), (6, True)]
    assert all(label != IGNORED for line in staged("icot-steps") for label in line.row.labels[1:])
