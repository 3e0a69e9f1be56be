"""recovery.py: rounding, exact recovery up to a shift, and the adversary's best move."""

import pytest
import torch
from torch import Tensor

from internalize.parity import ParityTree
from internalize.parity.algorithm1.recovery import (
    quantise,
    recovered_columns,
    recovered_weights,
    stage_record,
    worst_push,
)

TREE = ParityTree(6, (0, 1, 2, 3))
PAIRS = TREE.layer_children(0)


def test_recovery_is_up_to_a_shift():
    W, last = recovered_weights(TREE, "level", 5.0)
    assert recovered_columns(W, PAIRS, 5.0).tolist() == [True, True]
    assert recovered_columns(last, TREE.layer_children(1), 5.0).tolist() == [True]
    assert W.unique().tolist() == last.unique().tolist() == [0.0, 5.0]
    W[:, 1] -= 7
    W[5, 1] -= 20
    assert recovered_columns(W, PAIRS, 5.0).tolist() == [True, True]
    W[0, 0] += 1  # the tie is broken
    W[4, 1] += 1  # one key is only 4 lower
    assert recovered_columns(W, PAIRS, 5.0).tolist() == [False, False]


def test_a_key_out_of_sight_does_not_count():
    W = recovered_weights(TREE, "level", 5.0)[0]
    W[5, 0] = -torch.inf
    record = stage_record(1, W, PAIRS, 5.0, 5.0, idle=False)
    assert record.recovered
    assert (record.signal_min, record.noise_max, record.margin) == (1.0, 0.0, 0.5)


def test_quantiser():
    x = torch.tensor([[-1.5, -0.5, 0.5, 0.49, 1.5, 2.5]]).double()
    assert quantise(x, 1.0).tolist() == [[-2, 0, 0, 0, 2, 2]]
    assert quantise(3 * x, 3.0).tolist() == [[-6, 0, 0, 0, 6, 6]]
    assert torch.equal(quantise(x, 0.0), x)
    assert quantise(x, 0.0).data_ptr() != x.data_ptr()


@pytest.mark.parametrize(("push", "place"), [(1.0, (4, 0)), (torch.tensor([1.0, 3.0]), (4, 1))])
def test_the_adversary_pushes_where_it_breaks_most(push: float | Tensor, place: tuple[int, int]):
    """One entry, in its column's worst direction; with a larger reach in one column, there."""
    W = recovered_weights(TREE, "level", 5.0)[0]
    W[4] = torch.tensor([1.9, 1.0])
    moved = worst_push(W, PAIRS, 5.0, 5.0, push)
    assert moved.nonzero().tolist() == [list(place)]
    assert float(moved[place]) == float(torch.as_tensor(push).expand(2)[place[1]])
