"""constraints.txt pins installed packages only, each with hashes. `pip check` in install.py finds what is missing
there."""

from importlib.metadata import distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.install import TORCH
from tools.lock import LOCK

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
