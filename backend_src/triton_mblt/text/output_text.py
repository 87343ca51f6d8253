"""The text of one request's output: detokenizer and stop strings together. This is what the engine calls.

Owns the order of the two and the min_tokens rule. Ids that end a generation silently (EOS, stop_token_ids) are the
engine's: it pushes only what shall become text.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from triton_mblt.text.detokenizer import Detokenizer
from triton_mblt.text.stop import StopChecker, StopStrings
from triton_mblt.text.tokenizer import TextTokenizer


class Piece(msgspec.Struct, frozen=True):
    """New text that may be sent ("" for none yet), and the stop string that ended the text, or None."""

    text: str
    stop_hit: str | None = None


class TextAssembler:
    """One per request; call `finish` once when the generation ends without a stop hit, and nothing after a hit."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        """stop: stop strings; one that spells a special token also stops at that token's id, though its text is hidden.

        Errors: InvalidRequest(param="stop") for an empty string.
        """
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens=skip_special_tokens)
        self._checker = StopChecker(StopStrings(stop), include=include_stop) if stop else None
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._hidden_stops = {
            id_: tokenizer.added_text[id_]
            for id_ in (tokenizer.special_ids if stop and skip_special_tokens else ())
            if tokenizer.added_text[id_] in stop
        }

    @property
    def may_stop(self) -> bool:
        """Whether `push` can hit a stop string, so that its result decides about the next token."""
        return self._checker is not None

    def push(self, ids: Sequence[int], n_generated: int) -> Piece:
        """The text that `ids` complete. `n_generated` counts the generated tokens, `ids` included.

        Tokens up to min_tokens never stop: a stop string counts when its last character comes from a later token.
        After a hit the rest of `ids` is ignored.
        """
        if self._checker is None:
            return Piece(self._detokenizer.push(ids))
        sent = []
        count = n_generated - len(ids)
        for id_ in ids:
            count += 1
            piece = self._checked(self._checker, id_, count > self._min_tokens)
            sent.append(piece.text)
            if piece.stop_hit is not None:
                return Piece("".join(sent), piece.stop_hit)
        return Piece("".join(sent))

    def finish(self) -> str:
        """Everything that was held: an unfinished character (as U+FFFD) and what might have become a stop string.

        The unfinished character completes no stop string that a client could ask for, so there is no hit any more.
        """
        rest = self._detokenizer.finish()
        if self._checker is None:
            return rest
        text, _ = self._checker.feed(rest, check=False)
        return text + self._checker.flush()

    def _checked(self, checker: StopChecker, id_: int, check: bool) -> Piece:
        hidden = self._hidden_stops.get(id_) if check else None
        if hidden is not None:
            return Piece(self.finish() + (hidden if self._include_stop else ""), hidden)
        text, hit = checker.feed(self._detokenizer.push((id_,)), check=check)
        return Piece(text, hit)
