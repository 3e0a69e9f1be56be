r"""Proposition 1, made concrete: without a chain of thought the gradient hardly depends on the secret.

| name     | paper           | meaning                                                             | where         |
| -------- | --------------- | ------------------------------------------------------------------- | ------------- |
| variance | –               | variance of the root's loss gradient over uniformly drawn secrets S | Proposition 1 |
| square   | ‖∇f_θ‖²         | mean over inputs of the squared gradient of the root's output       | Proposition 1 |

**Claim.** At every θ,
\[ \mathrm{Var}_S\, \nabla \tfrac12 E_b (p_S - f_\theta)^2 \le E_b \lVert\nabla f_\theta\rVert^2 / \tbinom nk. \]
**Proof.** The gradient is \(E[f \nabla f] - E[p_S \nabla f]\), and only the second part depends on S. The \(p_S\) are
orthonormal, so by Bessel \(\sum_S \lVert E[p_S \nabla f]\rVert^2 \le E\lVert\nabla f\rVert^2\); divide by the number of
secrets. ∎

In the proof of Kim and Suzuki, this step makes an oracle possible that hides the secret. Their conclusion about every
algorithm cannot be measured.

There are three ways to check. *Enumerated*, up to n = 12: all secrets, all inputs, at θ = 0 and at random weights.
*Sampled*, above n = 12: an unbiased estimate of the variance from drawn secrets, as the covariance of the gradients
on two independent batches. Its resolution is far coarser than \(1/\binom nk\), so it can refute the claim but not
confirm it. *By symmetry*, above n = 12, at θ = 0, where training without a chain begins: exact for any n.

**By symmetry.** At θ = 0 attention is uniform, so f depends only on the number u of −1 among the bits. Its gradient
by the weight of an input key j depends on u and b_j, as \(\alpha(u) + \beta(u) b_j\); its gradient by the weight of
a node depends on u. Averaged over all inputs with the same u, a parity of a bits is
\(\rho_a(u) = K_a(u)/\binom na\), with Krawtchouk's polynomial
\(K_a(u) = \sum_i (-1)^i \binom ui \binom{n-u}{a-i}\). Now \(p_S b_j\) is a parity of k − 1 bits for j in S and of
k + 1 bits for other j. So \(E[p_S\, \partial f]\) has a part \(E[\alpha\rho_k]\) that is the same for every S, and a
part \(E[\beta\rho_{k-1}]\) or \(E[\beta\rho_{k+1}]\), the former with probability q = k/n. The variance is
\(\sum n\,q(1-q)\,(E[\beta\rho_{k-1}] - E[\beta\rho_{k+1}])^2\) over layers and columns. Since
\(E[\rho_a^2] = 1/\binom na\), rounding in float64 adds at most about 10^−32 of the bound, at any n.
"""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from internalize.certificate import Finding, statement
from internalize.parity.certificates.world import World
from internalize.parity.task.data import add_trace
from internalize.parity.task.tree import ParityTree

_SECRETS, _BATCH, _SQUARES = 16, 500, 32


@statement("Proposition 1", "without a chain the gradient's variance over secrets is at most E‖∇f‖²/C(n,k)")
def barrier(world: World) -> Finding:
    """Check the claim above. Measured: the variance at the θ closest to its bound; above n = 12, at θ = 0."""
    generic = world.generic(1.0)
    zero = [torch.zeros_like(w) for w in generic]
    look = _enumerated if world.exhaustive else _sampled
    found = [look(world, [w.clone().requires_grad_() for w in W]) for W in (zero, generic, world.full())]
    worst = max(found, key=lambda finding: (finding.measured or 0.0) / (finding.bound or 1.0))
    if world.exhaustive or worst.verdict == "violated":
        return worst
    exact = _by_symmetry(world, [w.requires_grad_() for w in zero])
    return worst if exact is None else replace(exact, reason=f"exact at θ = 0; with other weights {worst.reason}")


def _enumerated(world: World, W: list[Tensor]) -> Finding:
    n, k = world.tree.n, world.tree.k
    bits = world.test_bits
    trees = [ParityTree(n, secret) for secret in itertools.combinations(range(n), k)]
    found, square = _gradients(world, W, bits, trees, count=len(bits))
    variance = float((found - found.mean(dim=0)).square().sum(dim=1).mean())
    reason = f"all {len(trees)} secrets and all {len(bits)} inputs"
    return Finding(variance, square / math.comb(n, k) * (1 + 1e-9), reason)


def _sampled(world: World, W: list[Tensor]) -> Finding:
    n, k = world.tree.n, world.tree.k
    trees = [ParityTree.draw(n, k, (world.seed + number) % 2**63) for number in range(_SECRETS)]
    halves: list[Tensor] = []
    squares: list[float] = []
    for half in range(2):
        bits = world.draw(half * _BATCH, _BATCH, "validation")
        found, square = _gradients(world, W, bits, trees, count=_SQUARES)
        halves.append(found - found.mean(dim=0))
        squares.append(square)
    products = (halves[0] * halves[1]).sum(dim=1) * _SECRETS / (_SECRETS - 1)
    variance, resolved = float(products.mean()), 5 * float(products.std()) / math.sqrt(_SECRETS)
    exact = sum(squares) / 2 / math.comb(n, k)
    return Finding(
        max(variance, 0.0),
        exact + resolved,
        f"sampled: the bound is {exact:.3g}, and {_SECRETS} secrets on 2 × {_BATCH} inputs resolve {resolved:.3g}",
        vacuous=resolved > exact,
    )


def _by_symmetry(world: World, W: list[Tensor]) -> Finding | None:
    """Return the exact variance and bound at θ = 0; None if a broken model is not symmetric in the bits there."""
    n, k = world.tree.n, world.tree.k

    def gradient(minus: Tensor) -> list[Tensor]:
        bits = torch.ones(1, n, dtype=torch.float64).index_fill(1, minus, -1.0)
        return _columns(world, world.output(world.inference_input(bits), world.levels.L, W)[0, -1], W)

    betas: list[Tensor] = []
    squares: list[float] = []
    for u in range(n + 1):
        found = gradient(torch.arange(u))
        squares.append(sum(float(g.square().sum()) for g in found))
        # Key 0 is −1 except for u = 0, and key n − 1 is +1 except for u = n. At these u, β does not matter.
        beta = torch.cat([(g[n - 1] - g[0]) / 2 for g in found])
        betas.append(beta if 0 < u < n else torch.zeros_like(beta))
    half = n // 2
    for first, last in zip(gradient(torch.arange(half)), gradient(torch.arange(half) + n - half), strict=True):
        mirrored = torch.cat([first[:n].flip(0), first[n:]])
        if not torch.allclose(last, mirrored, rtol=1e-9, atol=1e-15):
            return None
    weights = [Fraction(math.comb(n, u), 2**n) for u in range(n + 1)]
    apart = [float(p * (_parity(n, k - 1, u) - _parity(n, k + 1, u))) for u, p in enumerate(weights)]
    difference = torch.tensor(apart, dtype=torch.float64) @ torch.stack(betas)
    variance = k * (1 - k / n) * float(difference.square().sum())
    square = sum(float(p) * s for p, s in zip(weights, squares, strict=True))
    return Finding(variance, square / math.comb(n, k) * (1 + 1e-9))


def _parity(n: int, size: int, minus: int) -> Fraction:
    """Return ρ, the mean of a parity of ``size`` bits over the inputs of n bits of which ``minus`` are −1."""
    if size > n:
        return Fraction(0)  # k = n: no bit is outside the secret set
    total = sum((-1) ** i * math.comb(minus, i) * math.comb(n - minus, size - i) for i in range(size + 1))
    return Fraction(total, math.comb(n, size))


def _gradients(
    world: World, W: list[Tensor], bits: Tensor, trees: list[ParityTree], count: int
) -> tuple[Tensor, float]:
    """Return the gradient of the root's loss for each secret, and E‖∇f‖² over the first ``count`` inputs.

    The output does not depend on the secret, so the gradients of its root are computed once, input by input. If
    ``count`` covers all inputs, a loss that reads only the root then costs one product per secret. Any other costs
    a backward pass.
    """
    D = world.inference_input(bits)
    output = world.output(D, world.levels.L, W)
    rows = torch.stack([_flat(world, world.output(D[i : i + 1], world.levels.L, W)[0, -1], W) for i in range(count)])
    found: list[Tensor] = []
    for tree in trees:
        leaf = output.detach().requires_grad_()
        (pull,) = torch.autograd.grad(world.root_loss(leaf, add_trace(tree, bits)), leaf)
        alone = count == len(bits) and not bool(pull[:, :-1].any())
        found.append(pull[:, -1] @ rows if alone else _flat(world, output, W, pull))
    return torch.stack(found), float(rows.square().sum(dim=1).mean())


def _columns(world: World, value: Tensor, W: list[Tensor], pull: Tensor | None = None) -> list[Tensor]:
    """Return the gradient of ``value`` (of its product with ``pull``) in the columns that each layer writes.

    Bessel's inequality holds for any part of the weights, so the claim does too. The other columns are never read.
    """
    found = torch.autograd.grad(value, W, pull, retain_graph=True)
    return [g[:, world.levels.span(layer + 1)].clone() for layer, g in enumerate(found)]


def _flat(world: World, value: Tensor, W: list[Tensor], pull: Tensor | None = None) -> Tensor:
    """Return the same gradient as one vector."""
    return torch.cat([g.flatten() for g in _columns(world, value, W, pull)])
