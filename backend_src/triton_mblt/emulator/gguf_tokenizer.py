"""Rebuilds the tokenizer of a GGUF file as plain byte-level BPE in Hugging Face's files.

Owns how GGUF's tokens, merges and pre-tokenizer names map to the `tokenizers` library. transformers' own conversion is
not used: it was seen to mix in a sentencepiece decoder and to add a BOS token that the model never saw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from triton_mblt.core.errors import InvalidRequest

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer


class Fields(Protocol):
    """The metadata of a GGUF file."""

    path: Path

    def has(self, key: str) -> bool: ...

    def get(self, key: str, kind: type, default: Any = None) -> Any: ...


@dataclass(frozen=True)
class RebuiltTokenizer:
    """The tokenizer and the settings that go beside it; `token_ids` has the bos, eos and pad ids the file names."""

    tokenizer: Tokenizer
    config: Mapping[str, Any]
    token_ids: Mapping[str, int]

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        text = json.dumps(self.config, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _digits_then_gpt2() -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _split_by(pattern: str) -> Callable[[], PreTokenizer]:
    def make() -> PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return make


def _words_with_digits(digits: str) -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True)
class _Split:
    """How a named pre-tokenizer cuts text for BPE; whether NFC comes first, and whether known words skip the merges."""

    make: Callable[[], PreTokenizer]
    nfc: bool = False
    ignore_merges: bool = False


_SPLITS: Mapping[str, _Split] = {
    "smollm": _Split(_digits_then_gpt2),
    "exaone": _Split(_digits_then_gpt2),
    "gpt-2": _Split(lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "exaone4": _Split(lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama-bpe": _Split(_split_by(_words_with_digits(r"\p{N}{1,3}")), ignore_merges=True),
    "qwen2": _Split(_split_by(_words_with_digits(r"\p{N}")), nfc=True),
}

_CONTROL, _USER_DEFINED = 3, 4


def read_tokenizer(fields: Fields) -> RebuiltTokenizer:
    """Rebuild from metadata. Raises InvalidRequest when the file's tokenizer is not byte-level BPE of a known split."""
    model, pre = fields.get("tokenizer.ggml.model", str), fields.get("tokenizer.ggml.pre", str, "gpt-2")
    if model != "gpt2" or pre not in _SPLITS:
        known = ", ".join(_SPLITS)
        raise InvalidRequest(
            f"{fields.path}: tokenizer {model!r} with split {pre!r} cannot be rebuilt (byte-level BPE with {known} "
            "can); build from the Hugging Face checkpoint",
            param="source",
        )
    tokens: list[str] = fields.get("tokenizer.ggml.tokens", list)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise InvalidRequest(f"{fields.path}: the vocabulary has duplicate tokens", param="source")
    tokenizer = _byte_level_bpe(fields, vocabulary, _SPLITS[pre])
    ids = _special_ids(fields, len(tokens))
    if fields.get("tokenizer.ggml.add_bos_token", bool, False) and "bos_token_id" in ids:
        bos = tokens[ids["bos_token_id"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, ids["bos_token_id"])]
        )
    return RebuiltTokenizer(tokenizer, _settings(fields, tokens, ids), _without_unknown(ids))


def _byte_level_bpe(fields: Fields, vocabulary: dict[str, int], split: _Split) -> Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", list)]
    try:
        bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split.ignore_merges)
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise InvalidRequest(f"{fields.path}: merges do not fit the vocabulary: {error}", param="source") from error
    tokenizer = Tokenizer(bpe)
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split.make()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.get("tokenizer.ggml.token_type", list)
    for token, index in vocabulary.items():
        if kinds[index] in (_CONTROL, _USER_DEFINED):
            special = kinds[index] == _CONTROL
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
    return tokenizer


def _special_ids(fields: Fields, size: int) -> dict[str, int]:
    ids = {}
    for ours, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        key = f"tokenizer.ggml.{theirs}_token_id"
        if fields.has(key):
            value = fields.get(key, int)
            if not 0 <= value < size:
                raise InvalidRequest(f"{fields.path}: {key} {value} is outside the vocabulary", param="source")
            ids[f"{ours}_token_id"] = value
    return ids


def _without_unknown(ids: Mapping[str, int]) -> dict[str, int]:
    return {key: value for key, value in ids.items() if key != "unk_token_id"}


def _settings(fields: Fields, tokens: list[str], ids: Mapping[str, int]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.get(f"{fields.get('general.architecture', str)}.context_length", int),
    }
    settings.update({key.removesuffix("_id"): tokens[value] for key, value in ids.items()})
    if fields.has("tokenizer.chat_template"):
        settings["chat_template"] = fields.get("tokenizer.chat_template", str)
    return settings
