"""Drives the model zoo's caches on whatever `qbruntime` Python finds. Run by the test beside it, in its own process."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
import qbruntime  # noqa: E402
import torch  # noqa: E402
import transformers_mblt  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers_mblt.utils.cache_utils import build_mobilint_cache_from_model  # noqa: E402

MOVES = {"dump": 0}


def counting_dumps() -> None:
    plain = qbruntime.Model.dump_cache_memory

    def counted(self: Any, cache_id: int = 0) -> list[bytes]:
        MOVES["dump"] += 1
        return list(plain(self, cache_id))

    qbruntime.Model.dump_cache_memory = counted


def step(model: Any, tokens: list[int], cache: Any) -> int:
    """Feed tokens behind what the cache holds; the greedy next one."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return int(out.logits[0, -1].argmax())


def follow(model: Any, cache: Any, first: int, count: int) -> list[int]:
    found = [first]
    while len(found) < count:
        found.append(step(model, [found[-1]], cache))
    return found


def alternating(model: Any, caches: list[Any], texts: list[list[int]], count: int) -> list[list[int]]:
    """Two texts on caches of their own that share slot 0, a token of each in turn."""
    found = [[step(model, text, cache)] for text, cache in zip(texts, caches, strict=True)]
    for _ in range(count - 1):
        for tokens, cache in zip(found, caches, strict=True):
            tokens.append(step(model, [tokens[-1]], cache))
    return found


def main() -> None:
    job = json.loads(sys.argv[1])
    texts, count, folder = job["texts"], job["count"], Path(job["folder"])
    folder.mkdir()
    transformers_mblt.register()
    model = AutoModelForCausalLM.from_pretrained(job["package"])
    counting_dumps()
    caches = [build_mobilint_cache_from_model(model, 1) for _ in range(3)]
    answers: dict[str, Any] = {"alternating": alternating(model, caches[:2], texts, count), "moves": MOVES["dump"]}

    first = step(model, texts[0], caches[2])
    copied = caches[2].copy()
    caches[2].layers[0].dump_cache_memory_to(str(folder))
    follow(model, caches[2], 1, count)
    answers["copied"] = follow(model, copied, first, count)
    restored = build_mobilint_cache_from_model(model, 1)
    restored.layers[0].load_cache_memory_from(str(folder))
    answers["from file"] = follow(model, restored, first, count)
    handles = list(model.npu_backend.mxq_models)
    model.dispose()
    answers["disposed"] = all(handle._acc is None for handle in handles)
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
