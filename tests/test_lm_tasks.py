"""Generated tasks: hand-computed lines, arithmetic, levels, and the same examples in any portions."""

import itertools
import re
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import graph_levels
from internalize.lm.data.readers import text_line
from internalize.lm.data.tasks import TASKS, Hops, Multiply, MultiplyTree, Parity, TaskStream, get_task, is_task, usage
from internalize.lm.data.tasks.hops import THINGS
from internalize.parity import ParityTree, add_trace, draw_bits

SPECS = [
    "parity:n=10,k=4",
    "parity:n=70,k=8",
    "multiply:digits=3",
    "multiply-tree:digits=5",
    "hops:hops=5",
    "hops:hops=2,chains=1",
    "stories:steps=3",
    "stories:steps=5,digits=1,fewest=2",
    "parity:n=10,k=5,chain=running",
    "words:group=A5,length=4",
    "words:group=Z60,length=9,fewest=2",
    "graph:form=words,nodes=15,edges=22,hops=4,fewest=2",
    "graph:form=symbols,nodes=12,edges=14,hops=3",
    "arithmetic:depth=4,fewest=2",
    "arithmetic:depth=5,modulo=7,shape=line",
]


def value(text: str) -> int:
    """Return the number that digits stand for, least significant first, without the marks."""
    return int("".join(character for character in text if character.isdigit())[::-1])


def ends(sentence: str) -> tuple[str, str]:
    """Return the two things of `the … is in the …`."""
    _, inner, _, _, _, outer, *_ = sentence.split()
    return inner, outer


def test_published_line():
    published = (
        "5 6 3 2 * 7 4 3 4||5 5 5 6 1 + 0 0 6 4 9 0 ( 5 5 1 1 1 1 ) + 0 0 5 9 0 7 0 ( 5 5 6 0 2 8 0 ) + 0 0 0 0 6 4 9 0"
        " #### 5 5 6 0 8 2 0 1"
    )
    example = Multiply(4).write(2365, 4347)
    assert text_line(example) == published
    assert " | ".join(example.steps) == (
        "5 5 5 6 1 | + 0 0 6 4 9 0 | ( 5 5 1 1 1 1 ) | + 0 0 5 9 0 7 0 | ( 5 5 6 0 2 8 0 ) | + 0 0 0 0 6 4 9 0"
    )
    assert example.levels is None


def test_products_by_hand():
    for kind in (Multiply, MultiplyTree):  # 12 × 30: 12 × 0 = 000, 12 × 3 × 10 = 0360, 360 in four digits
        assert text_line(kind(2).write(12, 30)) == "2 1 * 0 3||0 0 0 + 0 6 3 0 #### 0 6 3 0"
    # 111 × 222 = 222 + 2220 + 22200: the first two make 2442, the third passes up and makes the answer with them.
    example = MultiplyTree(3).write(111, 222)
    assert text_line(example) == "1 1 1 * 2 2 2||2 2 2 0 + 0 2 2 2 0 + 0 0 2 2 2 0 ( 2 4 4 2 0 ) #### 2 4 6 4 2 0"
    assert example.levels == (1, 1, 1, 2)
    assert MultiplyTree(5).write(11111, 11111).levels == (1, 1, 1, 1, 1, 2, 2, 3)
    assert MultiplyTree(4).write(1111, 1111).levels == (1, 1, 1, 1, 2, 2)
    with pytest.raises(InputError, match="123 does not have exactly 4 digits"):
        Multiply(4).write(123, 4567)


@pytest.mark.parametrize(("digits", "published"), [(4, 46), (5, 74), (7, 148), (9, 246), (11, 368)])
def test_words_of_a_chain_are_the_published_tokens(digits: int, published: int):
    example = get_task(f"multiply:digits={digits}", 0).example("train", 7)
    assert len(" ".join(example.steps).split()) == published


@pytest.mark.parametrize("digits", [2, 3, 4, 6])
@pytest.mark.parametrize("kind", [Multiply, MultiplyTree])
def test_arithmetic(kind: type[Multiply] | type[MultiplyTree], digits: int):
    for example in kind(digits, 5).examples("train", 0, 50):
        a, b = (value(factor) for factor in example.question.split(" * "))
        assert 10 ** (digits - 1) <= a < 10**digits
        assert 10 ** (digits - 1) <= b < 10**digits
        assert value(example.answer) == a * b
        assert len(example.answer.split()) == 2 * digits
        partials = [value(step) for step in example.steps if "(" not in step]
        sums = [value(step) for step in example.steps if "(" in step]
        assert partials == [a * int(digit) * 10**i for i, digit in enumerate(str(b)[::-1])]
        if kind is Multiply:
            assert sums == [sum(partials[: i + 1]) for i in range(1, digits - 1)]


def test_tree_sums_need_only_lower_levels():
    for digits in range(2, 10):
        example = MultiplyTree(digits, 1).example("test", 3)
        assert example.levels is not None
        assert list(example.levels) == sorted(example.levels)
        assert max(example.levels) == (digits - 1).bit_length()
        below = [(value(s), level) for s, level in zip(example.steps, example.levels, strict=True)]
        for total, level in below:
            lower = [number for number, height in below if height < level]
            assert level == 1 or any(x + y == total for x, y in itertools.combinations(lower, 2))


@settings(max_examples=50)
@given(st.integers(0, 2**63 - 1), st.sampled_from([2, 4, 8]), st.integers(0, 70))
def test_parity_is_brute_force(seed: int, k: int, spare: int):
    task = Parity(k + spare, k, seed)
    example = task.example("train", seed % 1000)
    bits = [int(bit) for bit in example.question.split(" ")]
    assert len(bits) == task.n
    level, nodes = [bits[place] for place in task.secret], []
    while len(level) > 1:
        level = [(x + y) % 2 for x, y in zip(level[::2], level[1::2], strict=True)]
        nodes += level
    assert list(example.steps) == [str(node) for node in nodes[:-1]]
    assert example.answer == str(sum(bits[place] for place in task.secret) % 2)
    assert example.levels == task.levels
    assert len(task.levels) == k - 2
    assert len(set(task.levels)) == k.bit_length() - 2


def test_parity_of_a_seed_is_the_papers_of_that_seed():
    tree = ParityTree.draw(16, 8, 3)
    task = Parity(16, 8, 3)
    assert task.secret == tree.secret
    assert task.children == tuple(tree.children(node) for node in range(tree.n, tree.T))
    sequence = add_trace(tree, draw_bits(16, 3, 40, 5, "validation"))
    for row, example in zip(sequence.tolist(), task.examples("validation", 40, 5), strict=True):
        written = [*example.question.split(), *example.steps, example.answer]
        assert written == ["0" if sign > 0 else "1" for sign in row]


def test_hops_by_hand():
    assert len(set(THINGS)) == len(THINGS)
    example = Hops(4, 1).write(["coin", "cup", "box", "car", "barn"], [2, 0, 3, 1])
    assert example == Example(
        "the box is in the car . the coin is in the cup . the car is in the barn . the cup is in the box . where is the coin ?",
        ("the coin is in the box .", "the box is in the barn ."),
        "barn",
        (1, 1),
    )
    odd = Hops(5, 1).write(["a", "b", "c", "d", "e", "f"], [0, 1, 2, 3, 4])
    assert odd.steps == ("the a is in the c .", "the c is in the e .", "the a is in the e .")
    assert odd.levels == (1, 1, 2)
    assert odd.answer == "f"


@pytest.mark.parametrize("hops", range(2, 12))
def test_hops_follow_from_facts_and_lower_levels(hops: int):
    for example in Hops(hops, 2, 9).examples("train", 100, 20):
        *facts, asked = example.question.split(" . ")
        known = [ends(fact) for fact in facts]
        assert len(known) == 2 * hops
        assert example.levels is not None
        assert list(example.levels) == sorted(example.levels)
        assert len(set(example.levels)) == (hops - 1).bit_length() - 1
        assert len({thing for fact in known for thing in fact}) == 2 * (hops + 1)
        place = asked.split()[3]
        for _ in range(hops):
            place = dict(known)[place]
        assert place == example.answer
        steps = [ends(step) for step in example.steps]
        for step, level in zip(steps, example.levels, strict=True):
            lower = known + [s for s, height in zip(steps, example.levels, strict=True) if height < level]
            assert any(x[0] == step[0] and y[1] == step[1] and x[1] == y[0] for x in lower for y in lower)


@pytest.mark.parametrize("spec", ["stories:steps=4", "stories:steps=6,digits=1,fewest=1", "stories:digits=6"])
def test_stories_tell_the_sums_of_their_steps(spec: str):
    lengths: set[int] = set()
    for example in get_task(spec, 3).examples("train", 50, 300):
        start, *changes, _ = re.split("[.?]", example.question)[:-1]
        have, name = int(start.split()[2]), start.split()[0]
        sums: list[str] = []
        for change in changes:
            (number,) = map(int, re.findall("[0-9]+", change))
            sign = "+" if change.endswith("more") else "-"
            now = have + number if sign == "+" else have - number
            sums.append(f"<<{have}{sign}{number}={now}>>")
            have = now
            assert have > 0
            assert change.split()[0] == name
        assert (tuple(sums), str(have)) == (example.steps, example.answer)
        lengths.add(len(sums))
        assert graph_levels(example.steps) is not None
    assert lengths == ({*range(1, 7)} if "fewest" in spec else {4})


@pytest.mark.parametrize("spec", SPECS)
def test_same_examples_in_any_portions_and_by_the_spec(spec: str):
    task = get_task(spec, 11)
    for stream in get_args(TaskStream):
        whole = task.examples(stream, 3, 20)
        assert [task.example(stream, 3 + i) for i in range(20)] == whole
        assert task.examples(stream, 3, 7) + task.examples(stream, 10, 13) == whole
    assert task.examples("train", 0, 0) == []
    assert task.examples("train", 0, 20) != task.examples("test", 0, 20)
    assert task.examples("train", 0, 20) != get_task(spec, 12).examples("train", 0, 20)
    assert task.spec.endswith("seed=11")
    assert get_task(task.spec, 0) == task
    assert get_task(f"{spec},seed=5", 11) == get_task(spec, 5)
    assert is_task(spec)


def test_defaults_and_usage():
    assert get_task("parity") == Parity()
    for name, options in TASKS.items():
        own = ",".join(f"{option}={value}" for option, value in options.items())
        assert get_task(f"{name}:{own},seed=0").spec == get_task(name, 0).spec
        if name != "parity":  # its option chain is younger than its spec
            assert get_task(name, 0).spec == f"{name}:{own},seed=0"
        assert name in usage()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("primes:n=3", "the tasks are parity:n=16,k=8,chain=tree, multiply:digits=4"),
        ("parity:m=3", "parity has no option 'm', only n, k, chain, seed"),
        ("parity:n=16,n=16", "n is given twice"),
        ("parity:n", "n= is not a whole number"),
        ("parity:n=-4", "n=-4 is not a whole number"),
        ("parity:n=16,", "no option ''"),
        ("parity:n=16,k=12", "k=12 is not a power of two"),
        ("parity:n=4,k=8", "n=4 is outside k=8"),
        ("parity:n=99999999,k=8", "n=99999999 is outside"),
        ("parity:seed=9999999999999999999", "seed=9999999999999999999 is outside"),
        ("multiply:digits=1", "digits=1 is outside 2"),
        ("multiply-tree:digits=101", "digits=101 is outside 2 … 100"),
        ("hops:hops=1", "hops=1 must be at least 2"),
        ("hops:chains=0", "chains=0 must be at least 1"),
        ("hops:hops=50,chains=2", "take 102 different things"),
        ("stories:steps=0", "steps=0 is outside 1"),
        ("stories:digits=7", "digits=7 is outside 1 … 6"),
        ("stories:steps=2,fewest=3", "fewest=3 is outside 0 … steps=2"),
    ],
)
def test_bad_specs(spec: str, said: str):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        get_task(spec, 0)


def test_first_digits_are_uniform():
    first = [int(e.question.split()[2]) for e in Multiply(3, 0).examples("train", 0, 1800)]
    counts = np.bincount(first, minlength=10)
    assert counts[0] == 0
    assert np.all(abs(counts[1:] - 200) < 5 * np.sqrt(200))
