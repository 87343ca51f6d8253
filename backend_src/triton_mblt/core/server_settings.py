"""How one tritonserver is started by the launcher: addresses, ports and time limits. Knows nothing of models'
settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from triton_mblt.core.errors import ConfigError
from triton_mblt.core.settings import NpuKind


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `triton-mblt serve`. `stop_limit_s` bounds everything between Ctrl-C and the last process being
    gone."""

    repository: Path
    npu: NpuKind
    model: str = ""
    address: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    start_limit_s: float = 900.0
    stop_limit_s: float = 4.0
    shm_region_bytes: int = 1024 * 1024
    verbose: bool = False

    def __post_init__(self) -> None:
        ports = self.ports()
        for name, port in ports.items():
            if not 0 < port < 65536:
                raise ConfigError(f"{name} must be between 1 and 65535, got {port}", param=name)
        if len(set(ports.values())) != len(ports):
            raise ConfigError("http_port, grpc_port and metrics_port must differ", param="http_port")
        for name, value in (("start_limit_s", self.start_limit_s), ("stop_limit_s", self.stop_limit_s)):
            if not value > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {value:g}", param=name)

    def ports(self) -> dict[str, int]:
        return {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}

    @property
    def local_address(self) -> str:
        """Where this machine itself reaches the server."""
        return "127.0.0.1" if self.address == "0.0.0.0" else self.address
