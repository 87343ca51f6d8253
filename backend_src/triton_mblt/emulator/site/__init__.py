"""Holds the drop-in `qbruntime`. This folder goes on PYTHONPATH; the file is here so that packaging sees it."""
