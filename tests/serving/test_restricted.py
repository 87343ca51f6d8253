"""Closed by default: what loads code, registers memory or changes the server needs the key, over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
from triton_server import TritonServer
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.e2e

HTTP: dict[str, tuple[str, Any]] = {
    "load": ("/v2/repository/models/lm/load", {}),
    "unload": ("/v2/repository/models/lm/unload", {}),
    "index": ("/v2/repository/index", {}),
    "shared memory": ("/v2/systemsharedmemory/region/x/register", {"key": "/x", "offset": 0, "byte_size": 8}),
    "gpu memory": (
        "/v2/cudasharedmemory/region/x/register",
        {"raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 8},
    ),
    "unregister": ("/v2/systemsharedmemory/unregister", {}),
    "trace": ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
    "log": ("/v2/logging", {"log_verbose_level": 1}),
}
GRPC: dict[str, Callable[[Any], Any]] = {
    "load": lambda client: client.load_model("lm"),
    "unload": lambda client: client.unload_model("lm"),
    "index": lambda client: client.get_model_repository_index(),
    "shared memory": lambda client: client.register_system_shared_memory("x", "/x", 8),
    "trace": lambda client: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}),
    "log": lambda client: client.update_log_settings({"log_verbose_level": 1}),
}


@pytest.mark.parametrize("route", HTTP)
@pytest.mark.parametrize("headers", [{}, {"triton-mblt-key": "guess"}], ids=["no key", "a wrong key"])
def test_http(server: TritonServer, route: str, headers: dict[str, str]) -> None:
    path, body = HTTP[route]
    status, text = server.post(path, body, headers)
    assert (status, b"restricted" in text) == (403, True)


def test_http_with_the_key(server: TritonServer) -> None:
    status, text = server.post("/v2/repository/index", {}, {"triton-mblt-key": server.keys()["route"]})
    assert status == 200
    assert b"mblt_ensemble" in text


@pytest.mark.parametrize("route", GRPC)
def test_grpc(server: TritonServer, route: str) -> None:
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="restricted"),
    ):
        GRPC[route](client)


def test_serving_needs_no_key(server: TritonServer) -> None:
    assert server.get("/v2/models/lm/ready")[0] == 200
    assert server.get("/v2/models/mblt/stats")[0] == 200
