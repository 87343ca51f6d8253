"""A second tokenizer over the same model in which special tokens have unguessable names.

Text of a caller can never spell a special token there; the chat template's own tokens are renamed before encoding, so
one pass over the whole prompt splits, normalises and merges exactly as the plain tokenizer does. Owns the renaming
and the way back to real ids. Shares the vocabulary and merges with the main tokenizer, so it costs little memory.
"""

from __future__ import annotations

import re
import secrets

from tokenizers import AddedToken, Tokenizer

from triton_mblt.core.errors import ConfigError, InvalidRequest
from triton_mblt.text.special_spelling import SpecialSpelling


class PlainTwin:
    """Built once per tokenizer; immutable after that, so any number of threads may encode."""

    def __init__(self, main: Tokenizer, spelling: SpecialSpelling) -> None:
        self._spelling = spelling
        self._twin = Tokenizer(main.model)
        if main.normalizer is not None:
            self._twin.normalizer = main.normalizer
        if main.pre_tokenizer is not None:
            self._twin.pre_tokenizer = main.pre_tokenizer
        self._renamed: dict[str, str] = {}
        self._real_id: dict[int, int] = {}
        self._add_tokens(main)
        special_ids = {id_ for id_, token in main.get_added_tokens_decoder().items() if token.special}
        # Specials that the model itself can produce from plain text (a vocabulary piece "<s>"): refused after encoding.
        self._reachable = {id_ for id_ in special_ids if main.model.id_to_token(id_) is not None}

    def _add_tokens(self, main: Tokenizer) -> None:
        """Adds every added token of `main` in id order, the special ones under a new name, and learns the id
        mapping."""
        nonce = secrets.token_hex(8)
        for real_id, token in sorted(main.get_added_tokens_decoder().items()):
            name = token.content
            if token.special:
                name = f"\U000f0000{nonce}{len(self._renamed):05d}\U000f0001"
                self._renamed[token.content] = name
            copy = AddedToken(
                name,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
            self._twin.add_special_tokens([copy]) if token.special else self._twin.add_tokens([copy])
            twin_id = self._twin.token_to_id(name)
            if twin_id is None or (token.special and main.model.id_to_token(twin_id) is not None):
                raise ConfigError(
                    f"tokenizer.json: cannot set {token.content!r} apart from the vocabulary", param="model"
                )
            if twin_id != real_id:
                self._real_id[twin_id] = real_id

    def encode_plain(self, text: str, param: str) -> list[int]:
        """Ids of `text` with no special token parsed."""
        found = ids_of(self._twin, text)
        if self._reachable and not self._reachable.isdisjoint(found):
            raise InvalidRequest(
                f"{param} spells a special token that this vocabulary cannot write as plain text", param=param
            )
        if not self._real_id:
            return found
        return [self._real_id.get(id_, id_) for id_ in found]

    def rename_specials(self, text: str) -> str:
        """`text` with every special token's spelling replaced by its name in the twin."""
        return self._spelling.whole.sub(self._new_name, text)

    def _new_name(self, found: re.Match[str]) -> str:
        return self._renamed[found[0]]


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids without BOS and EOS. Through the batch call: only that releases the GIL, and 1 MB takes about a second."""
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
