"""Whether a sampled token ends its answer. Runs between two device calls, so it does only what decides that."""

from __future__ import annotations

from triton_mblt.engine.sampler import Sampled
from triton_mblt.engine.saying import Ending, Saying
from triton_mblt.engine.turn import Turn


def judge_token(turn: Turn, result: Sampled) -> Saying:
    """What to say about a token that the turn just appended. Its text is made here only if a stop string may end it."""
    sampling, token = turn.request.sampling, result.token
    is_eos, is_asked = token in turn.stop_ids.eos, token in turn.stop_ids.asked
    stops_by_id = is_eos or is_asked
    shown = () if stops_by_id and not sampling.include_stop_str_in_output else (token,)
    piece = turn.text.push(shown, turn.generated) if turn.text.may_stop else None
    ending = None
    if stops_by_id:
        ending = Ending("stop", token if is_asked else None, flush=True)
    elif piece is not None and piece.stop_hit is not None:
        ending = Ending("stop", piece.stop_hit, flush=False)
    elif turn.generated >= turn.limit:
        ending = Ending("length", None, flush=True)
    return Saying(turn, result, shown, None if piece is None else piece.text, turn.generated == 1, ending)
