# ruff: noqa: B006 - the vendor's signatures
"""`ModelConfig`: which cores a model uses and how, with the runtime's rules for setting it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _log
from ._enums import CLUSTERS, LOCAL_CORES, Cluster, CoreAllocationPolicy, CoreMode
from ._numbers import int32
from ._values import CoreId


class ModelConfig:
    """Auto mode until something else is set. A setter that returns False has changed nothing."""

    def __init__(self, num_cores: int | None = None) -> None:
        self._mode = CoreMode.Auto
        self._policy = CoreAllocationPolicy.Manual
        self._core_ids: list[CoreId] = []
        self._clusters: list[Cluster] = []
        self._num_cores = 0
        self._bundle = -1
        self._slots = -1
        self._async = False
        if num_cores is not None:
            self.set_single_core_mode(num_cores)

    def set_auto_core_mode(self) -> bool:
        """Let the runtime choose by the artefact; forgets activation slots."""
        self._become(CoreMode.Auto, slots=-1)
        return True

    def set_single_core_mode(self, num_cores: Any = None, core_ids: Any = None) -> bool:
        """Each core runs whole inferences. Give a number (deprecated) or a list of local cores, in either place.

        ValueError unless exactly one is given.
        """
        if isinstance(num_cores, (list, tuple)) and core_ids is None:
            num_cores, core_ids = None, num_cores
        if (num_cores is None) == (core_ids is None):
            raise ValueError("`set_single_core_mode` needs either `num_cores` or `core_ids`.")
        return self._single_by_number(num_cores) if core_ids is None else self._single_by_list(core_ids)

    def set_global_core_mode(self, clusters: list[Cluster]) -> bool:
        """Deprecated predecessor of `set_global4_core_mode`."""
        return self._by_clusters(CoreMode.Global, clusters)

    def set_global4_core_mode(self, clusters: list[Cluster] = list(CLUSTERS)) -> bool:
        """Four cores of each listed cluster work together on one inference."""
        return self._by_clusters(CoreMode.Global4, clusters)

    def set_global8_core_mode(self) -> bool:
        """All eight cores work together on one inference."""
        self._become(CoreMode.Global8, slots=2)
        return True

    def get_core_mode(self) -> CoreMode:
        """The mode set last."""
        return self._mode

    def set_multi_core_mode(self, clusters: list[Cluster] = list(CLUSTERS)) -> bool:
        """Four cores of a cluster share a batch of four."""
        return self._by_clusters(CoreMode.Multi, clusters)

    def get_core_allocation_policy(self) -> CoreAllocationPolicy:
        """Auto only after `set_single_core_mode(num_cores)`."""
        return self._policy

    def get_num_cores(self) -> int:
        """Number of cores in single mode, else 0."""
        return self._num_cores

    def force_single_npu_bundle(self, npu_bundle_index: int) -> bool:
        """Use one bundle of the artefact, or all (-1). False below -1."""
        index = int32(npu_bundle_index, "npu_bundle_index")
        if index < -1:
            return False
        self._bundle = index
        return True

    def get_forced_npu_bundle_index(self) -> int:
        """The forced bundle, or -1."""
        return self._bundle

    def set_async_pipeline_enabled(self, enable: bool) -> None:
        """Ask for the asynchronous pipeline, which language models do not have."""
        self._async = bool(enable)

    def get_async_pipeline_enabled(self) -> bool:
        """Whether the asynchronous pipeline was asked for."""
        return self._async

    def set_activation_slots(self, num: int) -> None:
        """Number of activation slots; below 0 means not set. Language models always have one."""
        self._slots = max(-1, int32(num, "num"))

    def get_activation_slots(self) -> int:
        """Activation slots, -1 when not set."""
        return self._slots

    def get_core_ids(self) -> list[CoreId]:
        """The cores given to `set_single_core_mode`, in order of cluster and core."""
        return [CoreId.from_cpp(core_id) for core_id in self._core_ids]

    def get_clusters(self) -> list[Cluster]:
        """The clusters given to a cluster mode."""
        return list(self._clusters)

    def __repr__(self) -> str:
        return (
            f"ModelConfig(core_mode={self._mode}, core_allocation_policy={self._policy}, core_ids={self._core_ids}, "
            f"clusters={self._clusters}, num_cores={self._num_cores}, forced_npu_bundle_index={self._bundle})"
        )

    def _single_by_number(self, num_cores: Any) -> bool:
        number = int32(num_cores, "num_cores")
        _log.warn("set_single_core_mode(num_cores) is deprecated; give the list of cores")
        if number < 1:
            _log.error(f"num_cores is {number}; single mode needs at least 1")
            return False
        slots = self._slots  # the real runtime keeps them here, unlike in every other setter
        self._become(CoreMode.Single, slots=slots, num_cores=number, policy=CoreAllocationPolicy.Auto)
        return True

    def _single_by_list(self, core_ids: Sequence[CoreId]) -> bool:
        chosen: list[CoreId] = []
        for core_id in core_ids:
            if core_id.cluster not in CLUSTERS or core_id.core not in LOCAL_CORES:
                _log.error(f"{core_id} is not a local core")
                return False
            if core_id not in chosen:
                chosen.append(CoreId.from_cpp(core_id))
        if not chosen:
            return False
        clusters = self._clusters  # kept by the real runtime in this one case
        self._become(CoreMode.Single, slots=2 * len(chosen), num_cores=len(chosen), core_ids=sorted(chosen))
        self._clusters = clusters
        return True

    def _by_clusters(self, mode: CoreMode, clusters: Sequence[Cluster]) -> bool:
        chosen = list(clusters)
        if not chosen or any(cluster not in CLUSTERS for cluster in chosen):
            return False
        self._become(mode, slots=2 * len(chosen), clusters=chosen)
        return True

    def _become(
        self,
        mode: CoreMode,
        *,
        slots: int,
        num_cores: int = 0,
        policy: CoreAllocationPolicy = CoreAllocationPolicy.Manual,
        core_ids: Sequence[CoreId] = (),
        clusters: Sequence[Cluster] = (),
    ) -> None:
        self._mode, self._policy, self._slots, self._num_cores = mode, policy, slots, num_cores
        self._core_ids, self._clusters = list(core_ids), list(clusters)
