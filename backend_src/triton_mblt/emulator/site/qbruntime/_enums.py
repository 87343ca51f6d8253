"""The runtime's enums, with its raw values."""

from __future__ import annotations

from enum import Enum


class Cluster(Enum):
    """A cluster of an ARIES NPU: four local cores and a global one. REGULUS has Cluster0 only."""

    Cluster0 = 0x10000
    Cluster1 = 0x20000
    Error = 0x7FFF0000


class Core(Enum):
    """A core within a cluster. REGULUS has Core0 only."""

    Core0 = 1
    Core1 = 2
    Core2 = 3
    Core3 = 4
    All = 0xFFFC
    GlobalCore = 0xFFFE
    Error = 0xFFFF


class CoreAllocationPolicy(Enum):
    """Whether the runtime (Auto) or the caller (Manual) picks cores."""

    Auto = 0
    Manual = 1


class CoreMode(Enum):
    """How the cores of a model work together."""

    Single = 0
    Multi = 1
    Global = 2
    Global4 = 3
    Global8 = 4
    Auto = 14
    Error = 15


class CacheType(Enum):
    """Kind of a KV cache: one slot (Default), several (Batch)."""

    Default = 0
    Batch = 1
    FixedTailCache = 2
    Error = 15


class DataType(Enum):
    """Element type of an input or output."""

    Float32 = 0
    Float16 = 1
    Int8 = 2
    Uint8 = 3
    BInt16 = 4
    Error = 15


LOCAL_CORES = (Core.Core0, Core.Core1, Core.Core2, Core.Core3)
CLUSTERS = (Cluster.Cluster0, Cluster.Cluster1)
