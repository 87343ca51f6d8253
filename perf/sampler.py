"""Time one step of the sampler beside a straightforward full-sort torch reference, and print a table.

    PYTHONPATH=backend_src python perf/sampler.py [--rounds 15] [--bank FILE.npz]

One thread for both. "realistic" rows have the shape of recorded SmolLM2 steps (the emulator's bank) when its file is
there, else a made-up head of a few likely words over a Gaussian bulk; "flat" rows are Gaussian noise of deviation 0.01,
where top-p alone keeps nine tenths of the vocabulary. The reference sorts the whole batch once, as the general path of
a serving sampler does.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import torch

from triton_mblt.core.sampling_params import SamplingParams
from triton_mblt.engine.sampler import RowSampler, Sampled, sample

Floats = npt.NDArray[np.float32]

ROOT = Path(__file__).resolve().parent.parent
BANK = ROOT / "backend_src/triton_mblt/emulator/site/qbruntime/data/logits_smollm2.npz"
SIZES = ((1, 49_152), (16, 49_152), (1, 128_256), (16, 128_256))
CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "t0.8 p0.9 k50": SamplingParams(temperature=0.8, top_p=0.9, top_k=50),
    "t0.8 p0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "t0.8": SamplingParams(temperature=0.8),
    "t0.8 min_p0.05": SamplingParams(temperature=0.8, min_p=0.05),
}


def realistic(rng: np.random.Generator, rows: int, vocab: int, bank: Path) -> Floats:
    """Rows with the entropy of real steps, each word's place drawn at random."""
    falling = _from_bank(rng, rows, vocab, bank) if bank.exists() else _made_up(rng, rows, vocab)
    return np.stack([line[rng.permutation(vocab)] for line in falling])


def _from_bank(rng: np.random.Generator, rows: int, vocab: int, bank: Path) -> Floats:
    with np.load(bank) as stored:
        curves, ranks, recorded = stored["curves"].astype(np.float32), stored["ranks"], int(stored["vocab"])
    at = np.arange(vocab) * ((recorded - 1) / (vocab - 1)) if vocab > recorded else np.arange(vocab)
    at[: min(512, vocab)] = np.arange(min(512, vocab))  # the head keeps its exact ranks
    picked = curves[rng.integers(len(curves), size=rows)]
    return np.stack([np.interp(np.log1p(at), np.log1p(ranks), curve) for curve in picked]).astype(np.float32)


def _made_up(rng: np.random.Generator, rows: int, vocab: int) -> Floats:
    bulk = rng.normal(0.0, 2.0, (rows, vocab))
    bulk[:, :40] += rng.normal(11.0, 2.0, (rows, 40))
    return -np.sort(-bulk, axis=1).astype(np.float32)


def flat(rng: np.random.Generator, rows: int, vocab: int) -> Floats:
    """Rows in which every word is about as likely as any other."""
    return (rng.standard_normal((rows, vocab)) * 0.01).astype(np.float32)


def reference(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Token ids [n]: sort everything, mask, softmax, draw."""
    if params.greedy:
        return torch.argmax(logits, dim=-1)
    logits = logits / params.temperature
    if params.min_p > 0.0:
        shares = torch.softmax(logits, dim=-1)
        logits = logits.masked_fill(shares < params.min_p * shares.amax(dim=-1, keepdim=True), -torch.inf)
    if params.top_k or params.top_p < 1.0:
        ordered, places = logits.sort(dim=-1, descending=True)
        if params.top_k:
            ordered = ordered.masked_fill(ordered < ordered[:, params.top_k - 1 : params.top_k], -torch.inf)
        if params.top_p < 1.0:
            shares = torch.softmax(ordered, dim=-1)
            before = shares.cumsum(dim=-1) - shares
            ordered = ordered.masked_fill(before >= params.top_p, -torch.inf)
        logits = torch.empty_like(logits).scatter_(1, places, ordered)
    return torch.multinomial(torch.softmax(logits, dim=-1), 1)[:, 0]


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """Median wall time of `call` after two calls to warm up."""
    call()
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e3


def stepper(logits: Floats, params: SamplingParams) -> Callable[[], None]:
    """One step of ours: sample every row and count the tokens."""
    rows = [RowSampler.create(params, (), logits.shape[1], (), (), seed) for seed in range(len(logits))]

    def step() -> None:
        for row, outcome in zip(rows, sample(logits, rows), strict=True):
            assert isinstance(outcome, Sampled), outcome
            row.accept(outcome.token)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bank", type=Path, default=BANK)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(7)
    print("realistic rows:", args.bank.name if args.bank.exists() else "made up (no bank file)")
    print(f"{'rows':>4} {'words':>7} {'logits':>9} {'parameters':>15} {'ours ms':>9} {'reference ms':>12} {'ratio':>7}")
    for rows, vocab in SIZES:
        for kind, logits in (("realistic", realistic(rng, rows, vocab, args.bank)), ("flat", flat(rng, rows, vocab))):
            tensor = torch.from_numpy(logits)
            for name, params in CASES.items():
                ours = median_ms(stepper(logits, params), args.rounds)
                theirs = median_ms(lambda t=tensor, p=params: reference(t, p), args.rounds)  # type: ignore[misc]
                print(f"{rows:>4} {vocab:>7} {kind:>9} {name:>15} {ours:>9.3f} {theirs:>12.2f} {theirs / ours:>7.1f}")


if __name__ == "__main__":
    main()
