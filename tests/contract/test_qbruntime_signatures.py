"""The emulated `qbruntime` against the installed real wheel: the same names, signatures, enum values and error texts.

Each side runs in a process of its own, so that neither sees the other. The real one is asked without a device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from triton_mblt.emulator import site_path

PROBE = Path(__file__).with_name("qbruntime_probe.py")


def probe(*, emulated: bool) -> dict[str, Any]:
    """What the probe finds in a process with the emulated package first, or without it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["MBLT_EMULATOR_DEVICES"] = "0"
    if emulated:
        env["PYTHONPATH"] = str(site_path())
    done = subprocess.run(
        [sys.executable, str(PROBE)], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def real() -> dict[str, Any]:
    found = probe(emulated=False)
    assert str(site_path()) not in found["file"]
    return found


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    found = probe(emulated=True)
    assert str(site_path()) in found["file"]
    return found


def test_star_import_brings_the_same_names(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert ours["star"] == real["star"]


def test_every_public_name_is_there(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert set(real["names"]) - set(ours["names"]) == set()


def test_every_class_has_the_same_members(real: dict[str, Any], ours: dict[str, Any]) -> None:
    for name, members in real["members"].items():
        assert set(members) - set(ours["members"][name]) == set(), name
    assert set(real["members"]) - set(ours["members"]) == set()


def test_signatures_are_the_same(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert len(real["signatures"]) > 100
    assert {name: ours["signatures"].get(name) for name in real["signatures"]} == real["signatures"]


def test_enums_have_the_same_values(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert ours["enums"] == real["enums"]


def test_version_is_the_same(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert ours["version"] == real["version"]


def test_behaviour_without_a_device_is_the_same(real: dict[str, Any], ours: dict[str, Any]) -> None:
    assert len(real["behaviour"]) > 60
    different = {
        what: (ours["behaviour"][what], expected)
        for what, expected in real["behaviour"].items()
        if ours["behaviour"][what] != expected
    }
    assert different == {}
