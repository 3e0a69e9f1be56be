"""Tasks whose chains are sequences: every answer is recomputed from the text of the question alone."""

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import reduce
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from internalize.errors import InputError
from internalize.lm.data.example import Example
from internalize.lm.data.levels import resolve_levels
from internalize.lm.data.tasks import Arithmetic, Parity, Reachability, WordProblem, get_task
from internalize.lm.data.tasks.reachability import NOUNS, PEOPLE, SYMBOLS
from internalize.lm.options import CurriculumOptions
from internalize.lm.stages.chains import TextFormat, word_tokenizer
from internalize.lm.stages.step_end import StepEnd

SEEDS = st.integers(0, 2**63 - 1)
GROUPS = {"S3": 6, "S4": 24, "S5": 120, "A4": 12, "A5": 60, "Z2": 2, "Z3": 3, "Z60": 60, "Z120": 120}


def after(first: str, then: str) -> str:
    """Return the permutation that maps x to then(first(x)), by moving one symbol after another."""
    maps = [{str(place): image for place, image in enumerate(images, start=1)} for images in (first, then)]
    return "".join(maps[1][maps[0][str(x)]] for x in range(1, len(first) + 1))


def parity_of(images: str) -> int:
    """Return 0 for an even permutation and 1 for an odd one, from its cycles."""
    left, transpositions = set(range(len(images))), 0
    while left:
        at = start = left.pop()
        while (at := int(images[at]) - 1) != start:
            left.remove(at)
            transpositions += 1
    return transpositions % 2


# The word problem


@settings(max_examples=60)
@given(SEEDS, st.sampled_from(sorted(GROUPS)), st.integers(2, 20), st.data())
def test_running_products_by_brute_force(seed: int, group: str, length: int, data: st.DataObject):
    fewest = data.draw(st.integers(0, length))
    for example in WordProblem(group, length, fewest, seed).examples("train", seed % 1000, 5):
        asked = example.question.split(" ")
        assert (fewest or length) <= len(asked) <= length
        if group[0] == "Z":
            numbers, modulus = list(map(int, asked)), int(group[1:])
            products = [str(sum(numbers[: i + 1]) % modulus) for i in range(len(numbers))]
        else:
            assert all(sorted(g) == [*"12345"[: int(group[1])]] for g in asked)
            assert group[0] == "S" or not any(map(parity_of, asked))
            products = [reduce(after, asked[: i + 1]) for i in range(len(asked))]
        assert (*example.steps, example.answer) == tuple(products)
        assert example.levels is None


def test_product_by_hand():
    """The product is read from left to right: 231 maps 1 to 2, and 213 maps 2 to 1, so 1 stays."""
    assert after("231", "213") == "132"
    found = {e.question: e.answer for e in WordProblem("S3", 2).examples("train", 0, 400)}
    assert (found["231 213"], found["213 231"]) == ("132", "321")


@pytest.mark.parametrize(("group", "order"), GROUPS.items())
def test_all_elements_of_a_group_occur_equally_often(group: str, order: int):
    count = Counter(w for e in WordProblem(group, 20).examples("train", 0, 5 * order) for w in e.question.split())
    assert len(count) == order
    if group[0] != "Z":
        every = {"".join(p) for p in permutations("12345"[: int(group[1])])}
        assert set(count) == {p for p in every if group[0] == "S" or not parity_of(p)}
    assert all(abs(number - 100) < 60 for number in count.values())  # six standard deviations


def test_lengths_of_word_problems_are_uniform():
    task = get_task("words:group=Z3,length=7,fewest=4", 1)
    lengths = Counter(len(e.question.split()) for e in task.examples("train", 0, 4000))
    assert lengths.keys() == {4, 5, 6, 7}
    assert all(abs(number - 1000) < 6 * 27.4 for number in lengths.values())
    assert task.questions == sum(3**length for length in (4, 5, 6, 7))
    assert len({e.question for e in get_task("words:group=Z3,length=3,fewest=2").examples("train", 0, 999)}) == 9 + 27


def test_word_problem_of_two_elements_is_parity():
    for example in WordProblem("Z2", 9).examples("test", 0, 50):
        assert int(example.answer) == example.question.count("1") % 2


# Running parities


@settings(max_examples=60)
@given(SEEDS, st.integers(2, 20), st.integers(0, 70))
def test_running_parities_by_brute_force(seed: int, k: int, spare: int):
    task = Parity(k + spare, k, seed, chain="running")
    for example in task.examples("validation", seed % 1000, 3):
        secret = [int(example.question.split(" ")[place]) for place in task.secret]
        assert (*example.steps, example.answer) == tuple(str(sum(secret[: i + 1]) % 2) for i in range(k))
        assert example.levels is None


def test_the_chain_changes_neither_the_questions_nor_the_spec_of_the_tree():
    tree, running = get_task("parity:n=16,k=8", 3), get_task("parity:n=16,k=8,chain=running", 3)
    pairs = zip(tree.examples("test", 5, 40), running.examples("test", 5, 40), strict=True)
    assert all((one.question, one.answer) == (other.question, other.answer) for one, other in pairs)
    assert tree.spec == "parity:n=16,k=8,seed=3"  # as in the files of earlier versions
    assert running.spec == "parity:n=16,k=8,chain=running,seed=3"
    assert get_task("parity:n=16,k=8,chain=tree", 3) == tree


def xor(bits: list[int]) -> int:
    return sum(bits) % 2


def product_modulo_7(numbers: list[int]) -> int:
    return sum(numbers) % 7


@pytest.mark.parametrize(
    ("task", "combine"),
    [
        (Parity(9, 5, 4, chain="running"), xor),
        (Parity(9, 4, 4), xor),
        (WordProblem("Z7", 6), product_modulo_7),
    ],
)
def test_children_are_what_a_step_is_computed_from(task: Any, combine: Callable[[list[int]], int]):
    for example in task.examples("train", 0, 30):
        values = list(map(int, (*example.question.split(), *example.steps, example.answer)))
        inputs = len(example.question.split())
        assert len(task.children) == len(values) - inputs
        for value, children in zip(values[inputs:], task.children, strict=True):
            assert value == combine([values[child] for child in children])


@settings(max_examples=40)
@given(SEEDS, st.sampled_from(["S3", "A5", "Z7", "Z2"]), st.integers(2, 9), st.data())
def test_another_product_continues_with_the_rest_of_the_question(
    seed: int, group: str, length: int, data: st.DataObject
):
    example, other = WordProblem(group, length, 0, seed).examples("test", 3, 2)
    step = data.draw(st.integers(0, length - 2))
    rest = example.question.split()[step + 1 :]
    if group[0] == "Z":
        expected = str((int(other.steps[step]) + sum(map(int, rest))) % int(group[1:]))
    else:
        expected = reduce(after, [other.steps[step], *rest])
    assert WordProblem(group, length).implied(example, step, other.steps[step]) == expected
    if group == "Z2":
        assert Parity(length, length, chain="running").implied(example, step, other.steps[step]) == expected


def test_children_of_different_lengths_are_not_known():
    assert WordProblem("S3", 5, fewest=3).children is None
    assert WordProblem("S3", 5, fewest=5).children == WordProblem("S3", 5).children


# Reachability

Graph = dict[str, set[str]]


def read_question(question: str) -> tuple[Graph, str, list[str]]:
    """Return the graph, the start and the two candidates, from the text of a question."""
    graph: Graph = {}
    if question.endswith("?"):  # words
        *facts, asked = question.split(" . ")
        for words in map(str.split, facts):
            if words[0] == "each":
                _, start, *middle, end = words
                assert (middle, start in NOUNS) == (["is", "a"], True)
            else:
                start, *middle, end = words
                assert (middle, start in PEOPLE) == (["is", "a"], True)
            graph.setdefault(start, set()).add(end)
        _, start, _, one, _, _, other, _ = asked.split()
        return graph, start, [one, other]
    *facts, asked = question.split(" . ")
    for start, mark, end in map(str.split, facts):
        assert mark == ">"
        graph.setdefault(start, set()).add(end)
    start, mark, one, _, other = asked.split()
    assert mark == "?"
    return graph, start, [one, other]


def reached(graph: Graph, start: str) -> set[str]:
    """Return all nodes that a search finds."""
    found, new = set[str](), [start]
    while new:
        ahead = graph.get(new.pop(), set()) - found
        found |= ahead
        new += ahead
    return found


def walks(graph: Graph, start: str, end: str) -> list[list[str]]:
    """Return all walks from one node to another. The graph has no cycles."""
    if start == end:
        return [[end]]
    return [[start, *rest] for after in graph.get(start, ()) for rest in walks(graph, after, end)]


def check_graph(task: Reachability, example: Example) -> None:
    graph, start, candidates = read_question(example.question)
    edges = sum(map(len, graph.values()))
    assert edges == task.edges == example.question.count(" is a ") + example.question.count(" > ")
    assert len(graph.keys() | {end for ends in graph.values() for end in ends}) == task.nodes
    assert not any(node in reached(graph, node) for node in graph), "there are no cycles"
    assert not any(end == start or end in PEOPLE for ends in graph.values() for end in ends), "no fact leads to a start"
    found = reached(graph, start)
    assert [candidate for candidate in candidates if candidate in found] == [example.answer]
    (walk,) = walks(graph, start, example.answer)
    assert (task.fewest or task.hops) <= len(walk) - 1 <= task.hops
    if task.form == "symbols":
        steps = [f"{u} > {v}" for u, v in pairwise(walk)]
    else:
        steps = [f"each {u} is a {v} ." for u, v in pairwise(walk)]
        steps[0] = steps[0].removeprefix("each ")
    assert list(example.steps) == steps
    assert example.levels is None


@st.composite
def graphs(draw: st.DrawFn) -> Reachability:
    form: Any = draw(st.sampled_from(["words", "symbols"]))
    hops = draw(st.integers(2, 15))
    fewest = draw(st.sampled_from([0, *range(2, hops + 1)]))
    nodes = draw(st.integers(2 * hops + 2, len(SYMBOLS) if form == "symbols" else len(NOUNS) + 2))
    for edges in (draw(st.integers(nodes - 2, 3 * nodes)), nodes - 2):
        with contextlib.suppress(InputError):  # there may be no room for so many facts
            return Reachability(form, nodes, edges, hops, fewest, draw(SEEDS))
    raise AssertionError("a fact per node must always be possible")


@settings(max_examples=150)
@given(graphs(), st.integers(0, 10**6))
def test_a_search_finds_the_one_walk(task: Reachability, start: int):
    for example in task.examples("train", start, 3):
        check_graph(task, example)


@pytest.mark.parametrize("spec", ["graph", "graph:form=symbols,nodes=12,edges=18,hops=3"])
@pytest.mark.parametrize("harder", ["", ",hops=8", ",nodes=32,edges=60", ",hops=12,nodes=32,edges=70"])
def test_harder_graphs_have_no_new_words_and_are_solvable(spec: str, harder: str):
    trained = get_task(spec, 0)
    assert isinstance(trained, Reachability)
    own = {"nodes": 20, "edges": 30} | dict(part.split("=") for part in harder.split(",")[1:])
    task = Reachability(trained.form, **{name: int(value) for name, value in own.items()}, seed=1)
    known = word_tokenizer(trained.examples("train", 0, 500)).get_vocab()
    for example in task.examples("test", 0, 200):
        check_graph(task, example)
        assert {*example.question.split(), *" ".join(example.steps).split()} <= known.keys()
    if trained.form == "symbols":
        assert len(known) == 41


def test_only_the_start_tells_the_candidates_apart():
    """With the other side of the coin, the same facts have the other candidate as their answer."""
    for task in (Reachability(), Reachability("symbols", 14, 20, 3, 2)):
        for words in task_words(task, 50):
            one, other = (task.write(iter([words[0], words[1] ^ coin, *words[2:]])) for coin in (0, 1))
            (graph, start, candidates), (same, another, others) = map(read_question, (one.question, other.question))
            assert graph == same
            assert start != another
            assert sorted(candidates) == sorted(others) == sorted((one.answer, other.answer))
            assert one.answer != other.answer


def task_words(task: Reachability, count: int) -> list[list[int]]:
    from internalize.random_words import words

    row = 2 + task.nodes + 2 * task.edges
    return words(7, "train", 0, row * count).reshape(count, row).tolist()


def test_the_answer_is_as_often_the_first_candidate():
    firsts = sum(e.question.split()[-3] == e.answer for e in Reachability("symbols").examples("train", 0, 1000))
    assert abs(firsts - 500) < 6 * 15.9


# Arithmetic


def evaluate(text: str, modulo: int) -> tuple[int, list[tuple[int, str]]]:
    """Evaluate by rewriting: while there are numbers beside each other, replace each innermost operation at once.

    Return the value and the operations, each with the round after which it was possible.
    """
    tokens: list[Any] = [(int(t), 0) if t.isdigit() else t for t in f"( {text} )".split()]
    done: list[tuple[int, str]] = []
    while len(tokens) > 1:
        at = next(
            i
            for i in range(len(tokens))
            if tokens[i] == "(" and tokens[i + 4 : i + 5] == [")"] and tokens[i + 2] in "+-*"
        )
        (a, below), sign, (b, beside) = tokens[at + 1 : at + 4]
        value = (a + b if sign == "+" else a - b if sign == "-" else a * b) % modulo
        depth = 1 + max(below, beside)
        done.append((depth, f"{a} {sign} {b} = {value}"))
        tokens[at : at + 5] = [(value, depth)]
    return tokens[0][0], done


@settings(max_examples=100)
@given(SEEDS, st.integers(2, 6), st.integers(2, 100), st.sampled_from(["mixed", "line", "tree"]), st.data())
def test_brackets_are_evaluated_from_inside(seed: int, depth: int, modulo: int, shape: Any, data: st.DataObject):
    fewest = data.draw(st.sampled_from([0, *range(2, depth + 1)]))
    for example in Arithmetic(depth, modulo, shape, fewest, seed).examples("train", seed % 1000, 3):
        value, done = evaluate(example.question, modulo)
        assert example.answer == str(value)
        assert done[-1][1].endswith(f"= {value}")
        assert (fewest or depth) <= done[-1][0] <= depth
        # within a level the rewriting goes from left to right, too, so a stable sort gives the order of the chain
        expected = sorted(done[:-1], key=lambda step: step[0])
        assert list(zip(example.levels or (), example.steps, strict=True)) == expected
        assert all(0 <= int(t) < modulo for t in example.question.split() if t.isdigit())
        steps = {"tree": 2 ** done[-1][0] - 2, "line": done[-1][0] - 1}
        assert len(done) - 1 == steps.get(shape, len(done) - 1)


@pytest.mark.parametrize(
    "spec", ["depth=2,modulo=2", "depth=2,modulo=2,shape=line", "depth=3,modulo=2,shape=line,fewest=2"]
)
def test_number_of_expressions(spec: str):
    """Small tasks have as many different questions as they say: with so many draws, each occurs."""
    task = get_task(f"arithmetic:{spec}")
    assert len({example.question for example in task.examples("train", 0, 20 * task.questions)}) == task.questions


def test_number_of_trees():
    assert get_task("arithmetic:depth=2,modulo=3,shape=tree").questions == 3**3 * 3**4


# All of them

SPECS = {
    "words:group=S5,length=6": StepEnd(length=1),
    "words:group=Z60,length=6,fewest=3": StepEnd(length=1),
    "parity:n=8,k=6,chain=running": StepEnd(length=1),
    "graph:form=symbols": StepEnd(length=3),
    "graph:form=words": None,
    "arithmetic": StepEnd(length=5),
    "arithmetic:shape=line,depth=6": StepEnd(length=5),
}


@pytest.mark.parametrize(("spec", "end"), SPECS.items())
def test_a_written_step_has_a_recognizable_end(spec: str, end: StepEnd | None):
    """So `--method thin` works with each of these tasks and the tokenizer of new models."""
    examples = get_task(spec).examples("train", 0, 200)
    source, leveled = resolve_levels(examples, "thin")
    text = TextFormat(word_tokenizer(examples))
    assert source == "thin"
    found = StepEnd.of(unit for chain in text.chains(leveled) for unit in chain.units)
    assert found == (end or StepEnd(token=text.tokenizer.convert_tokens_to_ids(".")))
    assert CurriculumOptions(method="thin").thins


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("parity:chain=line", "chain='line' is not one of tree, running"),
        ("parity:n=8,k=1,chain=running", "k=1 must be at least 2"),
        ("parity:n=8,k=6", "k=6 is not a power of two from 2 up .*; chain=running takes any k"),
        ("parity:n=8,k=9,chain=running", "n=8 is outside k=9"),
        ("words:group=S6", "group=S6 is none of S3, S4, S5, A4, A5 and Z2 … Z120"),
        ("words:group=Z1", "group=Z1 is none"),
        ("words:group=Z121", "group=Z121 is none"),
        ("words:group=", "group= is none"),
        ("words:length=1", "length=1 is outside 2 … 1000"),
        ("words:length=x", "length=x is not a whole number"),
        ("words:length=1001", "length=1001 is outside 2 … 1000"),
        ("words:length=4,fewest=5", "fewest=5 is outside 0 … length=4"),
        ("graph:form=letters", "form='letters' is not one of words, symbols"),
        ("graph:hops=1", "hops=1 must be at least 2"),
        ("graph:fewest=1", "fewest=1 is neither 0 .* nor within 2 … hops=4"),
        ("graph:nodes=9", "nodes=9 is outside 10 … 50"),
        ("graph:form=symbols,nodes=33,edges=40", "nodes=33 is outside 10 … 32"),
        ("graph:nodes=51,edges=60", "nodes=51 is outside 10 … 50"),
        ("graph:edges=17", "edges=17 is outside 18 … "),
        ("graph:nodes=10,edges=9", "edges=9 is outside 8 … 8"),
        ("arithmetic:depth=1", "depth=1 is outside 2 … 8 for shape=mixed"),
        ("arithmetic:depth=9", "depth=9 is outside 2 … 8"),
        ("arithmetic:depth=65,shape=line", "depth=65 is outside 2 … 64 for shape=line"),
        ("arithmetic:modulo=1", "modulo=1 is outside 2 … 100"),
        ("arithmetic:modulo=101", "modulo=101 is outside 2 … 100"),
        ("arithmetic:fewest=4", "fewest=4 is neither 0 .* nor within 2 … depth=3"),
        ("arithmetic:shape=star", "shape='star' is not one of mixed, line, tree"),
    ],
)
def test_wrong_options_are_refused_in_one_line(spec: str, said: str):
    with pytest.raises(InputError, match=said) as refused:
        get_task(spec)
    assert "\n" not in str(refused.value)
