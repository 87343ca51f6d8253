"""Which cores a configuration gives to an artefact, and which configurations do not fit it."""

from __future__ import annotations

from ._artefact import Artefact
from ._config import ModelConfig
from ._enums import CLUSTERS, LOCAL_CORES, Cluster, CoreAllocationPolicy, CoreMode
from ._errors import failure
from ._values import CoreId


def check_config(artefact: Artefact, config: ModelConfig) -> None:
    """Error Model_MXQAndModelConfigNotMatch unless a language model may run in this mode."""
    problem = _problem(artefact, config)
    if problem:
        raise failure("Model_MXQAndModelConfigNotMatch", problem)


def target_cores(config: ModelConfig) -> list[CoreId]:
    """The cores that the model runs on, in order of cluster and core."""
    mode = config.get_core_mode()
    if mode is CoreMode.Single and config.get_core_allocation_policy() is CoreAllocationPolicy.Manual:
        return config.get_core_ids()
    if mode is CoreMode.Single:
        return _local_cores(CLUSTERS)[: config.get_num_cores()]
    clusters = set(config.get_clusters()) or set(CLUSTERS)
    return _local_cores(tuple(cluster for cluster in CLUSTERS if cluster in clusters))


def check_device(device_name: str, config: ModelConfig) -> None:
    """Error Model_IsNotSupportedHardware when the device lacks the configured cores. REGULUS has one core."""
    first = CoreId(CLUSTERS[0], LOCAL_CORES[0])
    mode = config.get_core_mode()
    fits = mode is CoreMode.Auto or (mode is CoreMode.Single and target_cores(config) == [first])
    if device_name.startswith("regulus") and not fits:
        raise failure("Model_IsNotSupportedHardware", f"{device_name} has one core; it cannot run {config!r}")


def _problem(artefact: Artefact, config: ModelConfig) -> str:
    mode = config.get_core_mode()
    if config.get_forced_npu_bundle_index() > 0:
        return f"there is no NPU bundle {config.get_forced_npu_bundle_index()}"
    if mode in (CoreMode.Multi, CoreMode.Global):
        return f"a language model does not run in {mode}"
    if artefact.batch > 1 and mode in (CoreMode.Global4, CoreMode.Global8):
        return f"a model of {artefact.batch} slots runs in CoreMode.Auto or CoreMode.Single, not in {mode}"
    if mode is CoreMode.Single and artefact.batch == 1 and len(target_cores(config)) != 1:
        return "a model using cache is allowed to use only one NPU core in CoreMode.Single"
    return ""


def _local_cores(clusters: tuple[Cluster, ...]) -> list[CoreId]:
    return [CoreId(cluster, core) for cluster in clusters for core in LOCAL_CORES]
