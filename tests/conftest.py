"""Settings and fixtures of all tests: shapes are checked at run time, hypothesis has no deadline, torch has one thread."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch is imported: otherwise every command that a test starts would use all cores.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings
from jaxtyping import install_import_hook

# Before the first import of the package: in these modules every call checks the shape and dtype of its tensors.
TENSOR_MODULES = "backward cot gates literal loss mask metrics relaxed sparse transformer"
install_import_hook(
    ["internalize.parity.task.data", *(f"internalize.parity.model.{name}" for name in TENSOR_MODULES.split())],
    "beartype.beartype",
)

import pytest  # noqa: E402
import torch  # noqa: E402

from internalize.storage.runs import Run  # noqa: E402

settings.register_profile("internalize", deadline=None, derandomize=True)
settings.load_profile("internalize")
torch.set_num_threads(1)  # for fixtures that run before `one_thread`


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread again: a tested command may have set more, and two threads on small tensors wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Train three seeds once. A test that changes files takes `tests.tiny.copies` of them."""
    from tests.tiny import tiny_runs  # late: it imports matplotlib

    return tiny_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Train the smallest run, `tests.tiny.SMALLEST` with seed 0, in the folder `runs/one`."""
    from internalize.parity.adamw.train import train
    from tests.tiny import SMALLEST

    run = Run(tmp_path / "runs" / "one")
    train(SMALLEST, [0], [run])
    return run


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces an attribute, given as for `setattr`, by one that fails when it is called."""

    def fail(*args: object, **named: object) -> None:
        raise AssertionError(f"called with {args} {named}")

    replace: Any = monkeypatch.setattr
    return lambda *target: replace(*target, fail)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the browser. Where there is none, the test is skipped and counted as skipped."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on the path, and CHROMIUM is not set")
    return found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Fail skipped tests under INTERNALIZE_REQUIRE_ALL=1: there every optional part must be installed."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("INTERNALIZE_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, but INTERNALIZE_REQUIRE_ALL=1 requires every part: {report.longrepr}"
