r"""The signal of a stage that trains two levels at once from W = 0: how much larger a leaf's gradient is than another's.

| name  | meaning                                                                                              |
| ----- | ---------------------------------------------------------------------------------------------------- |
| s     | mean of the n bits: the input of every node of level 1                                               |
| M     | n + k/2 keys of layer 2                                                                              |
| a     | (k/2)/M, the share of level 1 among them                                                             |
| z     | \((1-a)s + a\,\phi(s)\), the input of every node of level 2                                          |
| upper | \(\phi'(z)\): a sample's gradient in layer 2 at a bit j is \((\phi(z) - b_m)\,\phi'(z)\,(b_j - z)/M\) |
| lower | \(\phi'(z)\,\phi'(s)\): the same in layer 1, summed over the nodes of level 2 and divided by n        |

The first stage reads level 2 and hides level 1. At W = 0 all nodes of a level are equal. A leaf j and another bit i of a
column differ by \(-E[b_m (b_j - b_i)\,\phi'(z)]/M\) in layer 2, and \(b_m b_j\) is a parity of 3 bits while \(b_m b_i\) is
one of 5. With \(\rho_a(u)\) the mean of a parity of a bits over all inputs with u bits −1 (Krawtchouk's polynomial over
\(\tbinom na\)),
\[ \text{signal} = \frac1M \sum_u 2^{-n} \tbinom nu\, \bigl(\rho_3(u) - \rho_5(u)\bigr)\, G(1 - 2u/n) \]
with G the upper or the lower function; for layer 1 it is divided by n once more. This is exact for any n, k and link. A
parity of a bits picks the a-th derivative, \(E[b_1 \cdots b_a G(s)] = G^{(a)}(0)\,n^{-a}(1 + O(1/n))\) at a fixed a, so
the signals are about \(F'''/(M n^3)\) and \(H'''/(M n^4)\). For the cosine
\[ F''' = \pi^4 (1-a)\bigl[3\pi a \sin\pi a - (1-a)^2 \cos\pi a\bigr], \qquad
   H''' = \pi^5 \bigl[3\pi a\cos\pi a + 3(1-a)^2 \sin\pi a + \sin\pi a\bigr] . \]
The corrections are large: at k = n/2 and n = 64 the exact signal of layer 2 is a sixth of this order. So predictions use
the exact sum. Samples grow like (noise/signal)². In a stage of one level that is n. With two levels and fixed k/n, φ′(z) does
not vanish, so the noise of a sample is of order 1/n in layer 2 and \(n^{-5/2}\) in layer 1: \(n^6\) and \(n^5\) samples.
With fixed k, a is of order 1/n and both φ′ are of order \(n^{-1/2}\): \(n^5\) and \(n^6\). \(F'''\) changes its sign in a, and
near that a layer 2 hardly moves. Positive signals raise the leaves; where it is negative, layer 2 turns away from the bits
of its node.

The signals are those of W = 0 and of each node. Equal columns still cannot be parted (``certificates/symmetry.py``): with
several nodes their signals in layer 1 add up to one column. Random initial weights part them, at this signal's pace.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from internalize.errors import InputError
from internalize.parity.model.link import COSINE, Link
from internalize.parity.task.tree import Levels


@dataclass(frozen=True)
class ChunkSignal:
    """The signals of layers 1 and 2 at W = 0: the step's direction on a leaf minus that on a bit outside the node."""

    lower: float
    upper: float


def chunk_signal(levels: Levels, link: Link = COSINE) -> ChunkSignal:
    """Return the exact signals of the stage that trains levels 1 and 2 together."""
    n, share, M = levels.n, _share(levels), levels.level_end[1]
    s = 1 - 2 * torch.arange(n + 1, dtype=torch.float64) / n
    slope = link.slope((1 - share) * s + share * link(s))
    odd = torch.tensor([float(_law(n, u)) for u in range(n + 1)], dtype=torch.float64)
    return ChunkSignal(float(odd @ (slope * link.slope(s))) / M / n, float(odd @ slope) / M)


def leading_signal(levels: Levels) -> ChunkSignal:
    """Return the leading order for the cosine: F‴ / (M n³) for layer 2 and H‴ / (M n⁴) for layer 1."""
    n, a, M = levels.n, _share(levels), levels.level_end[1]
    sin, cos = math.sin(math.pi * a), math.cos(math.pi * a)
    upper = math.pi**4 * (1 - a) * (3 * math.pi * a * sin - (1 - a) ** 2 * cos)
    lower = math.pi**5 * (3 * math.pi * a * cos + 3 * (1 - a) ** 2 * sin + sin)
    return ChunkSignal(lower / (M * n**4), upper / (M * n**3))


def _share(levels: Levels) -> float:
    if levels.L < 2 or levels.n < 5:
        raise InputError(f"n={levels.n}, k={levels.k}: two levels in a stage need k ≥ 4, and a bit outside needs n ≥ 5")
    return levels.width(1) / levels.level_end[1]


def _law(n: int, u: int) -> Fraction:
    """Return the probability of u bits −1 times the difference of the mean parities of 3 and of 5 bits."""
    return Fraction(math.comb(n, u), 2**n) * (_parity(n, 3, u) - _parity(n, 5, u))


def _parity(n: int, size: int, u: int) -> Fraction:
    total = sum((-1) ** i * math.comb(u, i) * math.comb(n - u, size - i) for i in range(size + 1))
    return Fraction(total, math.comb(n, size))
