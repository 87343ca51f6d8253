"""The NPU worker process, its pipe protocol, and the supervisor that lives in the LM stub."""
