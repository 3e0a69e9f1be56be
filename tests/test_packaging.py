"""The wheel has the package, the sdist all that tests, site and make need, constraints.txt what is installed."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.install import TORCH
from tools.lock import LOCK

from internalize import __version__
from tests.documentation_pages import ROOT

FOLDERS = ("benchmarks", "docs", "src", "tests", "tools")
CACHES = ("__pycache__", ".egg-info")


def files(folder: Path) -> set[str]:
    """Return the files of a folder, relative to the root, without caches."""
    found = (path.relative_to(ROOT) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not any(part.endswith(CACHES) for part in path.parts)}


def project_files() -> set[str]:
    """Return the files of the project: those of git or, without git, those in its folders."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return {name for name in listed.splitlines() if (ROOT / name).exists()}
    return set[str]().union(*(files(ROOT / folder) for folder in FOLDERS))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True, capture_output=True)
    return out


def test_the_wheel_has_the_package(built: Path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {f"src/{name}" for name in archive.namelist() if name.startswith("internalize/")}
    assert names == files(ROOT / "src" / "internalize")
    assert {"src/internalize/py.typed", "src/internalize/report/templates/page.css"} < names


def test_the_sdist_is_a_working_copy(built: Path):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert project_files() - names == set()
    assert {"Makefile", "mkdocs.yml", "constraints.txt", "LOG.md", "CITATION.cff", "tools/install.py"} <= names


def test_versions_and_names_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [__version__]
    assert re.findall(r"^license: (.*)$", citation, re.MULTILINE) == [project["license"]]
    tested = "Programming Language :: Python :: {}.{}".format(*sys.version_info)
    assert tested in project["classifiers"], "the classifiers name the versions that the tests have run on"


def test_make_on_windows_says_what_to_use():
    if shutil.which("make") is None:
        pytest.skip("no make on the path")
    made = subprocess.run(["make", "OS=Windows_NT", "help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "WSL" in made.stderr


# constraints.txt; `pip check` in tools/install.py finds what is missing there

ENTRIES = LOCK.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
PINS = {
    canonicalize_name(pin.name): pin
    for pin in (Requirement(line.partition("--hash")[0]) for line in ENTRIES if not line.startswith("#"))
}


def test_every_pin_has_a_version_and_hashes_and_no_index():
    for line in ENTRIES:
        if not line.startswith("#"):
            assert "==" in line.split()[0]
            assert " --hash=sha256:" in line
    assert not any("://" in line or "index" in line for line in ENTRIES)
    assert Requirement(TORCH).name not in PINS


def test_pinned_packages_are_installed():
    found = {canonicalize_name(own.name): own.version for own in distributions()}
    pinned = {name: pin for name, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()}
    assert {name for name, pin in pinned.items() if found.get(name, "none") not in pin.specifier} == set()
    platforms = [{"sys_platform": "linux"}, {"sys_platform": "darwin", "platform_machine": "arm64"}]
    assert [pin for pin in PINS.values() if pin.marker and not any(map(pin.marker.evaluate, platforms))] == []
