"""`python -m triton_mblt` is the command `triton-mblt`."""

import sys

from triton_mblt.cli import main

sys.exit(main())
