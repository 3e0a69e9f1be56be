r"""The signal of a stage that trains the lowest r levels at once from W = 0, its noise, and the pace of AdamW.

| name   | meaning                                                                                                 |
| ------ | ------------------------------------------------------------------------------------------------------- |
| r      | levels that the stage removes at once; it reads level r and hides those below                            |
| R      | 2^r leaves below a node of level r                                                                       |
| s      | mean of the n bits: the input z₁ of every node of level 1                                               |
| N, M   | N_h = k/2^h nodes of level h; M_h keys of layer h: the bits and the nodes of lower levels                |
| y, z   | value and input of every node of level h at W = 0: \(y_h = \phi(z_h)\), \(M_h z_h = ns + \sum_{i<h} N_i y_i\) |
| κ      | change of z_r with one node's value in level ℓ, directly and through the levels between                  |
| G      | \(\phi'(z_r)/M_r\) in layer r; \(\phi'(z_r)\,\kappa\,\phi'(z_\ell)/M_\ell\) in layer ℓ < r               |
| signal | the step's direction on a leaf minus that on a bit outside the node                                      |
| noise  | standard deviation of one sample's gradient at a bit outside the tree                                    |

At W = 0 all nodes of a level are equal, so all of this depends only on the number u of bits that are −1. The gradient of
one sample at a bit j is \((y_r - b_m)\,G\,(b_j - z)\), in layers below r summed over the nodes m of level r. A leaf and
another bit differ by \(-E[b_m (b_j - b_i)\,G]\), and \(b_m b_j\) is a parity of R − 1 bits while \(b_m b_i\) is one of
R + 1. With \(\rho_a(u)\) the mean of a parity of a bits over all inputs with u bits −1 (Krawtchouk's polynomial over
\(\tbinom na\)),
\[ \text{signal} = \sum_u 2^{-n} \tbinom nu\, \bigl(\rho_{R-1}(u) - \rho_{R+1}(u)\bigr)\, G(u) . \]
The square of the gradient needs only \(\rho_1, \rho_R, \rho_{R+1}, \rho_{2R}\) and \(\rho_{2R+1}\) besides. Both are
exact for any n, k and link. A parity of a bits picks the a-th derivative, \(E[b_1 \cdots b_a g(s)] = g^{(a)}(0)\,n^{-a}
(1 + O(1/n))\) at a fixed a. For r = 2 and the cosine, with \(a = N_1/M_2\), the signals are about
\(F'''/(M n^3)\) in layer 2 and \(H'''/(M n^4)\) in layer 1:
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

**Pace of AdamW.** Where noise dominates, AdamW divides a batch's gradient by its standard deviation, noise/√B. So a weight
of layer 1, without which no layer above has children, drifts by lr · signal · √B/noise per update. ``updates`` is the
number after which a leaf is one logit ahead if the signal stayed what it is at W = 0:
\[ T = \frac{1}{\text{lr} \cdot \sqrt B \cdot \text{signal}/\text{noise}} . \]
It has no fitted constant, and is a rule, not a bound: it neglects that the signal grows once the leaves are ahead (which
makes T too large), the time in which columns part, and the random walk of the other weights, which is of size lr √T.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from internalize.errors import InputError
from internalize.parity.model.link import COSINE, Link
from internalize.parity.task.tree import Levels

_ROUNDING: Final = 1e3 * 2**-53
"""A signal below this share of the terms that it is the sum of is lost in their rounding, and counts as 0."""


@dataclass(frozen=True)
class ChunkSignal:
    """The signal and the noise of each layer of a stage that trains several levels, from layer 1 on."""

    signal: tuple[float, ...]
    noise: tuple[float, ...]

    def updates(self, batch: int, lr: float) -> float:
        """Return the updates of AdamW until layer 1 has a leaf one logit ahead; infinity if its signal is negative."""
        drift = lr * math.sqrt(batch) * self.signal[0] / self.noise[0]
        return 1 / drift if drift > 0 else math.inf


def chunk_signal(levels: Levels, link: Link = COSINE, count: int = 2) -> ChunkSignal:
    """Return the exact signals and noises of the stage that trains the lowest ``count`` levels together."""
    if not 1 <= count <= levels.L or levels.n <= levels.k:
        raise InputError(
            f"n={levels.n}, k={levels.k}: {count} levels in a stage need k ≥ {2**count}, and a bit outside needs n > k"
        )
    n, leaves, M = levels.n, 2**count, levels.level_end
    N = [levels.width(h) for h in range(count + 1)]
    s = 1 - 2 * torch.arange(n + 1, dtype=torch.float64) / n
    z, y = [s], [link(s)]
    for h in range(1, count):
        z.append((n * s + sum(width * own for width, own in zip(N[1:], y, strict=False))) / M[h])
        y.append(link(z[-1]))
    slopes = [link.slope(own) for own in z]
    law = torch.tensor([math.comb(n, u) / 2**n for u in range(n + 1)], dtype=torch.float64)
    one, inside, outside = (_parity(n, size) for size in (1, leaves - 1, leaves + 1))
    own = _parity(n, leaves)
    signal: list[float] = []
    noise: list[float] = []
    for layer in range(count):
        top = layer == count - 1
        nodes = 1 if top else N[count]
        G = slopes[-1] / M[layer]
        if not top:
            change: dict[int, Tensor] = {}  # of the input of each higher level with a node of this one
            for h in range(layer + 1, count):
                between = sum((N[i + 1] * slopes[i] * change[i] for i in range(layer + 1, h)), torch.ones_like(s))
                change[h] = between / M[h]
            G = G * change[count - 1] * slopes[layer]
        terms = law * ((inside - outside) * G)
        found = float(terms.sum())
        signal.append(found if abs(found) > _ROUNDING * float(terms.abs().sum()) else 0.0)
        # E[(nodes y − Σ b_m)^q (b_j − z)^q] given u, with b_j² = b_m² = 1, j outside the tree and m, m' different nodes.
        error, square = nodes * y[-1], 1 + z[layer] ** 2
        mean = error * (one - z[layer]) - nodes * (outside - z[layer] * own)
        power = (error**2 + nodes) * (square - 2 * z[layer] * one)
        power -= 2 * error * nodes * (square * own - 2 * z[layer] * outside)
        if nodes > 1:
            pair, pair_outside = _parity(n, 2 * leaves), _parity(n, 2 * leaves + 1)
            power += nodes * (nodes - 1) * (square * pair - 2 * z[layer] * pair_outside)
        noise.append(math.sqrt(float(law @ (power * G**2)) - float(law @ (mean * G)) ** 2))
    return ChunkSignal(tuple(signal), tuple(noise))


def leading_signal(levels: Levels) -> tuple[float, float]:
    """Return the leading orders of two levels for the cosine: H‴ / (M n⁴) for layer 1 and F‴ / (M n³) for layer 2."""
    n, M = levels.n, levels.level_end[1]
    a = levels.width(1) / M
    sin, cos = math.sin(math.pi * a), math.cos(math.pi * a)
    upper = math.pi**4 * (1 - a) * (3 * math.pi * a * sin - (1 - a) ** 2 * cos)
    lower = math.pi**5 * (3 * math.pi * a * cos + 3 * (1 - a) ** 2 * sin + sin)
    return lower / (M * n**4), upper / (M * n**3)


def _parity(n: int, size: int) -> Tensor:
    """Return the mean of a parity of ``size`` bits over all inputs with u = 0 … n bits −1."""
    of_u = [
        sum((-1) ** i * math.comb(u, i) * math.comb(n - u, size - i) for i in range(size + 1)) for u in range(n + 1)
    ]
    return torch.tensor([float(Fraction(own, math.comb(n, size))) for own in of_u], dtype=torch.float64)
