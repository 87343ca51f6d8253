"""Asks the vendor's runtime, in a process of its own, whether it sees a card. Knows nothing of models."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from triton_mblt.launcher.checks import Finding

# Opening a device by its concrete name is the only call that tells a missing driver from a missing card.
_ASK = """
import json, sys
import qbruntime
devices = [str(device) for device in qbruntime.get_available_devices()]
reason = ""
if not devices:
    try:
        qbruntime.Accelerator("aries-rb", 0)
    except qbruntime.QbRuntimeError as error:
        reason = str(error).split()[0]
print(json.dumps({"devices": devices, "reason": reason, "version": qbruntime.__version__}))
"""


def npu_device() -> Finding:
    if importlib.util.find_spec("qbruntime") is None:
        return Finding("NPU", "missing", "the package mobilint-qb-runtime is not installed", "run `make setup`")
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Finding("NPU", "missing", "the Mobilint runtime did not answer within 60 s", "check the driver (dmesg)")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(
            "NPU", "missing", f"the Mobilint runtime does not start: {last}", "reinstall mobilint-qb-runtime"
        )
    return judge(json.loads(done.stdout.splitlines()[-1]))


def judge(answer: dict[str, object]) -> Finding:
    """What the runtime's answer (keys devices, reason, version) means for a person."""
    devices, version = answer["devices"], answer["version"]
    if devices:
        return Finding("NPU", "ok", f"qbruntime {version} sees {devices}")
    if answer["reason"] == "Driver_NotInitialized":
        return Finding(
            "NPU",
            "missing",
            f"qbruntime {version} finds no Mobilint card, and its driver is not loaded",
            "plug in the card and install Mobilint's driver, or use the emulated NPU (MBLT_NPU=emulated)",
        )
    return Finding(
        "NPU",
        "missing",
        f"qbruntime {version} finds no Mobilint card ({answer['reason'] or 'no reason given'})",
        "check that the card is plugged in and visible (in a container: pass its device), or use MBLT_NPU=emulated",
    )
