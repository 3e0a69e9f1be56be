"""The machine that a run used, for `env.json`, and checks of its memory and open files."""

import datetime
import os
import platform
import re
import resource
import subprocess
from pathlib import Path
from typing import Any, Final

import internalize
from internalize.errors import InputError

_SPARE_FILES: Final = 32
"""Open files that a process needs besides its locks."""


def describe_environment() -> dict[str, Any]:
    """Return the package version, the commit if known, Python, torch, CPU, threads and start time."""
    import torch

    return {
        "internalize": internalize.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def check_memory(need: float, what: str) -> None:
    """Raise an error if ``need`` bytes are more than this machine has. ``need`` may be an integer of any size."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need > have:
        size = f"{need / 2**30:.0f}" if need < 2**100 else "more than 10^21"
        raise InputError(f"{what} need about {size} GiB, and this machine has {have / 2**30:.0f}")


def check_open_files(count: int) -> None:
    """Raise the limit of open files so that this process can hold ``count`` locks, or raise an error if it cannot."""
    need = sum(1 for _ in Path("/dev/fd").glob("*")) + count + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard != resource.RLIM_INFINITY and need > hard:
        raise InputError(
            f"{count} runs at a time need {need} open files, but only {hard} are allowed (ulimit -n); take fewer seeds"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, or None if it was installed as a package."""
    here = Path(__file__).resolve()
    if not (here.parents[2] / ".git").exists():
        return None
    git = ["git", "-C", str(here.parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    named = re.search("^model name.*: (.*)$", info.read_text(errors="replace"), re.MULTILINE) if info.exists() else None
    return named[1].strip() if named else platform.processor() or platform.machine()
