"""The README's code runs as printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_run(number: int, capsys: pytest.CaptureFixture[str]):
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), {})
    assert capsys.readouterr().out


def test_there_is_an_example():
    assert BLOCKS
