"""Build .venv completely or not at all, in one process at a time. Called by make; needs only Python.

Packages, including those that build ours, are installed in pip's hash-checking mode (constraints.txt, written by
lock.py). Only torch is pinned by version instead, so that a CPU build of it is accepted.

The stamp is written last and holds the path of its folder. If it is missing, if the folder was moved, or if the
interpreter no longer starts, the environment is rebuilt. Otherwise a changed pyproject.toml only adds to it. pip
inherits the lock, so that the next make waits for a pip that outlives a killed make.
"""

import shutil
import subprocess
import sys
from pathlib import Path

if sys.platform == "win32":
    sys.exit("internalize runs on Linux and macOS; on Windows use WSL")

import fcntl

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "installed"
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__))
TORCH = "torch==2.13.0"


def sound() -> bool:
    """Return whether the environment was built completely in this folder and still starts."""
    if not STAMP.is_file() or STAMP.read_text() != str(ROOT):
        return False
    python = VENV / "bin" / "python"
    return python.exists() and subprocess.run([python, "-c", ""], check=False).returncode == 0


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  (make may have found an older one)
        sys.exit(f"internalize needs Python 3.11 or newer, found {sys.version.split()[0]}; set PYTHON=...")
    with (ROOT / ".install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def run(*argv: str | Path) -> None:
            subprocess.run(argv, check=True, cwd=ROOT, pass_fds=[lock.fileno()])

        if not sound():
            shutil.rmtree(VENV, ignore_errors=True)
            run(sys.executable, "-m", "venv", "--clear", VENV)
        elif all(STAMP.stat().st_mtime >= source.stat().st_mtime for source in SOURCES):
            return  # another make has just built it
        STAMP.unlink(missing_ok=True)
        pip = (VENV / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        install = (*pip, "install", "--quiet")
        run(*install, "--require-hashes", "--no-deps", "--requirement", "constraints.txt")
        run(*install, TORCH)
        run(*install, "--no-deps", "--no-build-isolation", "--editable", ".")
        run(*pip, "check")
        STAMP.write_text(str(ROOT))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"the installation failed ({' '.join(map(str, error.cmd[:5]))} …); the next make starts it again")
