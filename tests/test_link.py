"""link.py: the built-in links meet Definition 2, and every way to break it is noticed."""

import math
from dataclasses import replace

import pytest
import torch

from internalize import InputError
from internalize.parity import COSINE, QUARTIC, LevelTransformer, Link, add_link, get_link, link_faults


@pytest.mark.parametrize("link", [COSINE, QUARTIC])
def test_definition(link: Link):
    assert link_faults(link) == []
    assert get_link(link.name) is link
    a, b = torch.tensor([1.0, 1, -1, -1]), torch.tensor([1.0, -1, 1, -1])
    torch.testing.assert_close(link((a + b) / 2), a * b)


def test_constants():
    assert COSINE.c == math.pi**2 / 2
    assert QUARTIC.c == 4


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"phi": lambda t: torch.cos(torch.pi * t)}, "φ(0) = −1"),
        ({"phi": lambda t: -torch.cos(torch.pi * t / 2)}, "φ(1) = 1"),
        ({"phi": lambda t: -torch.cos(torch.pi * t) + 0.1 * torch.sin(torch.pi * t)}, "φ(−t) = φ(t)"),
        ({"slope": lambda t: torch.pi * torch.sin(torch.pi * t) + 0.01}, "φ′(0) = 0"),
        ({"phi": lambda t: 2 * t**2 - 1, "slope": lambda t: 4 * t, "c": 2.0}, "φ′(1) = 0"),
        ({"slope": lambda t: 3 * torch.sin(torch.pi * t)}, "φ′ is the derivative"),
        ({"phi": lambda t: -torch.cos(3 * torch.pi * t) * (1 + torch.sin(torch.pi * t) ** 2)}, "|φ| ≤ 1"),
        ({"c": 4.0}, "c is the curvature"),
        ({"phi": lambda t: -1 + 2 * t**6, "slope": lambda t: 12 * t**5, "c": 0.0}, "c > 0"),
        ({"phi": lambda t: t * torch.nan}, "φ(0) = −1"),
    ],
)
def test_every_broken_condition_is_named(change: dict, fault: str):
    broken = replace(COSINE, name="broken", **change)
    assert any(f.startswith(fault) for f in link_faults(broken))
    with pytest.raises(InputError, match="not a link function"):
        add_link(broken)


def test_a_user_adds_one():
    """A link that is neither of ours: the cosine bent by a term that vanishes with its slope at 0 and ±1."""
    bent = Link(
        name="bent",
        phi=lambda t: -torch.cos(torch.pi * t) + 0.05 * torch.sin(torch.pi * t) ** 4,
        slope=lambda t: (
            torch.pi * torch.sin(torch.pi * t) + 0.2 * torch.pi * torch.sin(torch.pi * t) ** 3 * torch.cos(torch.pi * t)
        ),
        c=math.pi**2 / 2,
    )
    assert add_link(bent) is add_link(bent) is get_link("bent")
    assert LevelTransformer(4, 2, link=get_link("bent")).link is bent
    with pytest.raises(InputError, match="there is a link 'bent' already"):
        add_link(replace(bent, c=bent.c + 1e-9))
    with pytest.raises(InputError, match="link 'sine' is not one of"):
        get_link("sine")
