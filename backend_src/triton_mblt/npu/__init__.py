"""One loaded MXQ: what it can do (spec) and how to call it (runtime). The only part that touches `qbruntime` and the
model zoo."""
