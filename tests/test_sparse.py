"""sparse.py: fixed weights in sparse form give what the dense models give, in one pass or by writing the chain."""

from pathlib import Path

import pytest
import torch

from internalize.errors import InputError
from internalize.parity import COSINE, CoTTransformer, LevelTransformer, ParityTree, add_trace, draw_bits, get_link
from internalize.parity.algorithm1.recovery import recovered_weights
from internalize.parity.algorithm1.solve_runs import solve_kept
from internalize.parity.model.latency import models_of
from internalize.parity.model.sparse import WAYS, SparseModel
from internalize.parity.model.transformer import set_weights
from internalize.parity.options import SolveOptions, TrainOptions
from internalize.storage.runs import Run
from tests.tiny import tiny_runs

TREE = ParityTree.draw(20, 16, seed=2)


@pytest.mark.parametrize("link", ["cosine", "quartic"])
@pytest.mark.parametrize(("K", "noise"), [(1.0, 0.0), (6.0, 0.0), (20.0, 0.0), (6.0, 0.05), (6.0, 0.5)])
def test_every_way_is_its_dense_model(K: float, noise: float, link: str):
    """In float64 they agree to rounding, with mass on every key and no, few or many exceptional keys."""
    phi, like = get_link(link), torch.empty(0, dtype=torch.float64)
    bits = draw_bits(20, 3, 0, 70, dtype=torch.float64)
    W, C = recovered_weights(TREE, "level", K), recovered_weights(TREE, "cot", K)
    generator = torch.Generator().manual_seed(1)
    for w in (*W, *C):
        w -= K * (torch.rand(w.shape, generator=generator, dtype=torch.float64) < noise)
    level = set_weights(LevelTransformer(20, 16, phi, dtype=torch.float64), W)
    cot = set_weights(CoTTransformer(20, 16, phi, dtype=torch.float64), C)
    with torch.no_grad():
        dense = {"direct": level.states(bits), "node": cot.generate(bits), "level": cot.generate(bits, "level")}
    sparse = [SparseModel(TREE.levels, C if by != "direct" else W, phi, by, like) for by in WAYS]
    assert [model.passes for model in sparse] == [15, 4, 1]
    assert any(columns.dense is None for _, columns in sparse[-1]._writes) is (noise < 0.5)
    for model in sparse:
        assert noise or all(columns.dense is None for _, columns in model._writes)
        torch.testing.assert_close(model.states(bits.T).T, dense[model.by], rtol=0, atol=1e-13)
        for chunk in (None, 1, 32):
            torch.testing.assert_close(model(bits, chunk), dense[model.by][:, -1], rtol=0, atol=1e-13)


def test_columns_may_have_different_numbers_of_exceptions():
    """Columns with none, one and six exceptions are sparse; seven are too many."""
    levels = ParityTree.draw(30, 8, 0).levels
    generator = torch.Generator().manual_seed(0)
    for counts, sparse in (([0, 1, 6, 2], True), ([0, 0, 0, 0], True), ([7, 0, 0, 0], False)):
        W = torch.zeros(30, 4, dtype=torch.float64)
        for column, count in enumerate(counts):
            rows = torch.randperm(30, generator=generator)[:count]
            W[rows, column] = torch.randn(count, generator=generator, dtype=torch.float64)
        bits = draw_bits(30, 0, 0, 9, dtype=torch.float64)
        model = SparseModel(levels, [W], COSINE, like=bits)
        assert (model._writes[0][1].dense is None) is sparse
        expected = COSINE(bits @ W.softmax(dim=0))
        torch.testing.assert_close(model.states(bits.T)[30:].T, expected, rtol=0, atol=1e-14)


def test_of_runs(tmp_path: Path):
    """The weights of a solved run are sparse and give the right answers."""
    for curriculum in ("log-icot", "cot"):
        options, run = SolveOptions(n=12, k=8, curriculum=curriculum), Run(tmp_path / curriculum)
        assert solve_kept(options, run).solved
        bits = draw_bits(12, 5, 0, 300, "test")
        model = SparseModel.of(run)
        answers = model(bits)
        truth = add_trace(ParityTree.draw(12, 8, 0), bits)[:, -1]
        assert answers.dtype == torch.float32
        torch.testing.assert_close(answers, truth, rtol=0, atol=1e-5)
        assert (model.by, model.passes) == (("direct", 1) if curriculum == "log-icot" else ("node", 7))
        assert all(columns.dense is None for _, columns in model._writes) or model.by == "node"
    assert SparseModel.of(Run(tmp_path / "cot"), "level").passes == 3
    with pytest.raises(InputError, match="by='direct': the model of .*cot writes its chain"):
        SparseModel.of(Run(tmp_path / "cot"), "direct")
    with pytest.raises(InputError, match="by='level': the model of .*log-icot is internalized"):
        SparseModel.of(Run(tmp_path / "log-icot"), "level")
    with pytest.raises(InputError, match=r"bits of shape \(4, 11\); the model expects samples × 12"):
        SparseModel.of(Run(tmp_path / "log-icot"))(torch.ones(4, 11))


def test_a_trained_model_is_dense(tmp_path: Path):
    (run,) = tiny_runs(tmp_path, TrainOptions(n=8, k=4, steps=3, batch=20, eval_samples=20), (0,))
    bits = draw_bits(8, 0, 0, 40, "test")
    (trained,) = models_of(run)
    with torch.no_grad():
        torch.testing.assert_close(SparseModel.of(run)(bits), trained(bits), rtol=0, atol=1e-6)
