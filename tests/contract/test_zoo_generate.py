"""The model zoo's own generate(), unchanged, on the emulated runtime gives the tokens of plain transformers.

Runs in processes of their own, with the emulator's folder first on PYTHONPATH, as a worker does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import EOS, FAMILY_NAMES, greedy, reference_model, tiny_package

SITE = Path(__file__).parents[2] / "backend_src" / "triton_mblt" / "emulator" / "site"
COUNT = 16
# Longer than one call's 16 tokens, exactly one call, one token more, and a single token.
LENGTHS = (39, 16, 17, 1)

SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import qbruntime
assert qbruntime.__file__.startswith(sys.argv[2]), qbruntime.__file__
import torch, transformers_mblt
from transformers import AutoModelForCausalLM
transformers_mblt.register()
job = json.load(open(sys.argv[1]))
answers = []
for package, calls in job["work"]:
    model = AutoModelForCausalLM.from_pretrained(package)
    for call in calls:
        ids, mask = torch.tensor(call["ids"]), torch.tensor(call["mask"])
        out = model.generate(ids, attention_mask=mask, max_new_tokens=job["count"], do_sample=False)
        answers.append(out[:, len(call["ids"][0]):].tolist())
    model.dispose()
print(json.dumps(answers))
"""


def run_zoo(folder: Path, work: list[tuple[Path, list[dict[str, Any]]]]) -> list[list[list[int]]]:
    """generate() for every call of every package, in one process on the emulated runtime."""
    job = folder / "job.json"
    job.write_text(json.dumps({"count": COUNT, "work": [(str(package), calls) for package, calls in work]}))
    env = {**os.environ, "PYTHONPATH": str(SITE), "MBLT_EMULATOR_RUN_DIR": str(folder / "run"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(job), str(SITE)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[list[list[int]]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(3, 260, length).tolist() for length in LENGTHS]


def single(ids: list[int]) -> dict[str, Any]:
    return {"ids": [ids], "mask": [[1] * len(ids)]}


def left_padded(texts: list[list[int]]) -> dict[str, Any]:
    width = max(map(len, texts))
    return {
        "ids": [[EOS] * (width - len(text)) + text for text in texts],
        "mask": [[0] * (width - len(text)) + [1] * len(text) for text in texts],
    }


def until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.mark.slow
@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize("batch", [1, 4])
def test_generate_gives_the_tokens_of_plain_transformers(tmp_path: Path, batch: int, logits: Any) -> None:
    texts = prompts()
    calls = [single(text) for text in texts] + ([left_padded(texts)] if batch > 1 else [])
    work = [(tiny_package(family, tmp_path, batch=batch, logits=logits), calls) for family in FAMILY_NAMES]
    answers = run_zoo(tmp_path, work)
    for index, family in enumerate(FAMILY_NAMES):
        reference = reference_model(family)
        expected = [greedy(reference, text, COUNT) for text in texts]
        got = answers[index * len(calls) : (index + 1) * len(calls)]
        rows = [row for answer in got for row in answer]
        assert [until_eos(row) for row in rows] == expected * (len(rows) // len(texts)), family
