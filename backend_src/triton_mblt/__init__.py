"""Serves language models on Mobilint NPUs behind Triton Inference Server."""

__version__ = "0.1.0"
