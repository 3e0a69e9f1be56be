"""Every tensor of the arithmetic is on the device that was chosen.

There is no GPU here. Torch's device `meta` has shapes and no numbers. Under `OneDevice` no operation takes tensors
of two devices, as on a GPU. Code that runs under it needs nothing of the CPU, except what it copies to the device
explicitly.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from internalize.parity import COSINE, ParityTree
from internalize.parity.adamw.ensemble import Training
from internalize.parity.algorithm1 import counting as engine
from internalize.parity.algorithm1.counting import gradient_to_round
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.streaming import Samples, gradient_at_zero, true_values
from internalize.parity.model.metrics import child_attention, infer
from internalize.parity.model.sparse import SparseModel
from internalize.parity.options import TrainOptions

TREE = ParityTree.draw(8, 4, 0)
META = torch.empty(0, device="meta")


class OneDevice(TorchDispatchMode):
    """A mode that refuses operations on tensors of two devices, but allows copies and CPU numbers, as a GPU does."""

    copies = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = tree_leaves((args, kwargs))
        devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim}
        assert len(devices) <= 1 or func in self.copies, f"{func} on {devices}"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    with OneDevice():
        yield


def test_two_devices_are_refused():
    """The mode refuses operations on two devices; the tests below rely on it."""
    here, there = torch.ones(3, 3), torch.ones(3, 3, device="meta")
    for operation in (torch.add, torch.matmul, torch.minimum):
        with pytest.raises(AssertionError, match=r"aten\..* on "):
            operation(here, there)
    assert (there.copy_(here) * torch.tensor(2.0)).device.type == "meta"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"curriculum": "cot"},
        {"mask": "causal"},
        {"gates": "learned"},
        {"gates": "input", "output": "streams", "value": "learned", "link": "mlp"},
    ],
    ids=str,
)
def test_training(changes: dict[str, Any]):
    training = Training(TrainOptions(n=8, k=4, batch=10, eval_samples=10, **changes), [0, 1], "meta")
    training.optimizer = torch.optim.AdamW(training._groups(), foreach=False)  # fused needs numbers
    for stage in range(len(training.stages)):
        training.stage = stage
        training.update()
    assert training.done == len(training.stages)
    sequence = training._validation
    assert infer(training.model, sequence[..., :8]).device.type == "meta"
    assert child_attention(training.model, training.trees).device.type == "meta"
    for parameter in training.parameters.values():
        moments = [tensor for tensor in training.optimizer.state.get(parameter, {}).values() if tensor.ndim]
        devices = {tensor.device.type for tensor in (parameter, parameter.grad, *moments) if tensor is not None}
        assert devices == {"meta"}


def test_inference():
    for model in (
        SparseModel(TREE.levels, recovered_weights(TREE, "level", 9.0), COSINE, "direct", META),
        SparseModel(TREE.levels, [torch.randn(11, 3)], COSINE, "level", META),
    ):
        answers = model(torch.ones(5, 8), chunk=2)
        assert (answers.device.type, answers.shape) == ("meta", (5,))


def test_solve_counts_on_the_cpu_alone(monkeypatch: pytest.MonkeyPatch, forbid: Callable[..., None]):
    """Another device takes the float path, and its states stay there until the sum of a chunk is copied to the CPU."""

    home: list[str] = []

    def went_home(tensor: Tensor) -> Tensor:
        home.append(tensor.device.type)
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")

    forbid(engine, "counted_gradient")
    monkeypatch.setattr(Tensor, "cpu", went_home)
    samples = Samples(TREE, 0, 0, 100, device="meta", chunk=40)
    W = recovered_weights(TREE, "level", 20.0)
    for stage in range(2):
        found = gradient_to_round(samples, W[:stage], [0.0] * stage, COSINE, half=1.0)
        assert (found.device.type, found.shape) == ("cpu", W[stage].shape)
    assert home == ["meta"] * 6
    assert gradient_at_zero(replace(samples, device="cpu"), W[:1], COSINE).shape == W[1].shape


def test_samples_arrive_on_the_device():
    chunks = list(Samples(TREE, 0, 0, 100, device="meta", chunk=40).chunks())
    assert [bits.device.type for bits in chunks] == ["meta"] * 3
    assert {true_values(TREE, bits, 2).device.type for bits in chunks} == {"meta"}
