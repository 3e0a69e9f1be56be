"""curriculum.py: what each stage hides, for every method and every chain length."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internalize import METHODS, Curriculum, InputError
from internalize.curriculum import doubling, hidden_at, largest_removal, smaller_removal, subdivide

lengths = st.integers(1, 200)
levels_of_steps = st.lists(st.integers(-3, 9), max_size=60)


def counts(curriculum: Curriculum, length: int) -> list[int]:
    return [len(stage.hidden) for stage in curriculum.stages(length)]


def tree_levels(k: int) -> list[int]:
    """Return the levels of the k − 2 steps of k-parity's chain: k/2 nodes of level 1, k/4 of level 2, …."""
    return [level for level in range(1, k.bit_length() - 1) for _ in range(k >> level)]


@pytest.mark.parametrize("k", [2**i for i in range(1, 11)])
def test_complete_tree(k: int):
    """Log-ICoT has log2 k stages by levels and by halving, icot has k − 1, and at the ends of the levels they agree."""
    by_levels = Curriculum("log-icot").stages(k - 1, tree_levels(k))
    assert len(by_levels) == k.bit_length() - 1
    assert Curriculum("log-icot").stages(k - 1) == by_levels
    assert len(Curriculum("icot").stages(k - 1)) == k - 1
    ends = tuple(len(stage.hidden) for stage in by_levels[1:])
    assert Curriculum("icot", boundaries=ends).stages(k - 1) == by_levels


@pytest.mark.parametrize(
    ("curriculum", "length", "hidden"),
    [
        (Curriculum("log-icot"), 15, [0, 8, 12, 14]),
        (Curriculum("log-icot"), 47, [0, 24, 36, 42, 45, 46]),
        (Curriculum("log-icot"), 2, [0, 1]),
        (Curriculum("icot"), 5, [0, 1, 2, 3, 4]),
        (Curriculum("icot", chunk=3), 8, [0, 3, 6, 7]),
        (Curriculum("icot", chunk=7), 8, [0, 7]),
        (Curriculum("icot", chunk=100), 8, [0, 7]),
        (Curriculum("icot", boundaries=(2, 3)), 8, [0, 2, 3, 7]),
        (Curriculum("icot", boundaries=(2, 9, 20)), 8, [0, 2, 7]),
        (Curriculum("icot", cutoff=3), 8, [0, 1, 2, 7]),
        (Curriculum("icot", cutoff=7), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (Curriculum("icot", cutoff=1), 8, [0, 7]),
        (Curriculum("icot", cutoff=1), 1, [0]),
        (Curriculum("icot", chunk=2, cutoff=4), 8, [0, 2, 7]),
        (Curriculum("icot", boundaries=(2, 3, 5), cutoff=4), 8, [0, 2, 3, 7]),
        (Curriculum("icot", cutoff=39), 47, [*range(39), 46]),
        (Curriculum("icot", cutoff=39), 31, list(range(31))),
        (doubling(), 15, [0, 1, 3, 7, 14]),
        (doubling(), 9, [0, 1, 3, 7, 8]),
        (doubling(), 8, [0, 1, 3, 7]),
        (doubling(), 1, [0]),
        (Curriculum("none"), 8, [7]),
        (Curriculum("cot"), 8, [0]),
    ],
)
def test_golden_counts(curriculum: Curriculum, length: int, hidden: list[int]):
    """The contract's examples, and each option of icot once."""
    assert counts(curriculum, length) == hidden


@pytest.mark.parametrize(
    ("skip", "hidden"),
    [
        ((), [0, 8, 12, 14]),
        ((3,), [0, 8, 14]),
        ((1, 3), [8, 14]),
        ((1, 2, 3), [14]),
        ((2, 3), [0, 14]),
        ((1,), [8, 12, 14]),
    ],
)
def test_levels_without_a_stage(skip: tuple[int, ...], hidden: list[int]):
    """The remaining stages are those of Log-ICoT; without any level of its own, the curriculum is `none`."""
    stages = Curriculum(skip=skip).stages(15, tree_levels(16))
    assert [len(stage.hidden) for stage in stages] == hidden
    assert set(stages) <= set(Curriculum().stages(15, tree_levels(16)))
    assert (stages == Curriculum("none").stages(15)) is (skip == (1, 2, 3))


def test_levels_need_not_be_in_order():
    """The lowest level of a dependency graph is hidden first, wherever its steps stand."""
    hidden = [stage.hidden for stage in Curriculum("log-icot").stages(5, [2, 1, 7, 1])]
    assert hidden == [(), (1, 3), (0, 1, 3), (0, 1, 2, 3)]


@given(st.sampled_from(METHODS), lengths)
def test_single_answer_and_up(method: str, length: int):
    """At every chain length from 1 up hidden sets only grow, and the answer is always shown and supervised."""
    check_invariants(Curriculum(method).stages(length), length, ends_hidden=method != "cot")  # type: ignore[arg-type]


@given(levels_of_steps)
def test_any_levels(levels: list[int]):
    stages = Curriculum("log-icot").stages(len(levels) + 1, levels)
    check_invariants(stages, len(levels) + 1, ends_hidden=True)
    assert len(stages) == len(set(levels)) + 1


@given(lengths, st.sets(st.integers(1, 300), min_size=1))
def test_any_boundaries(length: int, boundaries: set[int]):
    given_ends = Curriculum("icot", boundaries=tuple(sorted(boundaries)))
    check_invariants(given_ends.stages(length), length, ends_hidden=True)


@given(lengths, st.integers(1, 9) | st.integers(1, 250), st.none() | st.integers(1, 250))
def test_either_side_with_a_cutoff(length: int, chunk: int, cutoff: int | None):
    """The right side mirrors the left one. Below the cutoff it changes nothing, from there on everything is hidden."""
    left = Curriculum("icot", chunk=chunk, cutoff=cutoff).stages(length)
    right = Curriculum("icot", chunk=chunk, cutoff=cutoff, side="right").stages(length)
    for stages in (left, right):
        check_invariants(stages, length, ends_hidden=True)
    steps = length - 1
    assert [s.hidden for s in left] == [tuple(range(len(s.hidden))) for s in left]
    assert [s.hidden for s in right] == [tuple(steps - 1 - step for step in reversed(s.hidden)) for s in left]
    without = Curriculum("icot", chunk=chunk).stages(length)
    below = [s for s in without if cutoff is None or len(s.hidden) < cutoff]
    everything = Curriculum("none").stages(length)[0]
    assert list(left) == below + ([] if everything in below else [everything])


def check_invariants(stages: tuple, length: int, *, ends_hidden: bool):
    answer = length - 1
    for stage in stages:
        assert answer not in stage.hidden
        assert answer in stage.supervised
        assert sorted((*stage.hidden, *stage.supervised)) == list(range(length))
        assert list(stage.hidden) == sorted(stage.hidden)
    for before, after in pairwise(stages):
        assert set(before.hidden) < set(after.hidden)
    assert (len(stages[-1].hidden) == answer) == (ends_hidden or length == 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Curriculum("linear"), "'linear' is not one of none, cot, icot, log-icot"),  # type: ignore[arg-type]
        (lambda: Curriculum("icot", chunk=0), "chunk=0"),
        (lambda: Curriculum("cot", chunk=2), "belong to icot"),
        (lambda: Curriculum("log-icot", boundaries=(3,)), "belong to icot"),
        (lambda: Curriculum("log-icot", side="right"), "side and cutoff belong to icot"),
        (lambda: Curriculum("none", cutoff=3), "side and cutoff belong to icot"),
        (lambda: Curriculum("icot", side="middle"), "side='middle' is not one of left, right"),  # type: ignore[arg-type]
        (lambda: Curriculum("icot", cutoff=0), "cutoff=0 must be at least 1"),
        (lambda: Curriculum("icot", chunk=2, boundaries=(3,)), "not both"),
        (lambda: Curriculum("icot", boundaries=(3, 3)), "strictly increasing"),
        (lambda: Curriculum("icot", boundaries=(0, 3)), "positive"),
        (lambda: Curriculum("icot", skip=(1,)), "belongs to log-icot, whose stages"),
        (lambda: Curriculum(skip=(1,)).stages(7), "levels of this chain are not known"),
        (lambda: Curriculum(skip=(3,)).stages(7, tree_levels(8)), "names level 3; the steps have levels"),
        (lambda: Curriculum().stages(0), "chain of 0 elements"),
        (lambda: Curriculum().stages(4, [1, 1, 2, 3]), "4 levels for a chain of 4"),
    ],
)
def test_mistakes_are_named(make, words: str):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("hidden", "targets"),
    [
        ([[0, 8, 12, 14]], (0, 8, 12, 14)),
        ([[0]], (0,)),
        ([[0, 4, 6], [0, 2, 3, 4], [0, 1], [0]], (0, 4, 6, 7)),
    ],
)
def test_where_the_targets_are(hidden: list[list[int]], targets: tuple[int, ...]):
    """From one target to the next there are as many stages as the chain that loses most there loses steps."""
    assert subdivide(hidden) == targets


def test_stages_between_targets():
    targets = (0, 4, 6, 7)
    assert [hidden_at(stage, [0, 4, 6], targets) for stage in range(8)] == [0, 1, 2, 3, 4, 5, 6, 6]
    assert [hidden_at(stage, [0, 2, 3, 4], targets) for stage in range(8)] == [0, 1, 2, 2, 2, 3, 3, 4]
    not_among_them = [hidden_at(stage, [0, 9, 10], targets) for stage in range(8)]
    assert not_among_them == [0, 1, 2, 3, 9, 10, 10, 10]


@given(st.lists(lengths, min_size=1, max_size=5))
def test_subdivided_curricula(some: list[int]):
    """For chains of equal length the stages are those of linear ICoT, with the stages of Log-ICoT among them.

    For any chains, none loses more than one step per stage, and at the targets each has lost what Log-ICoT hides.
    """
    hidden = [counts(Curriculum("log-icot"), length) for length in some]
    alike = subdivide(hidden[:1])
    assert [hidden_at(stage, hidden[0], alike) for stage in range(alike[-1] + 1)] == counts(Curriculum("icot"), some[0])
    assert [hidden_at(target, hidden[0], alike) for target in alike] == hidden[0]
    targets = subdivide(hidden)
    for own in hidden:
        stages = [hidden_at(stage, own, targets) for stage in range(targets[-1] + 1)]
        assert stages[-1] == own[-1]
        assert all(after - before in (0, 1) for before, after in pairwise(stages))
        assert [stages[target] for target in targets[: len(own)]] == own


def test_next_removal():
    targets = (0, 8, 12, 14)
    assert [largest_removal(good, targets) for good in (-1, 0, 1, 7, 8, 12, 13)] == [0, 14, 8, 8, 12, 14, 14]
    assert [smaller_removal(0, failed, targets) for failed in (14, 9, 8, 4, 2, 1, 7)] == [8, 8, 4, 2, 1, 1, 4]
    assert [smaller_removal(8, failed, targets) for failed in (14, 12, 10)] == [12, 10, 9]
