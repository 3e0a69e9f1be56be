r"""The link function φ, which replaces an MLP: it maps the mean of two bits to their product.

| name       | paper | meaning                                           | where        |
| ---------- | ----- | ------------------------------------------------- | ------------ |
| phi, slope | φ, φ′ | the function and its derivative on [−1, 1]        | Definition 2 |
| c          | c     | curvature at 0: \(\phi(t) = -1 + c t^2 + O(t^4)\) | Definition 2 |
| arity      | 2     | r, the number of bits that φ multiplies           | –            |

Two link functions are built in. :func:`add_link` adds another after checking it against the definition.

**More children.** With r children the mean of u values −1 and r − u values 1 is \(t = 1 - 2u/r\), and their product is
\((-1)^u\). \(\varphi_r(t) = \cos(\pi r(1 - t)/2)\) has this value there, and slope 0, as Definition 2 asks for
r = 2, where \(\varphi_2\) is the cosine link. It is even for even r and odd for odd r. The signal of a child
(``population.py``) picks the r-th derivative at 0, so c is \(\varphi^{(r)}(0)/r!\), here \((\pi r/2)^r/r!\); at r = 2
this is the curvature.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from internalize.errors import InputError


@dataclass(frozen=True)
class Link:
    """A link function, its derivative and its curvature at 0."""

    name: str
    phi: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    c: float
    arity: int = 2
    modulus: int = 2
    """2 if φ maps real numbers; p if it maps complex numbers, for sums modulo p (``residue_link.py``)."""
    slopes: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """∂φ/∂z and ∂φ/∂z̄ of a φ of complex numbers."""

    def __call__(self, t: Tensor) -> Tensor:
        """Return φ(t) of every entry."""
        return self.phi(t)

    def pulled(self, error: Tensor, z: Tensor) -> Tensor:
        r"""Return H with \(d\,\tfrac12|\varphi - b|^2 = \operatorname{Re}(H\,dz)\), for errors φ(z) − b.

        It is (φ − b) φ′(z) if φ is real.
        """
        if self.slopes is None:
            return error * self.slope(z)
        of_z, of_conjugate = self.slopes(z)
        return error.conj() * of_z + error * of_conjugate.conj()


COSINE = Link(
    name="cosine",
    phi=lambda t: -torch.cos(torch.pi * t),
    slope=lambda t: torch.pi * torch.sin(torch.pi * t),
    c=math.pi**2 / 2,
)
"""φ(t) = −cos(πt): the paper's experiment (appendix, "Link function")."""

QUARTIC = Link(
    name="quartic",
    phi=lambda t: -1 + 4 * t**2 - 2 * t**4,
    slope=lambda t: 8 * t - 8 * t**3,
    c=4.0,
)
"""φ(t) = −1 + 4t² − 2t⁴: the polynomial of least degree that meets Definition 2."""

_links = {link.name: link for link in (COSINE, QUARTIC)}


@cache
def cosine(arity: int) -> Link:
    """Return φ_r of nodes with ``arity`` children."""
    if arity == COSINE.arity:
        return COSINE
    half = torch.pi * arity / 2
    return Link(
        name="cosine",
        phi=lambda t: torch.cos(half * (1 - t)),
        slope=lambda t: half * torch.sin(half * (1 - t)),
        c=half**arity / math.factorial(arity),
        arity=arity,
    )


def get_link(name: str, arity: int = 2, modulus: int = 2) -> Link:
    """Return the link function called ``name``, for nodes with ``arity`` children and values modulo ``modulus``."""
    if modulus != 2:
        from internalize.parity.model.residue_link import residue_link

        if name != COSINE.name:
            raise InputError(f"link={name!r} is for values ±1; sums modulo {modulus} have their own link")
        return residue_link(modulus)
    if arity != COSINE.arity:
        if name != "cosine":
            raise InputError(f"link={name!r} is for nodes with 2 children; with arity={arity} only cosine is defined")
        return cosine(arity)
    if name not in _links:
        raise InputError(f"link {name!r} is not one of {', '.join(sorted(_links))}; add others with add_link")
    return _links[name]


def add_link(link: Link) -> Link:
    """Make a link available by name, after checking that it meets Definition 2."""
    faults = link_faults(link)
    if faults:
        raise InputError(f"{link.name!r} is not a link function (Definition 2): {'; '.join(faults)}")
    if _links.get(link.name, link) != link:
        raise InputError(f"a link named {link.name!r} exists; choose another name")
    _links[link.name] = link
    return link


def link_faults(link: Link) -> list[str]:
    """Return the conditions of Definition 2 that ``link`` breaks, each in words with the value found.

    They are checked in float64 on a grid of [−1, 1], and the curvature by a small step from 0. For more children than 2 they
    are those of "More children" above, and c is not checked.
    """
    t = torch.linspace(-1, 1, 4001, dtype=torch.float64, requires_grad=True)
    phi = link.phi(t)
    (autograd,) = torch.autograd.grad(phi.sum(), t)
    phi, slope = phi.detach(), link.slope(t.detach())
    h, tolerance = 1e-3, 1e-9
    curvature = float((link.phi(torch.tensor(h, dtype=torch.float64)) + 1) / h**2)

    if link.arity != 2:
        return _faults_of_many(link, t.detach(), float((slope - autograd).abs().max()))
    found = {
        "φ(0) = −1": (float(phi[2000]), -1.0, tolerance),
        "φ(1) = 1": (float(phi[-1]), 1.0, tolerance),
        "φ(−t) = φ(t), largest difference": (float((phi - phi.flip(0)).abs().max()), 0.0, tolerance),
        "φ′(0) = 0": (float(slope[2000]), 0.0, tolerance),
        "φ′(1) = 0": (float(slope[-1]), 0.0, tolerance),
        "φ′ is the derivative, largest difference": (float((slope - autograd).abs().max()), 0.0, tolerance),
        "|φ| ≤ 1, largest excess": (max(float(phi.abs().max()) - 1, 0.0), 0.0, tolerance),
        "c is the curvature at 0": (curvature, link.c, 1e-4 * max(1.0, abs(link.c))),
    }
    return _broken(found, [] if link.c > 0 else [f"c > 0: found {link.c:.6g}"])


def _faults_of_many(link: Link, t: Tensor, difference: float) -> list[str]:
    r, tolerance = link.arity, 1e-9
    minus = torch.arange(r + 1, dtype=torch.float64)
    means, products = 1 - 2 * minus / r, 1 - 2 * (minus % 2)
    found = {
        "φ is the product at the mean, largest difference": float((link(means) - products).abs().max()),
        "φ′ = 0 at the means, largest": float(link.slope(means).abs().max()),
        "φ(−t) = (−1)^r φ(t), largest difference": float((link(-t) - (-1) ** r * link(t)).abs().max()),
        "φ′ is the derivative, largest difference": difference,
        "|φ| ≤ 1, largest excess": max(float(link(t).abs().max()) - 1, 0.0),
    }
    return _broken({condition: (value, 0.0, tolerance) for condition, value in found.items()}, [])


def _broken(found: dict[str, tuple[float, float, float]], more: list[str]) -> list[str]:
    faults = [
        f"{condition}: found {value:.6g}"
        for condition, (value, wanted, slack) in found.items()
        if not abs(value - wanted) <= slack  # so that NaN is a fault
    ]
    return [*faults, *more]
