r"""Correlations of parities: the size of those that should vanish, and the number of those that are always 1.

| name    | paper | meaning                                                             | where             |
| ------- | ----- | ------------------------------------------------------------------- | ----------------- |
| parity  | –     | the input bits that a position multiplies, as the bits of a number  | section 2.1       |
| trivial | ∉ I_r | a tuple of positions whose product is always 1: its parities cancel | appendix C, start |
| kappa   | κ     | \(\sqrt{(2/B)\ln(32 n^4/p)}\) with p = exp(−n^{ε/2})                | Lemma "Concentr…" |
| M       | m − 1 | tuples are drawn from the first M positions                         | Lemma "Trivial…"  |

**Why κ.** A tuple with a repeated index reduces to a lower order, so only sets of at most 4 different positions
matter, fewer than \((2n)^4\). Each non-trivial product is a fair sign, independent over samples. So by Hoeffding
one of the means exceeds κ with probability at most \((2n)^4 \cdot 2 e^{-B\kappa^2/2} = p\).

**The count.** Ordered 4-tuples of M positions cancel in two cases: they pair up, in \(3M^2 - 2M\) ways, or they are
a node, one of its children and the two children of the other child. Each node whose children are nodes gives 2
choices in 4! orders.
"""

import math
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from internalize.certificate import Finding, not_applicable, statement
from internalize.parity.certificates.world import World

_ALL_PAIRS = 1100
"""Largest number of pairs of positions for which all 4-tuples are checked; above it, those of as many drawn pairs."""
_MAX_SAMPLES = 20_000
"""Largest number of samples of a batch that are used."""


@statement("Lemma 9 of Kim and Suzuki", "non-trivial correlations of order up to 4 are at most κ")
def concentration(world: World) -> Finding:
    """Check Lemma "Concentration": non-trivial correlations of order up to 4 are at most κ in the first stage's batch.

    Measured: the largest one, over all tuples if there are few positions, otherwise over all of order up to 2 and
    those of drawn pairs.
    """
    start, B = world.ranges[0] if world.ranges else (0, _MAX_SAMPLES)
    B = min(B, _MAX_SAMPLES)
    n = world.tree.n
    kappa = math.sqrt(2 / B * (math.log(32 * n**4) + n ** (world.epsilon / 2)))
    # Sums of ±1 over up to 2^24 samples are exact in float32.
    sequence = world.sequence(world.draw(start, B, "train")).float()
    code = _codes(world)
    T = world.levels.T
    pairs = np.array(list(combinations(range(T), 2)))
    everything = len(pairs) <= _ALL_PAIRS
    if not everything:
        pairs = np.random.Generator(np.random.Philox(world.seed)).permutation(pairs)[:_ALL_PAIRS]
    pair = sequence[:, pairs[:, 0]] * sequence[:, pairs[:, 1]]
    pair_code = code[pairs[:, 0]] ^ code[pairs[:, 1]]
    worst = float(sequence.mean(dim=0).abs().max())
    for left, left_code in ((sequence, code), (pair, pair_code)):
        for right, right_code in ((sequence, code), (pair, pair_code)):
            worst = max(worst, _largest(left, left_code, right, right_code))
    checked = "all tuples" if everything else f"all tuples of order 2 and those of {len(pairs)} drawn pairs"
    return Finding(worst, kappa, f"B={B}, {checked}", vacuous=kappa >= 1)


@statement('Lemma "Trivial 4-tuple count"', "3M² − 2M + 48·#(nodes above level 2) tuples of 4 cancel")
def trivial_tuples(world: World) -> Finding:
    r"""Check that the first M positions have \(3M^2 - 2M + 48\,\#\{\text{nodes above level 2}\}\) trivial 4-tuples.

    That is at most \(12 n^2 + 48 n\) for M < 2n, the O(n²) of Lemma "Trivial 4-tuple count". Measured: the largest
    difference of a count from the formula, over every M = m − 1 with m a node.
    """
    levels, code = world.levels, _codes(world)
    if not world.in_papers_tree:
        return not_applicable("the formula counts the cancelling 4-tuples of the paper's complete binary tree")
    if levels.T > 600:
        return not_applicable(
            f"T={levels.T}: the count runs over all pairs of positions for every m, and is made only up to T = 600"
        )
    worst = 0
    for M in range(levels.n, levels.T):
        sums = (code[:M, None] ^ code[None, :M]).reshape(-1)
        counts = np.unique(sums, return_counts=True)[1].astype(object)
        upper = sum(levels.level_of(m) >= 2 for m in range(levels.n, M))  # level 3 of the paper
        worst = max(worst, abs(int((counts**2).sum()) - (3 * M**2 - 2 * M + 48 * upper)))
    return Finding(float(worst), 0.0)


def _codes(world: World) -> NDArray[np.int64]:
    """Return a number per position; a product of positions is trivial iff the exclusive or of its numbers is 0.

    Up to 62 input bits the number is the set of input bits itself. Above, each input bit has a random word, and a
    non-trivial product looks trivial with probability 2^−62.
    """
    n = world.tree.n
    words = np.random.Generator(np.random.Philox(7)).integers(1, 2**62, size=n)
    code = [1 << j if n <= 62 else int(words[j]) for j in range(n)]
    for m in range(n, world.levels.T):
        own = 0
        for child in world.tree.children(m):
            own ^= code[child]
        code.append(own)
    return np.array(code, dtype=np.int64)


def _largest(left: Tensor, left_code: NDArray[np.int64], right: Tensor, right_code: NDArray[np.int64]) -> float:
    """Return the largest |mean product| of a column of ``left`` and one of ``right`` that is not trivial."""
    means = (left.T @ right / len(left)).abs()
    trivial = torch.from_numpy(left_code[:, None] == right_code[None, :])
    return float(means.masked_fill(trivial, 0.0).max())
