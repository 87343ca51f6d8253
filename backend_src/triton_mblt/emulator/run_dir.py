"""Where emulated NPUs keep their counters and look for injected faults."""

from __future__ import annotations

from pathlib import Path

from triton_mblt.core.errors import ConfigError
from triton_mblt.emulator.site.qbruntime._options import OptionError, options


def default_run_dir() -> Path:
    """The folder that MBLT_EMULATOR_RUN_DIR names, or the user's own. Raises ConfigError for senseless options."""
    try:
        return options().run_dir
    except OptionError as error:
        raise ConfigError(str(error), param="MBLT_EMULATOR") from error
