from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from triton_mblt.core.errors import ConfigError, InvalidRequest
from triton_mblt.text.tokenizer import TextTokenizer

FAMILIES = ["llama3", "qwen", "exaone", "smollm2", "metaspace", "SmolLM2-135M-Instruct"]
SAMPLES = [
    "",
    "Hello, world!  It's   12345\r\n\n\t x",
    "Příliš žluťoučký kůň 각하 👩‍👩‍👧 e\u0301 \u1100\u1161\u11a8",
    "a\0b \ufffd \ufeff \u2028",
    "<|im_start|>user\nhi<|im_end|><|eot_id|>[|user|]<think>x</think></s><|end|>   y",
]
unicode_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_autotokenizer(
    load: Callable[[str], TextTokenizer], reference: Callable[[str], Any], family: str
) -> None:
    ours, theirs = load(family), reference(family)
    for text in SAMPLES:
        for add in (True, False):
            ids = theirs(text, add_special_tokens=add)["input_ids"]
            assert ours.encode(text, add_special_tokens=add) == ids, text
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_id == theirs.bos_token_id
    assert ours.eos_ids == (theirs.eos_token_id,)
    assert ours.special_ids >= set(theirs.all_special_ids)


def test_bos_comes_from_the_post_processor_and_only_once(load: Callable[[str], TextTokenizer]) -> None:
    llama, qwen, smol = load("llama3"), load("qwen"), load("smollm2")
    assert llama.encode("hi")[0] == llama.bos_id
    assert llama.encode("<|begin_of_text|>hi") == llama.encode("hi")
    assert smol.encode("hi") == smol.encode("hi", add_special_tokens=False)
    assert qwen.bos_id is None


def test_tokens_that_only_the_small_files_know_are_added(load: Callable[[str], TextTokenizer]) -> None:
    qwen = load("qwen")
    ids = qwen.encode("<|vision_start|>")
    assert len(ids) == 1
    assert ids[0] in qwen.special_ids
    assert qwen.vocab_size == ids[0] + 1


def test_eos_ids_join_generation_config_and_the_tokenizers_own(package: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(package("llama3"), tmp_path / "p")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.eos_ids == (5, 7, tokenizer.eos_id)
    (folder / "generation_config.json").unlink()
    assert TextTokenizer.load(folder).eos_ids == (9, tokenizer.eos_id)


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_text_never_gives_special_ids(load: Callable[[str], TextTokenizer], family: str) -> None:
    tokenizer = load(family)
    for id_ in tokenizer.special_ids:
        text = f"x {tokenizer.added_text[id_]}  y"
        assert id_ in tokenizer.encode(text)
        plain = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
        assert tokenizer.special_ids.isdisjoint(plain)
        assert tokenizer.decode(plain, skip_special_tokens=False) == text


@pytest.mark.parametrize("family", FAMILIES)
@given(text=unicode_text)
@example("  leading and trailing  ")
@example("\u1100\u1161\u11a8 e\u0301")
@settings(max_examples=50, deadline=None)
def test_plain_and_special_agree_on_text_without_spellings(
    load: Callable[[str], TextTokenizer], family: str, text: str
) -> None:
    tokenizer = load(family)
    assert tokenizer.encode(text, allow_special=False) == tokenizer.encode(text, allow_special=True)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=unicode_text | st.sampled_from(["a" * 500, " " * 500, "각" * 200, "\u1100\u1161\u11a8" * 50]))
@settings(max_examples=50, deadline=None)
def test_fewest_tokens_is_a_lower_bound(load: Callable[[str], TextTokenizer], family: str, text: str) -> None:
    tokenizer = load(family)
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_fewest_tokens_is_of_use(load: Callable[[str], TextTokenizer]) -> None:
    tokenizer = load("llama3")
    assert tokenizer.fewest_tokens("hello " * 1000) >= 6000 // tokenizer.longest_token_bytes
    assert load("metaspace").fewest_tokens("hello " * 1000) == 0  # unknown characters may share a token


def test_refuses_by_name_what_cannot_be_encoded(package: Callable[[str], Path]) -> None:
    tokenizer = TextTokenizer.load(package("qwen"), max_text_bytes=10)
    assert tokenizer.encode("0123456789")
    for text in ("0123456789a", "각각각각", "a\ud800"):
        with pytest.raises(InvalidRequest) as error:
            tokenizer.encode(text, param="prompt")
        assert error.value.param == "prompt"
    assert "10" in str(tokenizer_error(tokenizer, "x" * 11))
    assert "lone surrogate at character 1" in str(tokenizer_error(tokenizer, "a\udfff"))


def tokenizer_error(tokenizer: TextTokenizer, text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        tokenizer.encode(text)
    return error.value


def test_broken_packages_name_the_file(package: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        TextTokenizer.load(tmp_path)
    folder = shutil.copytree(package("smollm2"), tmp_path / "p")
    good = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(good[: len(good) // 2])
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TextTokenizer.load(folder)
    (folder / "tokenizer.json").write_text(good)
    for name, text in (
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": {"content": 5}}}'),
        ("generation_config.json", '{"eos_token_id": "two"}'),
    ):
        kept = (folder / name).read_text() if (folder / name).is_file() else None
        (folder / name).write_text(text)
        with pytest.raises(ConfigError, match=name):
            TextTokenizer.load(folder)
        (folder / name).write_text(kept) if kept else (folder / name).unlink()


def test_truncation_and_padding_of_the_file_are_ignored(package: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(package("smollm2"), tmp_path / "p")
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    assert len(TextTokenizer.load(folder).encode("one two three four five six")) > 3


def test_threads_share_one_tokenizer(package: Callable[[str], Path]) -> None:
    tokenizer = TextTokenizer.load(package("qwen"))
    texts = [f"thread {n} says <|im_end|> 각 {n * n}" for n in range(40)] * 10

    def work(text: str) -> tuple[list[int], list[int], str]:
        ids = tokenizer.encode(text)
        return ids, tokenizer.encode(text, allow_special=False), tokenizer.decode(ids, skip_special_tokens=False)

    alone = [work(text) for text in texts[:40]]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, texts)) == alone * 10
