"""Levels come from equations, from the data, or do not exist."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import graph_levels, resolve_levels
from tests.test_lm_readers import DUCKS


@pytest.mark.parametrize(
    ("chain", "levels"),
    [
        ("<<16-3-4=9>> <<9*2=18>>", (1, 2)),
        ("16-3-4=9 9*2=18", (1, 2)),
        ("<<1+1=2>> <<3+3=6>> <<2*6=12>>", (1, 1, 2)),
        ("<<4*4=16.00>> <<16/2=8>> <<8.0+16=24>>", (1, 2, 3)),
        ("<<1+1=2>> <<2+2=4>> <<4-2=2>> <<2*5=10>>", (1, 2, 3, 4)),  # the most recent 2 counts
        ("<<1+1=2>> <<2*2=4>> <<3-1=2>> <<2*5=10>>", (1, 2, 1, 2)),  # and it may be the lower one
        ("<<3-5=-2>> <<-2+10=8>> <<10-2=8>>", (1, 2, 1)),
        ("<<500+500=1,000>> <<1000*$3=$3,000>> <<3,000/2=1500>>", (1, 2, 3)),
        ("<<100*.5=50>> <<50%*10=5>> <<5*(2/3)=10/3>>", (1, 2, 3)),
        ("<<40=40>> <<40+30=70>>", (1, 2)),
        ("<<125=125=125>>", (1,)),
        ("", ()),
        ("<<x=5>>", None),
        ("<<5+4>>", None),
        ("<<5+4=>>", None),
        ("<<1/1=1/0>>", None),
        ("5 + 4", None),
        ("1=" + "9" * 5000, None),
    ],
)
def test_graph_levels(chain: str, levels: tuple[int, ...] | None):
    steps = chain.split()
    assert graph_levels(steps) == levels
    assert graph_levels([step.replace("=", " = ").replace("<<", "<< ") for step in steps]) == levels


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=8))
def test_graph_levels_against_dependencies(uses: list[list[int]]):
    # Step i has the result 1000 + i and adds the results of the earlier steps that it uses.
    used = [sorted({j for j in js if j < i}) for i, js in enumerate(uses)]
    steps = [f"<<{'+'.join(['7', *(str(1000 + j) for j in js)])}={1000 + i}>>" for i, js in enumerate(used)]
    levels = graph_levels(steps)
    assert levels is not None
    for level, js in zip(levels, used, strict=True):
        assert level == 1 + max((levels[j] for j in js), default=0)

    if steps:
        source, (example,) = resolve_levels([Example("q", tuple(steps), "a")], "auto")
        assert source == "graph"
        assert example.levels == tuple(sorted(levels))
        assert graph_levels(example.steps) == example.levels  # the order of the levels is a valid order


PLAIN, LEVELLED = Example("q", ("b", "c"), "2"), Example("q", ("b", "c", "d"), "2", (2, 1, 2))


def test_auto_takes_the_first_possible_source():
    assert resolve_levels([LEVELLED], "auto") == ("given", [Example("q", ("c", "b", "d"), "2", (1, 2, 2))])
    assert resolve_levels([DUCKS], "auto") == ("graph", [dataclasses.replace(DUCKS, levels=(1, 2))])
    assert resolve_levels([LEVELLED, PLAIN], "auto") == ("steps", [dataclasses.replace(LEVELLED, levels=None), PLAIN])
    assert resolve_levels([DUCKS, PLAIN], "auto") == ("steps", [DUCKS, PLAIN])
    assert resolve_levels([Example("q", ("b",), "2")], "auto")[0] == "tokens"
    assert resolve_levels([Example("q", (), "2")], "auto")[0] == "tokens"
    assert resolve_levels([LEVELLED], "tokens") == ("tokens", [dataclasses.replace(LEVELLED, levels=None)])


def test_missing_levels_are_refused():
    with pytest.raises(InputError, match=r"example 2 \('q'\) has none"):
        resolve_levels([LEVELLED, PLAIN], "given")
    with pytest.raises(InputError, match="step 'b' of example 2 is not an equation"):
        resolve_levels([DUCKS, PLAIN], "graph")
    with pytest.raises(InputError, match="levels='tree' is not one of auto, given"):
        resolve_levels([DUCKS], "tree")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="no examples"):
        resolve_levels([], "auto")
    assert resolve_levels([], "graph") == ("graph", [])
