"""Small model packages of each tokenizer family, made here: a BPE of a few hundred tokens plus the small files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from triton_mblt.emulator.demo import find_weights
from triton_mblt.emulator.gguf_source import read_gguf
from triton_mblt.text.tokenizer import TextTokenizer

TEMPLATES = Path(__file__).parent / "templates"
CORPUS = [
    "The quick brown fox jumps over the lazy dog. The model writes a short answer for the user.\n\n",
    "Příliš žluťoučký kůň úpěl ďábelské ódy; ale člověk je zvyklý.\n",
    "안녕하세요, 반갑습니다. 오늘 날씨가 좋습니다. 각각 다른 각도에서 봅니다.\n",
    'def main():\n    print("hello world 12345")\n\n<b>bold</b> {"name": "clock", "arguments": {}}\n',
    "👩‍👩‍👧 😀 😃 🇨🇿 🇰🇷 system user assistant tool\n",
] * 20
# Word splitting in the manner of the Llama-3 and Qwen families.
WORDS = r"'[a-z]{1,2}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _special(*spellings: str) -> list[AddedToken]:
    return [AddedToken(spelling, special=True, normalized=False) for spelling in spellings]


def _byte_level(pre: Any, size: int = 700, specials_first: tuple[str, ...] = ()) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=list(specials_first), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _split_words() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _llama3() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = _byte_level(_split_words())
    tokenizer.add_special_tokens(
        _special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    )
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)]),
        ]
    )
    return tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def _qwen() -> tuple[Tokenizer, dict[str, Any]]:
    tokenizer = _byte_level(_split_words())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(_special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")]
    )
    return tokenizer, {
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "extra_special_tokens": ["<|vision_start|>"],
    }


def _exaone() -> tuple[Tokenizer, dict[str, Any]]:
    specials = ("[PAD]", "[BOS]", "[|endofturn|]", "[|system|]", "[|user|]", "[|assistant|]", "[|tool|]")
    tokenizer = _byte_level(_split_words(), specials_first=specials)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer, {
        "bos_token": {"__type": "AddedToken", "content": "[BOS]"},
        "eos_token": "[|endofturn|]",
        "pad_token": "[PAD]",
    }


def _smollm2() -> tuple[Tokenizer, dict[str, Any]]:
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = _byte_level(pre, specials_first=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return tokenizer, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}


def _metaspace() -> tuple[Tokenizer, dict[str, Any]]:
    """SentencePiece-like: leading space marks, byte fallback, a BOS, a special token that swallows spaces behind it."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS[:1], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([*_special("<unk>", "<s>", "</s>"), AddedToken("<|end|>", rstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


FAMILIES: dict[str, Callable[[], tuple[Tokenizer, dict[str, Any]]]] = {
    "llama3": _llama3,
    "qwen": _qwen,
    "exaone": _exaone,
    "smollm2": _smollm2,
    "metaspace": _metaspace,
}
REAL = "SmolLM2-135M-Instruct"  # the demo model's own tokenizer and template, rebuilt from its GGUF file


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """package(family) -> the folder of a package of that family; made once per session."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            if family == REAL:
                read_gguf(find_weights()).write_tokenizer(folder)
                made[family] = folder
                return folder
            tokenizer, named = FAMILIES[family]()
            tokenizer.save(str(folder / "tokenizer.json"))
            config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True, **named}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            template = TEMPLATES / f"{family}.jinja"
            if template.is_file():
                (folder / "chat_template.jinja").write_text(template.read_text())
            made[family] = folder
        return made[family]

    return make


@pytest.fixture(scope="session")
def load(package: Callable[[str], Path]) -> Callable[[str], TextTokenizer]:
    """load(family) -> the tokenizer of that family, loaded once."""
    loaded: dict[str, TextTokenizer] = {}

    def get(family: str) -> TextTokenizer:
        if family not in loaded:
            loaded[family] = TextTokenizer.load(package(family))
        return loaded[family]

    return get


@pytest.fixture(scope="session")
def reference(package: Callable[[str], Path]) -> Callable[[str], Any]:
    """reference(family) -> transformers' own tokenizer of that package."""
    from transformers import AutoTokenizer

    loaded: dict[str, Any] = {}

    def get(family: str) -> Any:
        if family not in loaded:
            loaded[family] = AutoTokenizer.from_pretrained(package(family))
        return loaded[family]

    return get
