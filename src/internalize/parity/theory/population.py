r"""Exact moments of a stage's one-sample gradient: its expectation (B = ∞), variance and skewness at finite n.

| name       | paper            | meaning                                                          | where           |
| ---------- | ---------------- | ---------------------------------------------------------------- | --------------- |
| keys       | n_t              | M keys that the stage's layer reads                              | section 2.1     |
| nodes      | –                | columns of the stage's layer: nodes of the level it writes       | section 2.1     |
| mean       | ∂L^(t)/∂w_{j,m}  | expected gradient, one number per class of key j                 | Lemma "Stage 1" |
| variance   | –                | variance of the gradient at B = 1; third: third central moment   | –               |
| signal     | 1 + O(n^{−ε/16}) | expected step on a child at the paper's rate, as a fraction of K | Lemma "Stage 1" |
| child      | p[j] = m         | key j is one of the children of node m                           | section 2.1     |
| inside     | –                | j lies below a child of m, at a level                            | –               |
| outside    | –                | j is in the tree and not below m, at a level                     | –               |
| irrelevant | j ∉ S            | an input bit outside the secret set                              | section 2.1     |

The stage's layer has W = 0, so every node m of its level sees the same \(z = S/M\) with \(S = \sum_{j<M} b_j\), and
\[ \frac{\partial \mathcal L}{\partial w_{j,m}} = \frac1M\,(\phi(z) - b_m)\,\phi'(z)\,(b_j - z) \]
for one sample with true node values in the hidden states. Because b² = 1, every power of it needs only the laws of
S weighted by 1, b_m, b_j and b_m b_j. S is a sum over independent parts: the n − k irrelevant bits, and one
complete subtree under each node of the highest level read. Let r be the root of a subtree, s the sum of its nodes
and j a node in it, and let \(P = E[e^{iws}]\), \(Q = E[r e^{iws}]\), \(P_j = E[b_j e^{iws}]\),
\(Q_j = E[b_j r e^{iws}]\). The nodes of two subtrees and a new root above them sum to \(s_1 + s_2 + r_1 r_2\), and
\(e^{iwr} = \cos w + i r \sin w\) for r = ±1, hence
\[ P \to \cos w\,P^2 + i \sin w\,Q^2, \qquad Q \to \cos w\,Q^2 + i \sin w\,P^2, \]
\[ P_j \to \cos w\,P_j P + i \sin w\,Q_j Q, \qquad Q_j \to \cos w\,Q_j Q + i \sin w\,P_j P, \]
from P = cos w, Q = i sin w at a leaf, and from (P_j, Q_j) = (Q, P) where j is the root itself.

**More children, ragged trees.** A stage reads a forest: the trees of the nodes and leaves that have no parent among its
keys. With r children, whose trees have sums \(s_i\) and roots \(r_i\), the recursion is
\[ P \to \cos w \prod P_i + i \sin w \prod Q_i, \qquad Q \to \cos w \prod Q_i + i \sin w \prod P_i, \]
and \((P_j, Q_j)\) replaces \((P_i, Q_i)\) for a key j in tree i. \(b_m\) is the product of the roots of m's children, so
its weight replaces their P by Q. Nodes over equal trees are equal by symmetry, and keys are if their paths to the root of
their tree are. In a complete tree there is one kind of column and of path per level.

**The signal with r children.** At stage 1, \(\varphi_r'(S/n) = \tfrac{\pi r}2 \sin(\tfrac{\pi r}2 - wS)\) with
\(w = \pi r/(2n)\), and \(b_m b_j\) is a product of r − 1 bits, so \(E[b_m b_j e^{-iwS}] = (-i \sin w)^{r-1} \cos^{n-r+1} w\) and
\[ E[b_m b_j \varphi_r'] = \tfrac{\pi r}2 \operatorname{Im}\bigl(i^r (-i)^{r-1}\bigr) \sin^{r-1} w \cos^{n-r+1} w
   = \tfrac{\pi r}2 \sin^{r-1} w \cos^{n-r+1} w , \]
which is \(\varphi^{(r)}(0)/n^{r-1} = r!\,c/n^{r-1}\) to leading order. So the paper's rate becomes \(K n_t^r/(r!\,c)\).

**Samples with r children.** A non-child's one-sample gradient has a variance of about \(E[(\varphi - b_m)^2 \varphi'^2]/M^2\).
For even r, φ(0) = ±1 and φ′ is about φ″(0) z: the variance is about \(2\varphi''(0)^2/M^3\) with
\(\varphi''(0)^2 = (\pi r/2)^4\). For odd r it is about \(\varphi'(0)^2/M^2\) with \(\varphi'(0)^2 = (\pi r/2)^2\). As in
``prediction.py``, the threshold ½ must be \(\sqrt{2\ln MN}\) standard deviations away:
\[ B \approx 8 \ln(MN) \cdot \text{variance} \cdot \Bigl(\frac{M^r}{r!\,c}\Bigr)^2
   = \begin{cases} 16\,M^{2r-3} (\pi r/2)^{4-2r} \ln MN & r \text{ even,} \\
                    8\,M^{2r-2} (\pi r/2)^{2-2r} \ln MN & r \text{ odd.} \end{cases} \]
At r = 2 this is \(16 M \ln MN\). A larger r has fewer stages, \(\log_r k\), and each of them needs more samples by a power
of n.

**Sums modulo p.** With roots of unity in place of ±1, the weights are powers modulo p, \(F_q = E[r^q e^{i\langle w, N\rangle}]\)
in place of P and Q, and the numbers N of keys of each value in place of S. If \(u_x\) is the factor of value x and
\(\hat u_s = \frac1p\sum_x \omega^{sx} u_x\), then \(u_x = \sum_s \hat u_{-s}\,\omega^{sx}\), a leaf has
\(F_q = \hat u_q\), and a node above two trees
\[ F_q \to \sum_s \hat u_{-s}\, F_{q+s} F'_{q+s} . \]
P and Q are the case p = 2. The law of N takes \((M + 1)^{p-1}\) numbers. The gradient of \(\tfrac12|\varphi(z) - b_m|^2\)
is \(\frac1M \operatorname{Re}(H (b_j - z))\) with
\(H = \overline{(\varphi - b_m)}\,\partial_z\varphi + (\varphi - b_m)\,\overline{\partial_{\bar z}\varphi}\),
a function of S, \(b_m\) and \(b_j\).

S = 2u − M with u = 0 … M, so the values of these functions at the M + 1 frequencies w = πq/(M + 1) are a discrete
Fourier transform of the weighted laws. The laws give every expectation, for any link.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import combinations, product
from operator import add, mul
from typing import Final, Literal

import numpy as np
import torch
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from internalize.environment import check_memory
from internalize.parity.model.link import COSINE, Link
from internalize.parity.task.tree import Levels

Kind = Literal["child", "inside", "outside", "irrelevant"]
Reals = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Powers = tuple[float, ...]
"""A polynomial's coefficients, lowest power first."""
Pair = tuple[int, int]
Path = tuple[int, ...]
"""Shapes from the root of a tree down to a key in it. A shape is a number that equal trees share; a leaf has 0."""
_LATTICES: Final = 12
"""Approximate number of complex numbers held at once per value of S, for the memory check."""
_KINDS: Final[tuple[Kind, ...]] = ("child", "inside", "outside", "irrelevant")


@dataclass(frozen=True)
class KeyClass:
    """Keys of a column that are equal by symmetry: their relation to its node, their level and their number.

    ``column`` is the kind of column, counted from 0; ``path`` says where the keys are in their tree.
    """

    kind: Kind
    level: int
    count: int
    column: int = 0
    path: Path = ()


@dataclass(frozen=True)
class StageGradient:
    """Exact moments of the one-sample gradient of a stage (counted from 0), one entry per class of key.

    ``third`` is the third central moment. ``shared`` is the variance of φφ′(b_j − z)/M, the part of the gradient
    that all columns have in common. ``columns`` has the number of columns of each kind; a complete tree has one kind.
    ``sibling`` is the covariance of the gradients of two children of one node, one number per kind of column.
    """

    stage: int
    keys: int
    columns: tuple[int, ...]
    classes: tuple[KeyClass, ...]
    mean: Reals
    variance: Reals
    third: Reals
    shared: Reals
    sibling: tuple[float, ...]
    c: float
    arity: int = 2

    @property
    def nodes(self) -> int:
        """Number of columns."""
        return sum(self.columns)

    @property
    def paper_rate(self) -> float:
        """The paper's learning rate at K = 1: n_t² / (2c), and n_t^r / (r! c) for nodes with r children."""
        return self.keys**self.arity / (math.factorial(self.arity) * self.c)

    def children(self, column: int | None = None) -> list[int]:
        """Return the places of the classes of children, of all columns or of one kind."""
        return [
            number for number, key in enumerate(self.classes) if key.kind == "child" and column in (None, key.column)
        ]

    @cached_property
    def owned(self) -> dict[tuple[int | None, Path], int]:
        """Number of keys at each path in trees below columns of each kind; None for keys below no column."""
        found: Counter[tuple[int | None, Path]] = Counter()
        totals: Counter[Path] = Counter()
        for key in self.classes:
            if key.kind in ("child", "inside"):
                found[key.column, key.path] += key.count * self.columns[key.column]
            if key.column == 0:  # the keys of one column are all keys
                totals[key.path] += key.count
        owned = dict(found)
        for path, total in totals.items():
            owned[None, path] = total - sum(count for (_, other), count in found.items() if other == path)
        return {place: count for place, count in owned.items() if count}

    @property
    def child_mean(self) -> float:
        """Mean of the expected gradient over all children."""
        children = self.children()
        if len(children) == 1:
            return float(self.mean[children[0]])
        counts = np.array([self.classes[child].count * self.columns[self.classes[child].column] for child in children])
        return float(counts @ self.mean[children] / counts.sum())

    @property
    def signal(self) -> float:
        """Expected step on a child at the paper's rate, as a fraction of K; it tends to 1."""
        return -self.child_mean * self.paper_rate

    @property
    def noise(self) -> float:
        """Largest standard deviation of a step at the paper's rate and B = 1, as a fraction of K."""
        return math.sqrt(float(self.variance.max())) * self.paper_rate


@dataclass(frozen=True)
class Forest:
    """The trees that a stage reads and the columns that it writes, up to symmetry."""

    families: tuple[tuple[int, ...], ...]
    """The shapes of the children of shape s + 1, for every s."""
    roots: Mapping[int, int]
    """Number of trees of each shape."""
    columns: Mapping[int, int]
    """Number of columns whose node has each shape."""
    examples: tuple[int, ...]
    """One node of each kind of column, counted from 0 at the first node of the tree."""
    spare: int
    """Number of input bits outside the secret set."""

    @staticmethod
    def of(levels: Levels, stage: int) -> "Forest":
        """Return the forest of a stage, counted from 0."""
        read, written = (levels.level_end[level] - levels.n for level in (stage, stage + 1))
        known: dict[tuple[int, ...], int] = {}
        shapes, free = [0] * levels.k, set(range(levels.k))
        for node, family in enumerate(levels.families[:written]):
            below = tuple(sorted((shapes[child] for child in family), reverse=True))
            shapes.append(known.setdefault(below, len(known) + 1))
            if node < read:
                free = free.difference(family)
                free.add(levels.k + node)
        of_columns = shapes[levels.k + read :]
        columns = Counter(of_columns)
        roots = dict(sorted(Counter(shapes[place] for place in free).items(), reverse=True))
        examples = tuple(read + of_columns.index(shape) for shape in columns)
        return Forest(tuple(known), roots, columns, examples, levels.n - levels.k)

    @cached_property
    def heights(self) -> tuple[int, ...]:
        """The level of the root of each shape."""
        found = [0]
        for family in self.families:
            found.append(1 + max(found[shape] for shape in family))
        return tuple(found)

    @cached_property
    def paths(self) -> tuple[dict[Path, int], ...]:
        """The paths to the keys in a tree of each shape, its root first, with the number of keys at each."""
        found: list[dict[Path, int]] = [{(0,): 1}]
        for shape, family in enumerate(self.families, start=1):
            counts: Counter[Path] = Counter({(shape,): 1})
            for child in family:
                for path, count in found[child].items():
                    counts[(shape, *path)] += count
            found.append(dict(counts))
        return tuple(found)

    def own(self, node: int) -> "Counter[int]":
        """Return the shapes of the children of a node of this shape."""
        return Counter(self.families[node - 1])

    def classes(self) -> tuple[KeyClass, ...]:
        """Return the non-empty classes of keys of each kind of column, the children first."""
        found: list[KeyClass] = []
        for column, node in enumerate(self.columns):
            own = self.own(node)
            for shape, number in self.roots.items():
                for path, count in self.paths[shape].items():
                    level = self.heights[path[-1]]
                    kind: Kind = "inside" if path[1:] else "child"
                    found.append(KeyClass(kind, level, own[shape] * count, column, path))
                    found.append(KeyClass("outside", level, (number - own[shape]) * count, column, path))
            found.append(KeyClass("irrelevant", 0, self.spare, column))
        order = sorted(found, key=lambda key: (key.column, _KINDS.index(key.kind), key.level))
        return tuple(key for key in order if key.count)


class Characteristics:
    """The functions E[weight · e^{iwS}] of a stage, by the module's recursion.

    A weight is a power of b_m, a power of b_j, or a product of both. Powers of ±1 count modulo 2, and those of p-th roots of
    unity modulo p: ``letter[s]`` is E[x^s e^{iwx}] of one bit x, cos w and i sin w.
    """

    def __init__(self, forest: Forest, letter: Sequence[Complexes]) -> None:
        self.forest, self.letter, self.modulus = forest, tuple(letter), len(letter)
        self._trees: list[tuple[Complexes, ...]] = [self.letter]
        """E[r^q e^{iws}] of a tree of each shape with root r and sum s, for each power q: P and Q."""
        self._tracked: dict[tuple[Path, int], tuple[Complexes, ...]] = {}
        """The same with the additional weight b_j^a, for the key at each path and a ≥ 1: P_j and Q_j."""
        for a in range(1, self.modulus):
            self._tracked[(0,), a] = self._shifted(self.letter, a)
        top = max(forest.heights[shape] for shape in forest.roots)
        for shape, family in enumerate(forest.families, start=1):
            if forest.heights[shape] > top:  # the columns' own nodes are not read
                break
            self._trees.append(self._joined([self._trees[child] for child in family]))
            for path, a in [(path, a) for path in forest.paths[shape] for a in range(1, self.modulus)]:
                if path[1:]:
                    others = list(family)
                    others.remove(path[1])
                    below = [self._tracked[path[1:], a], *(self._trees[other] for other in others)]
                    self._tracked[path, a] = self._joined(below)
                else:
                    self._tracked[path, a] = self._shifted(self._trees[shape], a)

    def _part(self, path: Path | int, a: int) -> tuple[Complexes, ...]:
        """Return the functions of a tree with the weight b_j^a of the key at a path; a shape stands for its root."""
        path = path if isinstance(path, tuple) else (path,)
        return self._tracked[path, a] if a else self._trees[path[0]]

    def _shifted(self, tree: Sequence[Complexes], a: int) -> tuple[Complexes, ...]:
        """Return a tree with the weight r^a of its own root."""
        return tuple(tree[(q + a) % self.modulus] for q in range(self.modulus))

    def _joined(self, trees: Sequence[Sequence[Complexes]]) -> tuple[Complexes, ...]:
        """Return the tree of a new root above these trees."""
        p = self.modulus
        return tuple(
            reduce(add, [_times(self.letter[-s % p], [tree[(q + s) % p] for tree in trees]) for s in range(p)])
            for q in range(p)
        )

    def of(self, node: int, key: KeyClass | None = None, of_node: int = 0, of_key: int = 0) -> Complexes:
        """Return the function of S with the weight b_m^of_node b_j^of_key, for a column whose node has this shape."""
        own = self.forest.own(node)
        others, spare = Counter(self.forest.roots) - own, self.forest.spare
        first: list[tuple[Complexes, int]] = []
        beside: list[tuple[Complexes, int]] = []
        outside: list[tuple[Complexes, int]] = []
        if key is not None and key.kind == "irrelevant":
            outside, spare = [(self.letter[of_key], 1)], spare - 1
        elif key is not None:
            tracked = self._part(key.path, of_key)
            if key.kind == "outside":
                beside, others = [(tracked[0], 1)], others - Counter(key.path[:1])
            else:
                first, own = [(tracked[of_node], 1)], own - Counter(key.path[:1])
        children = [(self._trees[shape][of_node], count) for shape, count in own.items()]
        rest = [(self._trees[shape][0], count) for shape, count in others.items()]
        return _product(*first, *children, *beside, *rest, *outside, (self.letter[0], spare))

    def of_pair(self, node: int, pair: Pair, of_node: int = 0, powers: Pair = (1, 1)) -> Complexes:
        """Return the function with weight b_m^of_node b_c1^x b_c2^y, for two children with trees of these shapes."""
        own = self.forest.own(node)
        both, others = Counter(pair), Counter(self.forest.roots) - own
        a_child = [(shape, power) for shape, power in zip(pair, powers, strict=True)]
        children = [(self._part(shape, power)[of_node], count) for (shape, power), count in Counter(a_child).items()]
        children += [(self._trees[shape][of_node], count) for shape, count in (own - both).items()]
        rest = [(self._trees[shape][0], count) for shape, count in others.items()]
        return _product(*children, *rest, (self.letter[0], self.forest.spare))


def stage_gradient(levels: Levels, stage: int, link: Link = COSINE, kept: Sequence[float] = ()) -> StageGradient:
    """Return the moments of the stage's gradient for any link, from the exact weighted laws of S on its lattice.

    ``kept`` is E[label · b_m] of every node, 1 if it is empty; it is less where labels are noisy.
    """
    if levels.modulus != 2:
        return residue_gradient(levels, stage, link)
    M = levels.level_end[stage]
    lattice = torch.from_numpy((2 * np.arange(M + 1) - M) / M)
    z: Reals = lattice.numpy()
    phi: Reals = link.phi(lattice).numpy()
    slope: Reals = link.slope(lattice).numpy()
    laws = Laws(levels, stage)
    forest = laws.forest
    shares = [kept[example] if kept else 1.0 for example in forest.examples]

    def integrate(weighted: Reals, of_phi: Powers, of_slope: int, of_z: Powers) -> float:
        """Return E[weight · a(φ) φ′^q c(z)]."""
        return float(weighted @ (polyval(phi, of_phi) * slope**of_slope * polyval(z, of_z)))

    def moment(q: int, key: KeyClass) -> float:
        """Return E[((φ − label) φ′ (b_j − z))^q]."""
        a, b, plain, odd = _EXPANSIONS[q]
        one, m, j, mj = laws.of_key(key)
        share = shares[key.column]
        without = integrate(one, a, q, plain) + integrate(j, a, q, odd)
        return without + share * integrate(m, b, q, plain) + share * integrate(mj, b, q, odd)

    def common(q: int, key: KeyClass) -> float:
        """Return E[(φ φ′ (b_j − z))^q], for the part that the columns share."""
        _, _, plain, odd = _EXPANSIONS[q]
        power = (0,) * q + (1,)
        one, _, j, _ = laws.of_key(key)
        return integrate(one, power, q, plain) + integrate(j, power, q, odd)

    def of_siblings(column: int, one_child: KeyClass, other: KeyClass) -> float:
        """Return E[(φ − label)² φ′² (b_c1 − z)(b_c2 − z)], whose last part is b_c1 b_c2 + z² − z(b_c1 + b_c2)."""
        a, b, _, _ = _EXPANSIONS[2]
        one, m, j1, mj1 = laws.of_key(one_child)
        _, _, j2, mj2 = laws.of_key(other)
        both, m_both = laws.of_pair(column, (one_child.path[0], other.path[0]))
        found = integrate(both, a, 2, (1,)) + integrate(one, a, 2, (0, 0, 1)) + integrate(j1 + j2, a, 2, (0, -1))
        of_label = integrate(m_both, b, 2, (1,)) + integrate(m, b, 2, (0, 0, 1)) + integrate(mj1 + mj2, b, 2, (0, -1))
        return found + shares[column] * of_label

    classes = forest.classes()
    mean, square, cube = (np.array([moment(q, key) for key in classes]) for q in (1, 2, 3))
    siblings: list[float] = []
    for column in range(len(forest.columns)):
        children = [number for number, key in enumerate(classes) if key.kind == "child" and key.column == column]
        each = [number for number in children for _ in range(classes[number].count)]
        pairs = Counter(combinations(each, 2))
        covariance = [
            count * (of_siblings(column, classes[x], classes[y]) - float(mean[x] * mean[y]))
            for (x, y), count in pairs.items()
        ]
        siblings.append(sum(covariance) / sum(pairs.values()) / M**2)
    shared = np.array([common(2, key) - common(1, key) ** 2 for key in classes])
    return StageGradient(
        stage=stage,
        keys=M,
        columns=tuple(forest.columns.values()),
        classes=classes,
        mean=mean / M,
        variance=(square - mean**2) / M**2,
        third=(cube - 3 * mean * square + 2 * mean**3) / M**3,
        shared=shared / M**2,
        sibling=tuple(siblings),
        c=link.c,
        arity=levels.arity,
    )


@cache
def population(levels: Levels, link: Link = COSINE, kept: tuple[float, ...] = ()) -> tuple[StageGradient, ...]:
    """Return the exact moments of every stage's gradient; ``kept`` has a share of each node, 1 if it is empty."""
    values, letters = (levels.T + 1.0) ** (levels.modulus - 1), levels.modulus**2
    copies = _LATTICES if levels.modulus == 2 else (levels.L + 3) * letters
    world = f", modulus={levels.modulus}" if levels.modulus != 2 else ""
    check_memory(16.0 * copies * values, f"n={levels.n}, k={levels.k}{world}")
    return tuple(stage_gradient(levels, stage, link, kept) for stage in range(levels.L))


def residue_gradient(levels: Levels, stage: int, link: Link) -> StageGradient:
    """Return the moments of the stage's gradient for sums modulo p, from the exact joint laws of b_m, b_j and S."""
    laws = ResidueLaws(levels, stage)
    p, M, classes = levels.modulus, laws.M, laws.forest.classes()
    assert link.slopes is not None
    root = np.exp(2j * np.pi * np.arange(p) / p)
    lattice = torch.from_numpy(laws.sums / M)
    z: Complexes = lattice.numpy()
    phi: Complexes = link(lattice).numpy()
    of_z, of_conjugate = (slope.numpy() for slope in link.slopes(lattice))

    def pulled(error: Complexes) -> Complexes:
        return error.conj() * of_z + error * of_conjugate.conj()

    pulls = [pulled(phi - label) for label in root]
    common = pulled(phi)
    moments: list[tuple[float, ...]] = []
    for key in classes:
        joint = laws.of_key(key)  # by the values of b_m and b_j
        found = np.zeros(5)
        for m, j in product(range(p), repeat=2):
            gradient = (pulls[m] * (root[j] - z)).real
            part = (common * (root[j] - z)).real
            powers = (gradient, gradient**2, gradient**3, part, part**2)
            found += [joint[m, j] @ power for power in powers]
        moments.append(tuple(found.tolist()))
    mean, square, cube, part, part_square = np.array(moments).T
    siblings: list[float] = []
    for column in range(len(laws.forest.columns)):
        own = [number for number, key in enumerate(classes) if key.kind == "child" and key.column == column]
        first, second = own[0], own[-1]  # two children, of one class or of two
        joint, covariance = laws.of_pair(column, (classes[first].path[0], classes[second].path[0])), 0.0
        for x, y in product(range(p), repeat=2):
            pull = pulls[(x + y) % p]
            covariance += float(joint[x, y] @ ((pull * (root[x] - z)).real * (pull * (root[y] - z)).real))
        siblings.append((covariance - float(mean[first] * mean[second])) / M**2)
    return StageGradient(
        stage=stage,
        keys=M,
        columns=tuple(laws.forest.columns.values()),
        classes=classes,
        mean=mean / M,
        variance=(square - mean**2) / M**2,
        third=(cube - 3 * mean * square + 2 * mean**3) / M**3,
        shared=(part_square - part**2) / M**2,
        sibling=tuple(siblings),
        c=link.c,
    )


class ResidueLaws:
    """The joint laws of a stage for sums modulo p: of the values of two positions and of the number of keys of each value.

    The number of keys of value 0 follows from those of the other values, which are the coordinates of the lattice.
    """

    def __init__(self, levels: Levels, stage: int) -> None:
        self.forest, self.M, self.p = Forest.of(levels, stage), levels.level_end[stage], levels.modulus
        p, side = self.p, self.M + 1
        phase = np.exp(2j * np.pi * np.arange(side) / side)
        waves = [np.ones((1,) * (p - 1)), *(phase.reshape(-1, *(1,) * (p - 1 - x)) for x in range(1, p))]
        root = np.exp(2j * np.pi * np.arange(p) / p)
        letter = [sum(root[s * x % p] * waves[x] for x in range(p)) / p for s in range(p)]
        self._of = Characteristics(self.forest, [np.broadcast_to(own, (side,) * (p - 1)) for own in letter])
        counts = np.indices((side,) * (p - 1)).reshape(p - 1, -1)
        self._valid = counts.sum(axis=0) <= self.M
        counts = counts[:, self._valid]
        self.sums: Complexes = self.M - counts.sum(axis=0) + np.tensordot(root[1:], counts, 1)
        self._nodes = list(self.forest.columns)

    def of_key(self, key: KeyClass) -> Reals:
        """Return the law by the values of b_m and b_j: p × p × lattice."""
        node = self._nodes[key.column]
        return self._joint(lambda m, j: self._of.of(node, key, m, j))

    def of_pair(self, column: int, pair: Pair) -> Reals:
        """Return the law by the values of two children: p × p × lattice."""
        node = self._nodes[column]
        return self._joint(lambda x, y: self._of.of_pair(node, pair, powers=(x, y)))

    def _joint(self, characteristic: Callable[[int, int], Complexes]) -> Reals:
        weighted = [
            [np.fft.fftn(characteristic(a, b)).reshape(-1)[self._valid] for b in range(self.p)] for a in range(self.p)
        ]
        # The law's character sums over both values; the inverse transform is that of a Fourier transform of size p × p.
        return np.fft.fft2(np.array(weighted), axes=(0, 1)).real / (self.p**2 * (self.M + 1) ** (self.p - 1))


class Laws:
    """The laws of S at a stage, with the weights of a column's node and of a class of key."""

    def __init__(self, levels: Levels, stage: int) -> None:
        self.forest = Forest.of(levels, stage)
        self._M = levels.level_end[stage]
        w = np.pi * np.arange(self._M + 1) / (self._M + 1)
        self._shift = np.exp(1j * w * self._M)
        self._of = Characteristics(self.forest, (np.cos(w) + 0j, 1j * np.sin(w)))
        self._nodes = list(self.forest.columns)
        self._plain: dict[int, tuple[Reals, Reals]] = {}
        self._known: dict[KeyClass, tuple[Reals, Reals]] = {}

    def of_key(self, key: KeyClass) -> tuple[Reals, Reals, Reals, Reals]:
        """Return the laws of S weighted by 1, b_m, b_j and b_m b_j."""
        node = self._nodes[key.column]
        if key.column not in self._plain:
            self._plain[key.column] = self._law(self._of.of(node)), self._law(self._of.of(node, of_node=1))
        if key not in self._known:
            self._known[key] = self._law(self._of.of(node, key, 0, 1)), self._law(self._of.of(node, key, 1, 1))
        return *self._plain[key.column], *self._known[key]

    def of_pair(self, column: int, pair: tuple[int, int]) -> tuple[Reals, Reals]:
        """Return the laws of S weighted by b_c1 b_c2 and by b_m b_c1 b_c2."""
        node = self._nodes[column]
        return self._law(self._of.of_pair(node, pair)), self._law(self._of.of_pair(node, pair, 1))

    def _law(self, characteristic: Complexes) -> Reals:
        return np.fft.fft(characteristic * self._shift).real / (self._M + 1)


def _times(factor: Complexes, others: Sequence[Complexes]) -> Complexes:
    return reduce(mul, others, factor)


def _product(*powers: tuple[Complexes, int]) -> Complexes:
    """Return the product of base^exponent by repeated squaring; at least one exponent must be above 0."""
    factors: list[Complexes] = []
    for base, exponent in powers:
        square, bits = base, exponent
        while bits:
            if bits & 1:
                factors.append(square)
            bits >>= 1
            square = square * square
    return reduce(mul, factors)


# (a, b, c, d), lowest power first: (φ − b_m)^q = a(φ) + b_m b(φ) and (b_j − z)^q = c(z) + b_j d(z), because b² = 1.
_EXPANSIONS: Final[dict[int, tuple[Powers, Powers, Powers, Powers]]] = {
    1: ((0, 1), (-1,), (0, -1), (1,)),
    2: ((1, 0, 1), (0, -2), (1, 0, 1), (0, -2)),
    3: ((0, 3, 0, 1), (-1, 0, -3), (0, -3, 0, -1), (1, 0, 3)),
}
