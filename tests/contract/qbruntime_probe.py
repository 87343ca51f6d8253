"""Describes the `qbruntime` that Python finds, as one line of JSON. The test beside it runs it in its own process."""

from __future__ import annotations

import enum
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import qbruntime as q

CLASSES = [
    "Accelerator", "BatchParam", "Buffer", "BufferInfo", "CacheInfo", "CoreId", "Future", "Model", "ModelConfig",
    "NPUData", "PinnedMemory", "Scale",
]  # fmt: skip
FUNCTIONS = [
    "get_available_device_numbers", "get_available_devices", "get_model_summary", "load", "set_log_level",
    "start_tracing_events", "stop_tracing_events",
]  # fmt: skip
INTERNAL = {"from_cpp"}
IMPORTED = {"Enum", "List", "Optional", "Sequence", "Tuple", "Union", "np", "overload", "qbruntime"}


def public(thing: Any) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def signature(thing: Callable[..., Any]) -> list[Any]:
    """Names, kinds and plain defaults of the parameters."""
    described = []
    for parameter in inspect.signature(thing).parameters.values():
        default = parameter.default
        shown = "-" if default is inspect.Parameter.empty else str(default).split(":")[0].replace("<", "")
        described.append([parameter.name.lstrip("_"), parameter.kind.name, shown])
    return described


def signatures() -> dict[str, list[Any]]:
    handle = q.model_variant_handle.ModelVariantHandle
    found = {name: signature(getattr(q, name)) for name in FUNCTIONS}
    for name, kind in [*((name, getattr(q, name)) for name in CLASSES), ("ModelVariantHandle", handle)]:
        for member in ["__init__", *public(kind)]:
            value = getattr(kind, member)
            if member not in INTERNAL and callable(value):
                found[f"{name}.{member}"] = signature(value)
    return found


def members() -> dict[str, list[str]]:
    kinds = [getattr(q, name) for name in CLASSES] + [q.model_variant_handle.ModelVariantHandle]
    made = {"BatchParam": q.BatchParam(), "BufferInfo": q.BufferInfo(), "CacheInfo": q.CacheInfo(),
            "Scale": q.Scale(1.0, True, [1.0]), "Buffer": q.Buffer()}  # fmt: skip
    return {kind.__name__: public(made.get(kind.__name__, kind)) for kind in kinds}


def enums() -> dict[str, dict[str, int]]:
    kinds = {name: getattr(q, name) for name in public(q)}
    return {
        name: {member.name: int(member.value) for member in kind}
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and kind is not enum.Enum
    }


def outcome(what: Callable[[], Any]) -> str:
    try:
        return repr(what())
    except q.QbRuntimeError as error:
        return f"QbRuntimeError: {error}"
    except Exception as error:  # noqa: BLE001 - the type is the answer
        return type(error).__name__


def core(cluster: str, name: str) -> q.CoreId:
    return q.CoreId(q.Cluster[cluster], q.Core[name])


def configured(*calls: tuple[Any, ...]) -> list[Any]:
    """A config after calls of (method, arguments...): what they returned and all that the getters say."""
    config = q.ModelConfig()
    results = [outcome(lambda call=call: getattr(config, call[0])(*call[1:])) for call in calls]
    return [
        *results, str(config.get_core_mode()), str(config.get_core_allocation_policy()), config.get_num_cores(),
        str(config.get_core_ids()), [str(c) for c in config.get_clusters()], config.get_activation_slots(),
        config.get_forced_npu_bundle_index(), config.get_async_pipeline_enabled(),
    ]  # fmt: skip


def configurations() -> dict[str, Any]:
    c00, c11 = core("Cluster0", "Core0"), core("Cluster1", "Core1")
    one, both = [q.Cluster.Cluster1], [q.Cluster.Cluster1, q.Cluster.Cluster0]
    single, slots = "set_single_core_mode", "set_activation_slots"
    cases: list[list[tuple[Any, ...]]] = [
        [], [(single, 1)], [(single, 0)], [(single, -1)], [(single, 9)], [(single, True)], [(single, 2.0)],
        [(single, "a")], [(single,)], [(single, 1, [c00])], [(single, [c11, c00])], [(single, (c00,))],
        [(single, None, [c00])], [(single, None, [])], [(single, [c00, c00, c11])],
        [(single, [core("Cluster0", "All")])], [(single, [c00, core("Cluster0", "GlobalCore")])],
        [(single, [core("Error", "Core0")])], [("set_global4_core_mode",)], [("set_global4_core_mode", [])],
        [("set_global4_core_mode", one)], [("set_global4_core_mode", both + one)],
        [("set_global4_core_mode", [q.Cluster.Error])], [("set_multi_core_mode",)], [("set_multi_core_mode", one)],
        [("set_multi_core_mode", [])], [("set_global_core_mode", one)], [("set_global8_core_mode",)],
        [("set_auto_core_mode",)], [(slots, 0)], [(slots, -3)], [(slots, 5)], [(slots, 1.0)],
        [(slots, 5), ("set_global8_core_mode",)], [(slots, 5), ("set_auto_core_mode",)], [(slots, 5), (single, [c00])],
        [(slots, 5), (single, [])], [(slots, 5), (single, 3)], [(single, [c00]), ("set_global4_core_mode",)],
        [("set_global4_core_mode",), (single, [c00])], [("set_global4_core_mode",), ("set_auto_core_mode",)],
        [("set_global4_core_mode",), ("set_global8_core_mode",)], [(single, 3), ("set_global4_core_mode",)],
        [(single, [c00]), (single, 3)], [(single, 3), (single, [c00])], [("force_single_npu_bundle", -2)],
        [("force_single_npu_bundle", 3)], [("set_async_pipeline_enabled", True)],
    ]  # fmt: skip
    return {f"config {n} {[call[0] for call in case]}": configured(*case) for n, case in enumerate(cases)}


def traced(folder: Path) -> dict[str, Any]:
    first, second = folder / "first.json", folder / "second.json"
    started = [q.start_tracing_events(str(first)), q.start_tracing_events(str(second))]
    stopped = [q.stop_tracing_events(), q.stop_tracing_events()]
    return {
        "trace": [started, stopped, first.read_text(), second.exists()],
        "trace nowhere": q.start_tracing_events(str(folder / "missing" / "x.json")),
        "trace number": outcome(lambda: q.start_tracing_events(3)),
    }


def behaviour(folder: Path) -> dict[str, Any]:
    (folder / "empty.mxq").touch()
    (folder / "text.mxq").write_text("no model")
    info = q.BufferInfo(1, 2, 3, 4, 5, 6, 7, 8, 9)
    questions: dict[str, Callable[[], Any]] = {
        "core repr": lambda: core("Cluster0", "Core1"),
        "core order": lambda: sorted([core(c, k) for c in ("Error", "Cluster1", "Cluster0") for k in ("All", "Core0")]),
        "core equal": lambda: [core("Cluster0", "All") == core("Cluster0", x) for x in ("All", "Core0")],
        "core hash": lambda: hash(core("Cluster0", "Core0")),
        "core of numbers": lambda: q.CoreId(0, 1),
        "params": lambda: [q.BatchParam(), q.BatchParam(-1, True, np.float32(3.7)), q.BatchParam(np.int64(5))],
        "param equality": lambda: q.BatchParam(1) == q.BatchParam(1),
        "cache info": lambda: (q.CacheInfo(q.CacheType.Batch, "n", "h", 2**40, 3).size, str(q.CacheInfo().cache_type)),
        "buffer info": lambda: [q.BufferInfo(), info],
        "buffer shapes": lambda: [
            info.shape(), info.shape_chw(), info.original_shape(), info.original_shape_chw(), info.reshaped_shape(),
            info.reshaped_shape_chw(), info.size(), info.original_size(), info.reshaped_size(),
        ],
        "scale": lambda: [q.Scale(1.0, True, [1.0]), q.Scale(1.0, True, [2.0])[1], q.Scale(1.0, False, [1.0, 2.0])[1]],
        "buffer": q.Buffer,
        "summary number": lambda: q.get_model_summary(3),
        "devices": q.get_available_devices,
        "device numbers": lambda: [q.get_available_device_numbers(), q.get_available_device_numbers("foo")],
        "device numbers of a number": lambda: q.get_available_device_numbers(3),
        "log level number": lambda: q.set_log_level(0),
        "future": lambda: q.Future().wait_for(0),
        "future get": lambda: q.Future().get(),
        "error type": lambda: [kind.__name__ for kind in q.QbRuntimeError.__mro__],
        "model hash": lambda: q.Model.__hash__ is object.__hash__,
        "load": lambda: q.load(str(folder / "missing.mxq")),
        "config number": lambda: str(q.ModelConfig(3).get_core_mode()),
        "config text": lambda: q.ModelConfig("a"),
    }  # fmt: skip
    for bad in (1.0, np.float64(5), 2**40, "a", None):
        questions[f"param {bad!r}"] = lambda bad=bad: q.BatchParam(bad)
    for bad in (-1, 2.0, "a"):
        questions[f"cache size {bad!r}"] = lambda bad=bad: q.CacheInfo(size=bad)
        questions[f"buffer height {bad!r}"] = lambda bad=bad: q.BufferInfo(bad)
    for names in ((), (0,), (1,), (-1,), (True,), ("auto",), ("ARIES",), ("aries-rb", 0), ("aries-rb", -1),
                  ("regulus",),
                  ("regulus-usb",), ("Regulus-RA-usb",), ("foo",), (None,), (1.5,), ("aries", "x")):  # fmt: skip
        questions[f"accelerator {names}"] = lambda names=names: q.Accelerator(*names)
    for file in ("missing.mxq", "empty.mxq", "text.mxq", "."):
        questions[f"model {file}"] = lambda file=file: q.Model(str(folder / file))
        questions[f"summary {file}"] = lambda file=file: q.get_model_summary(str(folder / file))
    questions["model number"] = lambda: q.Model(5)
    answers: dict[str, Any] = {name: outcome(question) for name, question in questions.items()}
    return {**answers, **configurations(), **traced(folder)}


def main() -> None:
    names = [name for name in public(q) if name not in IMPORTED]
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "file": q.__file__, "version": q.__version__, "names": names, "star": sorted(q.__all__),
            "signatures": signatures(), "members": members(), "enums": enums(), "behaviour": behaviour(Path(folder)),
        }  # fmt: skip
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
