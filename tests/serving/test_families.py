"""Every text family behind the real worker: greedy tokens equal transformers', around the chunk limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from greedy import greedy_answer
from lm_service import greedy_all_at_once
from tiny_models import FAMILY_NAMES, reference_model, tiny_package

from triton_mblt.core.settings import Settings

COUNT = 12
SLOTS = 4


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MBLT_EMULATOR_RUN_DIR", str(tmp_path))
    return tmp_path_factory.getbasetemp() / "families"


def prompts_around(chunk: int) -> list[list[int]]:
    lengths = [1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1]
    return [
        [3 + (11 * n + 7 * place + place * place) % 250 for place in range(length)] for n, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(
    ("family", "chunk", "batch", "logits"),
    [
        *[(family, 16, SLOTS, "last") for family in FAMILY_NAMES],
        ("llama", 31, SLOTS, "all"),
        ("llama", 128, SLOTS, "last"),
        ("qwen3", 31, 1, "last"),
        ("exaone4", 16, 1, "all"),
    ],
)
def test_greedy_tokens_equal_transformers(folder: Path, family: str, chunk: int, batch: int, logits: str) -> None:
    package = tiny_package(family, folder, batch=batch, max_cache=288, chunk=128, logits=logits)  # type: ignore[arg-type]
    prompts = prompts_around(chunk)
    got = greedy_all_at_once(Settings(model=str(package), npu="emulated", prefill_chunk=chunk), prompts, COUNT)
    model = reference_model(family)
    for prompt, tokens in zip(prompts, got, strict=True):
        greedy_answer(model, prompt, COUNT, stop_at_eos=False).check(tokens, f"{family}, {len(prompt)} tokens")
