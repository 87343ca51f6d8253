"""`triton-mblt doctor`: says in plain words what this machine lacks to serve. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from triton_mblt.core.settings import NpuKind
from triton_mblt.launcher import checks
from triton_mblt.launcher.checks import Finding
from triton_mblt.launcher.device_check import npu_device


def examine(npu: NpuKind | None, address: str, ports: Mapping[str, int]) -> list[Finding]:
    """All findings for serving with this kind of NPU on these ports. `ports` maps option names to port numbers. Without
    a kind a missing card is a note: the emulated NPU needs none."""
    findings = [
        checks.python_version(),
        checks.glibc(),
        checks.embedded_server(),
        checks.libpython(),
        checks.numpy_version(),
        *checks.packages(),
        checks.shared_memory(),
        *(checks.port(name.upper(), address, number) for name, number in ports.items()),
    ]
    if npu != "emulated":
        found = npu_device()
        findings.append(replace(found, verdict="note") if npu is None and found.verdict == "missing" else found)
    else:
        findings.append(
            Finding("NPU", "note", "emulated: a card and its driver are not looked for (--npu device does)")
        )
    return findings


def report(findings: list[Finding]) -> str:
    """One line for each finding, its advice under it, and a closing line."""
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:8}{finding.subject:{width}}  {finding.text}")
        if finding.advice:
            lines.append(" " * (8 + width + 2) + "-> " + finding.advice)
    missing = sum(finding.verdict == "missing" for finding in findings)
    lines.append(
        "nothing is missing" if not missing else f"{missing} of {len(findings)} checks found something missing"
    )
    return "\n".join(lines)


def run(npu: NpuKind | None, address: str, ports: Mapping[str, int]) -> int:
    """Print the report. Exit code 1 when something is missing, else 0."""
    findings = examine(npu, address, ports)
    print(report(findings))
    return int(any(finding.verdict == "missing" for finding in findings))
