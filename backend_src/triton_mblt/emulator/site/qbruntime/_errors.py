"""The runtime's one error type and the status names that its text carries.

The text has the vendor's exact form; the reason goes to the log, as it does there.
"""

from __future__ import annotations

from . import _log

DOCS = "https://docs.mobilint.com/v1.5/doxygen/html_en/group__CPPAPI.html"

STATUSES = frozenset(
    {
        "Acc_AmbiguousDevice",
        "Acc_CoreAlreadyInUse",
        "Acc_DeviceNotFound",
        "Acc_NPUTimeout",
        "Acc_NoSuchModel",
        "Acc_UnknownDevice",
        "BadAlloc",
        "Driver_FailedToAllocateHostMemory",
        "Driver_FailedToAllocateModelMemory",
        "Driver_FailedToClaimCores",
        "Driver_FailedToLockCore",
        "Driver_FailedToPostInfer",
        "Driver_FailedToReadMemoryBuffer",
        "Driver_FailedToWaitDone",
        "Driver_FailedToWriteMemoryBuffer",
        "Driver_NotInitialized",
        "Driver_WaitDoneTimeout",
        "Future_NotValid",
        "InternalError",
        "Model_AlreadyLaunched",
        "Model_AsyncPipelineNotAlive",
        "Model_BrokenMXQ",
        "Model_BufferSizeMismatched",
        "Model_CacheNotFound",
        "Model_CacheOverflow",
        "Model_DtypeMismatched",
        "Model_FailedToAllocMemory",
        "Model_FailedToFindDirectory",
        "Model_FailedToLoadMXQ",
        "Model_FailedToOpenCacheFile",
        "Model_InvalidBatchParam",
        "Model_InvalidVariantIdx",
        "Model_IsNotSupportedHardware",
        "Model_MXQAndModelConfigNotMatch",
        "Model_NoCache",
        "Model_NoTargetCores",
        "Model_NotAlive",
        "Model_NotLaunched",
        "Model_NotSupported",
        "Model_NumCacheMismatched",
        "Model_PredictError",
        "Model_ShapeMismatched",
        "Model_TaskQueueClosed",
        "Model_TaskQueueTimeout",
        "NotImplemented",
    }
)


class QbRuntimeError(RuntimeError):
    """Every failure of the runtime. The text starts with the status name."""


def failure(status: str, reason: str) -> QbRuntimeError:
    """The error for `status`, to be raised by the caller. `reason` is written to the log in plain words."""
    if status not in STATUSES:
        raise ValueError(f"unknown status {status!r}")
    _log.error(f"{status}: {reason}")
    return QbRuntimeError(f"{status} occurred.\nPlease visit {DOCS} for more details.")


def unavailable(what: str) -> QbRuntimeError:
    """The error of a part of the API that language models do not need and the emulator does not have."""
    return failure("NotImplemented", f"{what} is not available on the emulated NPU")
