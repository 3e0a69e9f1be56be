"""Shared by all tests: shapes are checked at run time, hypothesis has no deadline, one thread."""

import os
import shutil

# Before torch is imported: commands that tests start would otherwise take all cores each.
os.environ["OMP_NUM_THREADS"] = "1"

from hypothesis import settings
from jaxtyping import install_import_hook

# Before the first import of the package: where there are tensors, every shape and dtype is checked on every call.
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
torch.set_num_threads(1)  # for fixtures that are made before the one below


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small tensors: two threads on a busy machine wait for each other. Commands that were tested may have asked for more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three seeds, trained once. Who changes something takes `tests.tiny.copies`."""
    from tests.tiny import tiny_runs  # late: it imports what draws the page

    return tiny_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser. A fixture, so that a test is skipped, and counted, where there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on the path, and CHROMIUM is not set")
    return found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Under INTERNALIZE_REQUIRE_ALL a skipped test is a failed one: nothing may be missing there."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("INTERNALIZE_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, but INTERNALIZE_REQUIRE_ALL=1 requires every part: {report.longrepr}"
