"""The models of the repository as Triton's python backend sees them. Everything here runs inside stubs: no torch."""
