"""Entry of the Triton model `mblt`; the code is in triton_mblt.triton_io.mblt_model."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("triton_mblt") is None:  # not installed: a checkout has the code beside its repository
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "backend_src"))

from triton_mblt.triton_io.mblt_model import MbltModel as TritonPythonModel

__all__ = ["TritonPythonModel"]
