"""Starts, watches and stops the embedded tritonserver; diagnoses a machine; generates repositories.

Knows nothing of requests, tokens or the NPU. The model repository never depends on it.
"""
