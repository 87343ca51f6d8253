"""What a person reads when the server is ready: which NPU, where, how to try it, how to stop it."""

from __future__ import annotations

import json

from triton_mblt import __version__
from triton_mblt.core.server_settings import ServerSettings
from triton_mblt.launcher.rundir import RunDir

_RULE = "-" * 78


def banner(settings: ServerSettings, run: RunDir, seconds: float) -> str:
    """`seconds` is the time from the start to ready."""
    host = settings.local_address
    if settings.npu == "emulated":
        npu = "EMULATED NPU: a model of the hardware runs on this CPU, no Mobilint card is used"
    else:
        npu = "device"
    lines = [
        _RULE,
        f"triton-mblt {__version__} is ready after {seconds:.1f} s",
        f"  NPU      {npu}",
        f"  model    {settings.model or f'as {settings.repository} says'}",
        f"  HTTP     http://{host}:{settings.http_port}",
        f"  gRPC     {host}:{settings.grpc_port}",
        f"  metrics  http://{host}:{settings.metrics_port}/metrics",
        f"  keys     {run.path} (for administrators: triton-mblt key)",
        "  try it   " + example(host, settings.http_port),
        "  stop     Ctrl-C",
        _RULE,
    ]
    if settings.address != "127.0.0.1":
        lines.insert(2, f"  reached from other machines: bound to {settings.address}, without encryption or passwords")
    return "\n".join(lines)


def example(host: str, http_port: int) -> str:
    """A command to paste: one streamed answer from `mblt`."""
    messages = json.dumps([{"role": "user", "content": "What is the capital of France?"}])
    body = json.dumps({"text_input": "", "messages": messages, "stream": True, "temperature": 0})
    return f"curl -N http://{host}:{http_port}/v2/models/mblt/generate_stream -d '{body}'"
