"""cluster.py: a Ray cluster of two nodes gives the rows of local processes. Skipped where Ray is not installed."""

import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from internalize.errors import InputError
from internalize.parallel import cluster
from internalize.parallel.interrupt import Interrupted
from internalize.parallel.runner import Runner
from internalize.parity.experiments.grid import Kind, parse_grid
from internalize.parity.experiments.phase import read_cells
from internalize.parity.experiments.sweep import sweep
from tests.asking import refused
from tests.test_sweep import GRID, TRAINED, rows, run


@pytest.fixture(scope="module")
def address() -> Any:
    """Start two nodes on this machine, with one CPU each."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        nodes.add_node(num_cpus=1)
    yield nodes.address
    nodes.shutdown()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "grid"), [("solve", GRID), pytest.param("train", [*TRAINED, "lr=0.1,1e38"], marks=pytest.mark.slow)]
)
def test_same_rows_as_local_processes(tmp_path: Path, address: str, kind: Kind, grid: list[str]):
    here = run(tmp_path / "here", grid, range(4), kind)
    there = run(tmp_path / "there", grid, range(4), kind, runner=Runner(None, "ray", address, 3))
    assert (here["done"], here["failed"]) == (there["done"], there["failed"])
    assert rows(tmp_path / "here") == rows(tmp_path / "there")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_interrupted_and_resumed(tmp_path: Path, address: str):
    def interrupt(done: float, *_: object) -> None:
        if done == 3:
            signal.raise_signal(signal.SIGTERM)

    on_ray = Runner(1, "ray", address, 3)
    with pytest.raises(Interrupted, match="--resume continues"):
        run(tmp_path, GRID, range(3), runner=on_ray, report=interrupt)
    assert 3 <= read_cells(tmp_path).height < 12
    assert sweep(parse_grid("solve", GRID).settings, range(3), tmp_path, on_ray, resume=True)["done"] == 12


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'internalize\[ray\]'"):
        cluster.load_ray()
    refused(f"sweep solve --on ray --out {tmp_path / 'new'}", "needs Ray, which is not installed")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:one", "127.0.0.1:99999"])
def test_no_cluster_at_the_address(tmp_path: Path, address: str):
    pytest.importorskip("ray")
    words = f"address={address!r} is not a Ray cluster that can be reached"
    refused(f"sweep solve --on ray --address {address} --out {tmp_path / 'new'}", words)
    assert not (tmp_path / "new").exists()


def test_a_port_that_is_not_ray_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Something accepts the connection and never answers. Ray itself would wait for minutes."""
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "_ANSWER_SECONDS", 4.0)
    with socket.create_server(("", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = f"address={address!r} is not a Ray cluster that can be reached: no answer in 4 s"
        refused(f"sweep solve --backend ray --address {address} --out {tmp_path / 'new'}", words)
    assert not (tmp_path / "new").exists()
