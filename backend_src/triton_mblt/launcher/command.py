"""The command line and the environment of the embedded tritonserver. Pure: builds values, starts nothing.

Closed by default: routes that load code, register shared memory or change the server's settings need the route key.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import triton_mblt
from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.launcher.backend_dir import EmbeddedServer, site_folders
from triton_mblt.launcher.rundir import RunDir

# A `load` with a file override runs the caller's Python; shared memory reads and writes the server's memory; the rest
# changes what is logged and traced, and where to. (2.51 has no route that changes statistics: they stay readable.)
RESTRICTED = ("model-repository", "shared-memory", "trace", "logging")
# HTTP takes the header under this name; gRPC under "triton-grpc-protocol-" plus it.
KEY_HEADER = "triton-mblt-key"
# Every process of the run inherits this variable; the launcher recognises them by it (process.py).
RUN_DIR_VARIABLE = "MBLT_RUN_DIR"


def command_line(server: EmbeddedServer, settings: ServerSettings, run: RunDir, backends: Path) -> list[str]:
    """The tritonserver command of one run. `backends` is the assembled backend directory."""
    restricted = f"{','.join(RESTRICTED)}:{KEY_HEADER}={run.route_key}"
    return [
        str(server.binary),
        f"--id={run.server_id}",
        f"--model-repository={settings.repository}",
        f"--backend-directory={backends}",
        f"--http-address={settings.address}",
        f"--grpc-address={settings.address}",
        f"--metrics-address={settings.address}",
        f"--http-port={settings.http_port}",
        f"--grpc-port={settings.grpc_port}",
        f"--metrics-port={settings.metrics_port}",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
        # Half of the launcher's limit is for draining; Triton's own limit has to fit into the other half.
        f"--exit-timeout-secs={max(1, int(settings.stop_limit_s / 4))}",
        f"--backend-config=python,shm-region-prefix-name={run.shm_prefix}",
        f"--backend-config=python,shm-default-byte-size={settings.shm_region_bytes}",
        f"--backend-config=python,shm-growth-byte-size={settings.shm_region_bytes}",
        "--allow-gpu-metrics=false",
    ]


def environment(
    server: EmbeddedServer, settings: ServerSettings, run: RunDir, library: Path, base: Mapping[str, str]
) -> dict[str, str]:
    """The environment of tritonserver, its stubs and their workers. `base` is the launcher's own environment."""
    package = Path(triton_mblt.__file__).parents[1]
    env = dict(base)
    env["LD_LIBRARY_PATH"] = _joined(library, server.libraries, base.get("LD_LIBRARY_PATH", ""))
    # The stub's interpreter finds its prefix, and with it the virtual environment, through the first python3 on PATH.
    env["PATH"] = _joined(Path(sys.executable).parent, base.get("PATH", ""))
    env["PYTHONPATH"] = _joined(package, *(f for f in site_folders() if f != package), base.get("PYTHONPATH", ""))
    env["PYTHONUNBUFFERED"] = "1"
    env[RUN_DIR_VARIABLE] = str(run.path)
    env["MBLT_ADMIN_KEY_FILE"] = str(run.admin_key_file)
    env["MBLT_NPU"] = settings.npu
    if settings.model:
        env["MBLT_MODEL"] = settings.model
    return env


def _joined(*parts: Path | str) -> str:
    return ":".join(str(part) for part in parts if str(part))
