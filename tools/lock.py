"""Write constraints.txt: every package of every extra with the digests of all its files, for pip's hash-checking mode.

usage: lock.py [PACKAGE ...]    (upgrades these; without any, keeps every version that still fits pyproject.toml)

Needs uv (`pip install uv`). torch and the packages that only its GPU builds need are left out: install.py pins torch by
version, so that a CPU build is accepted. Packages that only browsers need are left out, too. Build dependencies are
included, because install.py builds without isolation.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "constraints.txt"
BUILD = ("hatchling", "editables")
GPU_ONLY = ("nvidia-", "cuda-", "triton")
BROWSERS_ONLY = "sys_platform == 'emscripten'"
HEADER = """\
# Written by `python tools/lock.py`. Every package of every extra, as installed and tested together on Python 3.11.
# torch is pinned in tools/install.py by its public version: pip takes a CPU build of it where one is offered.
"""


def main(upgraded: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [word for extra in project["optional-dependencies"] for word in ("--extra", extra)]
    upgrade = [word for name in upgraded for word in ("--upgrade-package", name)]
    with tempfile.TemporaryDirectory() as folder:
        build, out = Path(folder) / "build.in", Path(folder) / "constraints.txt"
        build.write_text("\n".join(BUILD))
        out.write_text(LOCK.read_text())  # uv keeps the versions in this file
        python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
        options = ("--universal", "--generate-hashes", "--no-header", "--no-annotate", "--strip-extras")
        command = (
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--python-version",
            python,
            *options,
            "--no-emit-package",
            "torch",
        )
        subprocess.run([*command, *extras, *upgrade, "pyproject.toml", build, "-o", out], cwd=ROOT, check=True)
        packages = out.read_text().replace(" \\\n    --hash", "\\--hash").splitlines()
    kept = [line for line in packages if line and not line.startswith(GPU_ONLY) and BROWSERS_ONLY not in line]
    LOCK.write_text(HEADER + "\n".join(kept).replace("\\--hash", " \\\n    --hash") + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
