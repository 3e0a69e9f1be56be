r"""The link function of sums modulo an odd p: it maps the mean of two roots of unity to their product.

| name     | meaning                                                                                       |
| -------- | --------------------------------------------------------------------------------------------- |
| p        | the modulus; a value x of 0 … p − 1 is encoded as \(\omega^x\), with \(\omega = e^{2\pi i/p}\) |
| s, v     | mean \((a + b)/2\) and product ab of a pair of roots                                           |
| weight   | \(a_i \prod_{j \ne i} |z - s_j|^2\), which is 0 at all means but its own                        |

A sum modulo p is a product of roots of unity. For odd p the mean determines the product: it is
\(\omega^{(x+y)/2} \cos(\pi(x-y)/p)\), the cosine is never 0, and its absolute value tells the pairs apart. (For even p the
mean of opposite roots is 0, whatever their product is.) The link is the mean of all products, weighted with the inverse
squared distance to their means,
\[ \varphi(z) = \sum_i a_i v_i |z - s_i|^{-2} \Big/ \sum_i a_i |z - s_i|^{-2} , \]
or, without poles, with the weights of the table. It takes the place of Definition 2:

- φ(s) = v, because at \(s_i\) all other weights are 0, and the Jacobian is 0 there: every other weight is of order
  \(|z - s_i|^2\).
- |φ| ≤ 1 on the unit disc, because φ is a mean of roots of unity.
- \(\varphi(\omega z) = \omega^2 \varphi(z)\), because a rotation of both roots permutes the pairs, so φ(0) = 0. Terms
  \(z^a \bar z^b\) of its expansion have \(a - b \equiv 2\) modulo p. The only one of degree 1 is \(\bar z\) at p = 3. It
  would carry noise and no signal, so there the pairs of equal roots, at |s| = 1, have the weight 8 that removes it: with
  \(|z-s|^{-2} = |s|^{-2}(1 + 2\operatorname{Re}(z\bar s)/|s|^2 + \dots)\) its coefficient is
  \(\sum_i a_i v_i s_i |s_i|^{-4}\), where vs is 1 for 3 pairs at |s| = 1, and −½ for 3 pairs at |s| = ½.
- The leading term is \(c z^2\) with \(c = \sum_i a_i v_i \bar s_i^2 |s_i|^{-6} \big/ \sum_i a_i |s_i|^{-2} > 0\), because
  \(v \bar s^2 = |s|^2\).

**Signal and samples.** Near z = 0 the one-sample gradient of \(w_{j,m}\) is \(-\operatorname{Re}(\bar b_m\, 2cz\, b_j)/M\). For
a child, \(\bar b_m b_j\) is the conjugate of its sibling, whose mean product with z is 1/M: the signal is \(2c/M^2\), as for
parity, and so is the paper's rate. The noise is the real part of a random phase times \(2c|z|/M\), with variance
\(\tfrac12 \cdot 4c^2/M^3\). Parity's is four times as large, \(2(2c)^2/M^3\), since there the phases are ±1 and φ(0) = −1 adds
another part. So \(B \approx 4 M \ln(MN)\), a quarter of parity's.
"""

from functools import cache
from itertools import accumulate
from operator import mul
from typing import Final

import torch
from torch import Tensor

from internalize.parity.model.link import Link
from internalize.parity.task.data import roots_of_unity

_EQUAL_AT_3: Final = 8.0


@cache
def residue_link(p: int) -> Link:
    """Return the link of sums modulo an odd p."""
    root = roots_of_unity(p)
    pairs = [(x, y) for x in range(p) for y in range(x + 1)]
    means = torch.stack([(root[x] + root[y]) / 2 for x, y in pairs])
    products = torch.stack([root[(x + y) % p] for x, y in pairs])
    each_weight = [_EQUAL_AT_3 if p == 3 and x == y else 1.0 for x, y in pairs]
    weights = torch.tensor(each_weight, dtype=torch.float64)

    def phi(z: Tensor) -> Tensor:
        squares = [_square(z - s) for s in means.to(z)]
        one = torch.ones_like(squares[0])
        before = accumulate(squares[:-1], mul, initial=one)
        after = list(accumulate(squares[:0:-1], mul, initial=one))[::-1]
        shares = [weight * a * b for weight, a, b in zip(each_weight, before, after, strict=True)]
        total = torch.stack([share * v for share, v in zip(shares, products.to(z), strict=True)]).sum(dim=0)
        return total / torch.stack(shares).sum(dim=0)

    def slopes(z: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∂φ/∂z and ∂φ/∂z̄, from the gradients ∂/∂x + i∂/∂y of the real and the imaginary part."""
        with torch.enable_grad():
            at = z.detach().requires_grad_()
            value = phi(at)
            (real,) = torch.autograd.grad(value.real.sum(), at, retain_graph=True)
            (imaginary,) = torch.autograd.grad(value.imag.sum(), at)
        return ((real - 1j * imaginary) / 2).conj().resolve_conj(), (real + 1j * imaginary) / 2

    size = means.abs()
    c = float((weights * (products * means.conj() ** 2).real * size**-6).sum() / (weights * size**-2).sum())
    return Link("residue", phi, lambda z: slopes(z)[0], c, modulus=p, slopes=slopes)


def _square(z: Tensor) -> Tensor:
    return z.real.square() + z.imag.square()
