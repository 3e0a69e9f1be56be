r"""Bounds on how far a weight can move a state, and on the whole gradient, which the barrier assumes.

| name        | paper          | meaning                                            | where             |
| ----------- | -------------- | -------------------------------------------------- | ----------------- |
| sensitivity | ξ^(ℓ)_{j,m,ℓ'} | largest derivative of a state by one weight        | Lemma "Per-Node…" |
| gradient    | ‖∇f^(t)‖₂      | norm of the gradient of all outputs by all weights | Lemma "Bounded…"  |
| A           | L_φ            | sup of φ′ in absolute value                        | Lemma "Per-Node…" |
| g           | g              | log2 A + 1                                         | Lemma "Bounded…"  |

Both statements are about all weights and all inputs. They are checked with three sets of weights: zero, the
world's, random.

**The constant of "Bounded Gradient".** Of the \(n_{t+1}\) outputs that are not copied, n are bits and have no gradient.
Keeping the sums of the proof gives
\[ \lVert\nabla f^{(t)}\rVert^2 \le (n_{t+1} - n) \sum_{\ell'=1}^{t} 4 \frac{k}{2^{\ell'}} A^{2(t-\ell'+1)}. \]
With \(n_{t+1} - n < k\) and a geometric series of ratio \(1/(2A^2)\) that is at most
\(\frac{4A^2}{2A^2-1} k^2 A^{2L} = \frac{4A^2}{2A^2-1} k^{2g}\), because \(A^{2L} = k^{2\log_2 A}\). So the lemma's O is
\(\sqrt{4A^2/(2A^2-1)}\), 1.45 for the cosine. The certificate uses the sum.
"""

import math

import torch
from torch import Tensor

from internalize.certificate import Finding, statement
from internalize.parity.certificates.architecture import gradients, positions
from internalize.parity.certificates.world import World
from internalize.parity.theory.freezing import steepness

_SAMPLES = 2
_ROWS, _PROBES = 64, 16
"""Most outputs whose gradients are computed one by one; number of random directions for more outputs."""


@statement(
    'Lemma "Per-Node Sensitivity"', "a weight moves a state by at most 2 L_φ^(ℓ−ℓ'+1) σ_j; measured relative to that"
)
def sensitivity(world: World) -> Finding:
    r"""Check Lemma "Per-Node Sensitivity": \(\xi^{(\ell)}_{j,m,\ell'} \le 2 A^{\ell-\ell'+1} \sigma_j(w^{(\ell')}_m)\).

    Measured: the largest ratio of a derivative to its bound, over ℓ' ≤ ℓ, all j, all m of level ℓ' + 1 and
    positions β of every level up to ℓ + 1.
    """
    levels, A, worst = world.levels, steepness(world.link), 0.0
    for W in _weights(world):
        attention = [world.attention(w) for w in W]
        X = world.streams(world.inference_input(world.some_bits(_SAMPLES)), W)
        for beta in positions(world):
            for layer in range(max(levels.level_of(beta), 1), levels.L + 1):
                for sample in range(_SAMPLES):
                    found = gradients(X[layer][layer][sample, beta], W)
                    for below in range(layer):
                        nodes = levels.span(below + 1)
                        bound = 2 * A ** (layer - below) * attention[below][:, nodes].detach()
                        moved = found[below][:, nodes].abs()
                        # Where the bound is 0, the derivative must be 0 too.
                        ratio = torch.where(moved == 0, 0.0, moved / bound)
                        worst = max(worst, float(ratio.max()))
    return Finding(worst, 1.0)


@statement('Lemma "Bounded Gradient"', "the gradient of the output is O(n^g), g = log2 L_φ + 1")
def bounded_gradient(world: World) -> Finding:
    """Check Lemma "Bounded Gradient" with the constant above. Measured: the norm at the stage closest to its bound."""
    levels, A = world.levels, steepness(world.link)
    worst = (0.0, 0.0, 1.0)
    for W in _weights(world):
        X = world.streams(world.inference_input(world.some_bits(_SAMPLES)), W)[-1]
        for stage in range(1, levels.L + 1):
            output = torch.einsum("i,ibt->bt", world.readout[stage], X)
            written = range(levels.n, levels.level_end[stage])
            series = sum(4 * levels.width(layer) * A ** (2 * (stage - layer + 1)) for layer in range(1, stage + 1))
            bound = math.sqrt(len(written) * series)
            for sample in range(_SAMPLES):
                norm = _norm(output[sample, written.start : written.stop], W)
                worst = max(worst, (norm / bound, norm, bound))
    exponent = math.log2(A) + 1
    constant = math.sqrt(4 * A**2 / (2 * A**2 - 1)) if 2 * A**2 > 1 else math.inf
    return Finding(
        worst[1], worst[2], f"n^g = {levels.n**exponent:.3g} with g = {exponent:.3f}, constant {constant:.3f}"
    )


def _norm(outputs: Tensor, W: list[Tensor]) -> float:
    r"""Return the norm of the outputs' gradient, row by row if there are few outputs, otherwise estimated.

    For random signs v, \(E \lVert J^\top v \rVert^2 = \lVert J \rVert^2\). A few v give the norm to some tens of
    percent, and the bound is farther off than that.
    """
    pulls = torch.eye(len(outputs), dtype=outputs.dtype)
    if len(outputs) > _ROWS:
        generator = torch.Generator().manual_seed(len(outputs))
        signs = torch.randint(0, 2, (_PROBES, len(outputs)), generator=generator)
        pulls = (2.0 * signs - 1).to(outputs.dtype) * math.sqrt(1 / _PROBES)
    return math.sqrt(sum(float(g.square().sum()) for pull in pulls for g in gradients(pull @ outputs, W)))


def _weights(world: World) -> list[list[Tensor]]:
    """Return zero, the world's own and random weights, ready for autograd."""
    generic = world.generic(1.0)
    sets = ([torch.zeros_like(w) for w in generic], world.full(), generic)
    return [[w.clone().requires_grad_() for w in W] for W in sets]
