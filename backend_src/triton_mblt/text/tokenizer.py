"""The tokenizer of a model package: text to ids and back, and what the rest must know about its vocabulary.

Follows tokenizer.json (its post-processor decides about BOS and EOS, as in transformers' AutoTokenizer). Immutable
once loaded, so threads share it. Does not know templates, requests or
streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from triton_mblt.core.errors import ConfigError, InvalidRequest
from triton_mblt.text.plain_twin import PlainTwin, ids_of
from triton_mblt.text.special_spelling import SpecialSpelling
from triton_mblt.text.token_bytes import BYTE_OF_CHAR, TokenBytes
from triton_mblt.text.token_files import TokenFiles, TokenSpec, read_token_files

DEFAULT_MAX_TEXT_BYTES = 8 * 1024 * 1024
_LOSSLESS_PRE_TOKENIZERS = {"ByteLevel", "Split", "Digits"}


class TextTokenizer:
    """`load` is the only way to make one.

    vocab_size: highest id with a text + 1; rows of the logits from there on have no text and must never be sampled.
    eos_ids: ids that end a generation (generation_config, else config, then the tokenizer's own eos_token).
    special_ids: ids hidden by skip_special_tokens.
    token_bytes: token_bytes(id) -> the bytes of one token.
    """

    def __init__(self, backend: Tokenizer, files: TokenFiles, max_text_bytes: int) -> None:
        self.backend = backend
        self.files = files
        self.max_text_bytes = max_text_bytes
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.added_text = {id_: token.content for id_, token in added.items()}
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.bos_id = self._named_id("bos_token")
        self.eos_id = self._named_id("eos_token")
        own_eos = () if self.eos_id is None else (self.eos_id,)
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(files.eos_ids + own_eos))
        self.token_bytes = TokenBytes(backend)
        self._prefix, self._suffix = _ids_around(backend)

    @classmethod
    def load(cls, folder: Path | str, *, max_text_bytes: int = DEFAULT_MAX_TEXT_BYTES) -> TextTokenizer:
        """Errors: ConfigError(param="model") naming the file that is missing or broken."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{folder} has no tokenizer.json", param="model")
        files = read_token_files(folder)
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # the only type that tokenizers raises
            raise ConfigError(f"cannot read {path}: {error}", param="model") from error
        backend.no_truncation()
        backend.no_padding()
        _add_missing(backend, files)
        return cls(backend, files, max_text_bytes)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, allow_special: bool = True, param: str = "text_input"
    ) -> list[int]:
        """Ids of a text.

        add_special_tokens: the BOS/EOS of the package's post-processor; a text that spells its BOS itself gets no
        second one. allow_special: spellings of special tokens become their ids (transformers' rule); else they stay
        plain text. Errors: InvalidRequest(param) for lone surrogates or more than max_text_bytes. NUL is ordinary text.
        """
        self.check_text(text, param)
        if allow_special:
            ids = ids_of(self.backend, text)
        else:
            ids = self._twin.encode_plain(text, param)
        if not add_special_tokens:
            return ids
        size = len(self._prefix)
        return (ids if ids[:size] == self._prefix else self._prefix + ids) + self._suffix

    def encode_guarded(self, text: str, reveal: Callable[[str], str], *, param: str = "messages") -> list[int]:
        """Ids of a rendered chat: special tokens in `text` are the template's, what `reveal` puts back is plain text.

        No BOS is added: templates write their own. Same ids as `encode(text, add_special_tokens=False)` when the
        caller's content spells no special token.
        """
        self.check_text(text, param)
        return self._twin.encode_plain(reveal(self._twin.rename_specials(text)), param)

    def check_text(self, text: str, param: str) -> None:
        """Refuses what cannot be encoded. Errors: InvalidRequest(param)."""
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{param} has a lone surrogate at character {error.start}", param=param) from error
        if size > self.max_text_bytes:
            raise InvalidRequest(f"{param} has {size} bytes, the limit is {self.max_text_bytes}", param=param)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """One-shot text of ids; ids without a text are dropped.

        Never cleans up spaces (a transformers option for WordPiece).
        """
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of ids of `text`, at the cost of a copy: a hopeless prompt needs no encoding.

        0 for a vocabulary of which no bound is known.
        """
        if not self._keeps_bytes:
            return 0
        normalizer = self.backend.normalizer
        written = text if normalizer is None else normalizer.normalize_str(text)
        kept = written.encode("utf-8").translate(None, delete=self._dropped_bytes)
        return -(-len(kept) // self.longest_token_bytes)

    @cached_property
    def spelling(self) -> SpecialSpelling:
        return SpecialSpelling(self.added_text[id_] for id_ in self.special_ids)

    @cached_property
    def longest_token_bytes(self) -> int:
        """Upper bound of the text bytes that one token stands for (of the normalised text, without stripped spaces)."""
        sizes = [
            len(token) if self.token_bytes.byte_level else len(token.encode())
            for token in self.backend.get_vocab(False)
        ]
        return max([*sizes, *(len(text.encode()) for text in self.added_text.values()), 1])

    @cached_property
    def _keeps_bytes(self) -> bool:
        """Whether every byte that the vocabulary knows ends up in a token; tokens that swallow spaces around them
        forbid it."""
        added = self.backend.get_added_tokens_decoder().values()
        swallows = any(token.lstrip or token.rstrip for token in added)
        return (
            self.token_bytes.byte_level
            and not swallows
            and _pre_tokenizer_kinds(self.backend) <= _LOSSLESS_PRE_TOKENIZERS
        )

    @cached_property
    def _dropped_bytes(self) -> bytes:
        """Bytes without a token: the model leaves them out (SmolLM2 has none for 0x04 and some others)."""
        return bytes(byte for char, byte in BYTE_OF_CHAR.items() if self.backend.token_to_id(char) is None)

    @cached_property
    def _twin(self) -> PlainTwin:
        return PlainTwin(self.backend, self.spelling)

    def _named_id(self, name: str) -> int | None:
        spelling = self.files.named.get(name)
        return None if spelling is None else self.backend.token_to_id(spelling)


def _add_missing(backend: Tokenizer, files: TokenFiles) -> None:
    """Tokens that only the small files know, in the order in which transformers adds them."""
    present = {_spec(token) for token in backend.get_added_tokens_decoder().values()}
    for spec in files.added:
        if spec not in present:
            add = backend.add_special_tokens if spec.special else backend.add_tokens
            add([AddedToken(**{name: getattr(spec, name) for name in spec.__struct_fields__})])
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for spelling in (*files.named.values(), *files.extra_special):
        if spelling not in known:
            backend.add_special_tokens([AddedToken(spelling, special=True, normalized=False)])
            known.add(spelling)


def _spec(token: AddedToken) -> TokenSpec:
    return TokenSpec(token.content, token.single_word, token.lstrip, token.rstrip, token.normalized, token.special)


def _pre_tokenizer_kinds(backend: Tokenizer) -> set[str]:
    """The steps by name; a split that removes what it matches counts as a kind of its own."""
    if backend.pre_tokenizer is None:
        return set()
    shape = json.loads(backend.pre_tokenizer.__getstate__())
    steps = shape["pretokenizers"] if shape["type"] == "Sequence" else [shape]
    return {"Remove" if step.get("behavior") == "Removed" else step["type"] for step in steps}


def _ids_around(backend: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and behind a text."""
    inner = list(backend.encode("a", add_special_tokens=False).ids)
    outer = list(backend.encode("a", add_special_tokens=True).ids)
    extra = len(outer) - len(inner)
    for start in range(extra + 1):
        if outer[start : start + len(inner)] == inner:
            return outer[:start], outer[start + len(inner) :]
    raise ConfigError("tokenizer.json: the post-processor changes the ids of a text", param="model")
