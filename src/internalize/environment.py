"""The machine that a run used, for `env.json`, and a check of its memory."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import internalize
from internalize.errors import InputError


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
