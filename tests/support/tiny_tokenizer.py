"""The smallest real tokenizer: byte-level BPE without merges, so a token is a byte; three special tokens lead."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from triton_mblt.text.tokenizer import TextTokenizer

EOS, USER, ASSISTANT = 0, 1, 2


def write_tokenizer(folder: Path) -> Path:
    """tokenizer.json and tokenizer_config.json: ids 0-2 special (0 is EOS), 3-258 the bytes."""
    specials = ["<|end|>", "<|user|>", "<|assistant|>"]
    words = specials + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return folder


def load_tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.load(write_tokenizer(folder))
