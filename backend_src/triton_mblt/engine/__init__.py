"""The step loop: sequences, slots, scheduling, sampling and text, single-threaded. Knows neither Triton nor
`qbruntime`."""
