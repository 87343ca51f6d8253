"""Inference on the emulated runtime: shapes in and out, the native checks, and what a row of logits depends on."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twin import HIDDEN, MAX_CACHE, VOCAB, artefact, configure, embeddings, forget, refused, run

from triton_mblt.emulator.site import qbruntime as q
from triton_mblt.emulator.site.qbruntime._check import fits

TEXT = [5, 3, 9, 1, 7, 7, 2, 30, 41, 8]


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    configure(monkeypatch, tmp_path / "run")
    yield
    forget()


def single(tmp_path: Path, **changes: Any) -> q.Model:
    return q.load(artefact(tmp_path, **changes))


def batch(tmp_path: Path, k: int = 4, **changes: Any) -> q.Model:
    return q.load(artefact(tmp_path, batch=k, **changes))


def whole(model: q.Model, tokens: list[int], slot: int = 0) -> np.ndarray[Any, Any]:
    """Logits after `tokens`, fed in pieces that the model takes."""
    for at in range(0, len(tokens), 12):
        logits = run(model, (tokens[at : at + 12], at, slot))
    return logits[0]


def state(model: q.Model, tokens: list[int], slot: int) -> bytes:
    """What a slot knows after `tokens`: it chooses the logits, of which a tiny vocabulary has too few to compare."""
    whole(model, tokens, slot)
    return model.dump_cache_memory(slot)[0][16 : 16 + 8 * len(tokens)][-8:]


@pytest.mark.parametrize(
    ("given_shape", "declared", "right"),
    [
        ((1, 5, 64), (1, -1, 64), True),
        ((1, 1, 5, 64), (1, -1, 64), True),
        ((2, 1, 8, 64), (1, -4, 64), True),
        ((5, 64), (1, -1, 64), False),
        ((1, 6, 64), (1, -4, 64), False),
        ((1, 0, 64), (1, -1, 64), True),
        ((1, 5, 65), (1, -1, 64), False),
    ],
)
def test_shape_rule(given_shape: tuple[int, ...], declared: tuple[int, ...], right: bool) -> None:
    assert fits(given_shape, declared) is right


@pytest.mark.parametrize(("logits", "rows"), [("last", 1), ("all", 3)])
def test_single_output_has_the_rank_of_the_input(tmp_path: Path, logits: str, rows: int) -> None:
    model = single(tmp_path, logits=logits)
    (four,) = model.infer(embeddings([1, 2, 3]))
    (three,) = model.infer([embeddings([1, 2, 3], rank=3)])
    assert four.shape == (1, 1, rows, VOCAB)
    assert three.shape == (1, rows, VOCAB)
    assert four.dtype == np.float32
    assert np.array_equal(four[0], three)


def test_batch_output_is_rows_for_last_and_packed_tokens_for_all(tmp_path: Path) -> None:
    rows = (([1, 2, 3], 0, 2), ([4], 0, 0))
    assert run(batch(tmp_path), *rows).shape == (2, VOCAB)
    assert run(batch(tmp_path, logits="all"), *rows).shape == (1, 4, VOCAB)


def test_all_positions_end_with_the_last_position(tmp_path: Path) -> None:
    every = run(batch(tmp_path, logits="all"), (TEXT[:4], 0, 1), (TEXT[:2], 0, 0))[0]
    last = run(batch(tmp_path), (TEXT[:4], 0, 1), (TEXT[:2], 0, 0))
    assert np.array_equal(every[[3, 5]], last)
    assert np.array_equal(every[1], every[5])


def test_given_outputs_are_filled_and_nothing_is_returned(tmp_path: Path) -> None:
    model = single(tmp_path)
    (expected,) = model.infer(embeddings([1, 2]))
    given_array, empty = [np.zeros((1, 1, VOCAB), np.float32)], []  # type: ignore[var-annotated]
    assert model.infer(embeddings([1, 2]), given_array) is None
    assert model.infer(embeddings([1, 2]), empty) is None
    assert np.array_equal(given_array[0], expected[0])
    assert np.array_equal(empty[0], expected[0])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([np.zeros((1, 1, VOCAB), np.float32)] * 2, "number of outputs"),
        ([np.zeros((1, 1, VOCAB), np.float64)], "dtype mismatch"),
        ([np.zeros((1, 1, 1, VOCAB), np.float32)], "shape mismatch"),
    ],
)
def test_wrong_outputs_are_value_errors(tmp_path: Path, outputs: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        single(tmp_path).infer(embeddings([1]), outputs)


def test_outputs_of_variable_length_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="negative"):
        single(tmp_path, logits="all").infer(embeddings([1]), [])


def test_inputs_of_wrong_shape_or_type(tmp_path: Path) -> None:
    model = single(tmp_path)
    for wrong in (np.zeros((3, HIDDEN), np.float32), np.zeros((1, 3, HIDDEN + 1), np.float32)):
        with pytest.raises(ValueError, match="Input shape is invalid"):
            model.infer(wrong)
    with pytest.raises(ValueError, match="Input shape is invalid"):
        model.infer([embeddings([1]), embeddings([1])])
    with pytest.raises(TypeError):
        model.infer(embeddings([1]).astype(np.float64))
    with refused("Model_DtypeMismatched"):
        model.infer(embeddings([1]).astype(np.int8))
    with refused("Model_NotSupported"):
        model.infer(np.zeros((2, 1, 3, HIDDEN), np.float32))
    with refused("NotImplemented"):
        model.infer(np.zeros((HIDDEN, 1, 3), np.float32))
    with pytest.raises(ValueError, match="Input shape is invalid"):
        model.infer_hwc(np.zeros((HIDDEN, 1, 3), np.float32))


def test_single_checks(tmp_path: Path) -> None:
    model = single(tmp_path)
    with refused("Model_ShapeMismatched"):
        model.infer(embeddings([]))
    with refused("Model_ShapeMismatched"):
        model.infer(embeddings([1] * 49))
    with refused("Model_CacheOverflow"):
        model.infer(embeddings([1] * 2), None, MAX_CACHE - 1)
    with refused("Model_CacheOverflow"):
        model.infer(embeddings([1]), None, -1)
    with pytest.raises(TypeError):
        model.infer(embeddings([1]), None, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "params", "status"),
    [
        (2, [], "Model_InvalidBatchParam"),
        (2, [(1, 0, 0), (1, 0, 0)], "Model_InvalidBatchParam"),
        (1, [(1, 0, 4)], "Model_InvalidBatchParam"),
        (1, [(1, 0, -1)], "Model_InvalidBatchParam"),
        (1, [(1, -1, 0)], "Model_InvalidBatchParam"),
        (2, [(2, 0, 0), (0, 0, 1)], "Model_InvalidBatchParam"),
        (2, [(3, 0, 0), (-1, 0, 1)], "Model_InvalidBatchParam"),
        (3, [(1, 0, 0), (1, 0, 1)], "Model_InvalidBatchParam"),
        (13, [(13, 0, 0)], "Model_InvalidBatchParam"),
        (5, [(1, 0, n) for n in range(5)], "Model_InvalidBatchParam"),
        (2, [(2, MAX_CACHE - 1, 0)], "Model_CacheOverflow"),
    ],
)
def test_batch_checks(tmp_path: Path, tokens: int, params: list[tuple[int, int, int]], status: str) -> None:
    with refused(status):
        batch(tmp_path).infer([embeddings([1] * tokens)], params=[q.BatchParam(*param) for param in params])


def test_batch_checks_total_width(tmp_path: Path) -> None:
    model = batch(tmp_path, max_width=16)
    run(model, ([1] * 8, 0, 0), ([1] * 8, 0, 1))
    with refused("Model_InvalidBatchParam"):
        run(model, ([1] * 8, 8, 0), ([1] * 9, 8, 1))


def test_a_model_of_several_slots_needs_params(tmp_path: Path) -> None:
    with refused("Model_InvalidBatchParam"):
        batch(tmp_path).infer(embeddings([1]))


def test_limits_themselves_are_allowed(tmp_path: Path) -> None:
    model = batch(tmp_path)
    assert run(model, ([1] * 12, 0, 3), ([1] * 12, 0, 0)).shape == (2, VOCAB)
    for at in range(12, MAX_CACHE - 4, 12):
        run(model, ([1] * 12, at, 3))
    assert not np.isnan(run(model, ([1] * 4, 60, 3))).any()


def test_a_refused_call_changes_nothing(tmp_path: Path) -> None:
    model = batch(tmp_path)
    run(model, (TEXT[:5], 0, 0))
    with refused("Model_CacheOverflow"):
        run(model, (TEXT[5:], 1, 0), ([1], MAX_CACHE, 1))
    assert np.array_equal(run(model, ([2], 5, 0))[0], whole(batch(tmp_path), [*TEXT[:5], 2]))


def test_life_of_a_model(tmp_path: Path) -> None:
    model, acc = q.Model(artefact(tmp_path)), q.Accelerator("aries-rb", 0)
    assert not hasattr(model, "_acc")
    for use in (lambda: model.infer(embeddings([1])), model.dump_cache_memory, lambda: model.load_cache_memory([])):
        with refused("Model_NotLaunched"):
            use()
    model.launch(acc)
    assert model._acc is acc
    with refused("Model_AlreadyLaunched"):
        model.launch(acc)
    model.infer(embeddings([1, 2]))
    model.dispose()
    model.dispose()
    assert model._acc is None
    with refused("Model_NotLaunched"):
        model.infer(embeddings([1]))
    model.launch(acc)
    assert np.isnan(model.infer(embeddings([3]), None, 2)[0]).all()


def test_a_model_is_hashable_and_freed(tmp_path: Path) -> None:
    model = single(tmp_path)
    table = weakref.WeakKeyDictionary({model: 1})
    assert table[model] == 1
    del model
    gc.collect()
    assert len(table) == 0


def test_unwritten_positions_are_poison(tmp_path: Path) -> None:
    model = batch(tmp_path)
    run(model, (TEXT[:4], 0, 1))
    logits = run(model, ([1], 5, 1), ([1], 0, 0), ([1, 2], 1, 2))
    assert np.isnan(logits[[0, 2]]).all()
    assert not np.isnan(logits[1]).any()
    assert not np.isnan(run(model, ([1], 4, 1))).any()
    assert np.isnan(run(model, ([1], 6, 1))).all(), "a write beyond a gap does not fill the gap"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_logits_depend_on_the_text_alone(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """However texts are cut into rows, mixed into calls and put into slots, each gives its own logits."""
    folder = tmp_path_factory.mktemp("model")
    texts = data.draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=4))
    slots = data.draw(st.permutations(range(4)))
    model, done, last = batch(folder), [0] * len(texts), [np.zeros(0)] * len(texts)
    while any(at < len(text) for at, text in zip(done, texts, strict=True)):
        open_rows = [n for n, text in enumerate(texts) if done[n] < len(text)]
        chosen = data.draw(st.lists(st.sampled_from(open_rows), min_size=1, unique=True))
        lengths = [data.draw(st.integers(1, min(12, len(texts[n]) - done[n]))) for n in chosen]
        rows = [
            (texts[n][done[n] : done[n] + size], done[n], slots[n]) for n, size in zip(chosen, lengths, strict=True)
        ]
        for n, size, logits in zip(chosen, lengths, run(model, *rows), strict=True):
            done[n] += size
            last[n] = logits
    alone = batch(folder)
    for text, logits in zip(texts, last, strict=True):
        assert np.array_equal(logits, whole(alone, text))


@settings(max_examples=40, deadline=None)
@given(text=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12), data=st.data())
def test_every_token_and_its_place_matter(text: list[int], data: st.DataObject, tmp_path_factory: Any) -> None:
    model = batch(tmp_path_factory.mktemp("model"))
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.integers(0, VOCAB - 1).filter(lambda token: token != text[place]))
    changed, swapped = [*text[:place], other, *text[place + 1 :]], [text[-1], *text[1:-1], text[0]]
    assert state(model, text, 0) != state(model, changed, 1)
    if swapped != text:
        assert state(model, text, 0) != state(model, swapped, 2)


def test_rewinding_continues_from_the_kept_prefix(tmp_path: Path) -> None:
    model = batch(tmp_path)
    whole(model, TEXT)
    rewound = run(model, ([50, 51], 4, 0))[0]
    assert np.array_equal(rewound, whole(model, [*TEXT[:4], 50, 51], 1))


def test_an_old_tail_behind_a_rewritten_part_is_a_third_text(tmp_path: Path) -> None:
    """A caller that claims more than it wrote after a rewind reads a mixture: neither the old text nor the new one."""
    model = batch(tmp_path)
    whole(model, TEXT)
    run(model, ([50], 4, 0))
    mixed = run(model, ([60], len(TEXT), 0))[0]
    assert not np.array_equal(mixed, whole(model, [*TEXT, 60], 1))
    assert np.array_equal(mixed, whole(model, [*TEXT[:4], 50, *TEXT[5:], 60], 2))
    run(model, (TEXT[4:6], 4, 0))
    assert np.array_equal(run(model, ([60], len(TEXT), 0))[0], whole(model, [*TEXT, 60], 1))


def test_results_stay_while_somebody_holds_them(tmp_path: Path) -> None:
    model = batch(tmp_path)
    kept, copies = [], []
    for token in range(12):
        (logits,) = model.infer([embeddings([token])], params=[q.BatchParam(1, 0, 0)])
        kept.append(logits[0])
        copies.append(logits[0].copy())
        del logits
    assert all(np.array_equal(view, copy) for view, copy in zip(kept, copies, strict=True))


def test_an_output_array_is_used_again_once_it_is_dropped(tmp_path: Path) -> None:
    model = batch(tmp_path)
    places = set()
    for token in range(8):
        (logits,) = model.infer([embeddings([token])], params=[q.BatchParam(1, 0, 0)])
        places.add(logits.__array_interface__["data"][0])
        del logits
    assert len(places) == 1


def test_calls_from_several_threads_do_not_mix(tmp_path: Path) -> None:
    model = batch(tmp_path)
    texts = {slot: [(slot * 17 + n) % VOCAB for n in range(40)] for slot in range(4)}
    found: dict[int, list[int]] = {slot: [] for slot in texts}

    def follow(slot: int) -> None:
        for at, token in enumerate(texts[slot]):
            found[slot].append(int(run(model, ([token], at, slot))[0].argmax()))

    threads = [threading.Thread(target=follow, args=(slot,)) for slot in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for slot, text in texts.items():
        lone = batch(tmp_path)
        assert found[slot] == [int(run(lone, ([token], at, 0))[0].argmax()) for at, token in enumerate(text)]


def test_two_models_share_nothing(tmp_path: Path) -> None:
    one, two = batch(tmp_path), batch(tmp_path)
    whole(one, TEXT)
    assert np.isnan(run(two, ([1], len(TEXT), 0))).all()


def test_end_of_text_is_rare_and_possible(tmp_path: Path) -> None:
    model = batch(tmp_path, config={"eos_token_id": [3]}, max_cache=4096)
    best = [int(run(model, ([(n * n) % VOCAB], n, 0))[0].argmax()) for n in range(4000)]
    assert best.count(3) < 4000 / VOCAB / 4
    assert len(set(best)) > VOCAB * 3 / 4


def test_params_are_taken_by_a_model_of_one_slot(tmp_path: Path) -> None:
    model = single(tmp_path)
    (expected,) = model.infer(embeddings(TEXT))
    assert np.array_equal(run(model, (TEXT, 0, 0)), expected[0, 0])


def test_shapes_buffers_and_variants(tmp_path: Path) -> None:
    for (k, logits), (rows, width) in zip(
        itertools.product((1, 4), ("last", "all")), [(1, 1), (-1, 48), (-1, 4), (-1, 48)], strict=True
    ):
        model = q.Model(artefact(tmp_path, batch=k, logits=logits))
        handle = model.get_model_variant_handle(0)
        assert model.get_model_input_shape() == handle.get_model_input_shape() == [(1, -1, HIDDEN)]
        assert model.get_model_output_shape() == handle.get_model_output_shape() == [(1, rows, VOCAB)]
        (info,), (out) = model.get_input_buffer_info(), model.get_output_buffer_info()
        assert (info.max_width, info.max_cache_size, info.max_channel) == (48, MAX_CACHE, HIDDEN)
        assert out[0].max_width == width
        assert model.get_model_input_data_type() is q.DataType.Float32
        with refused("Model_InvalidVariantIdx"):
            model.get_model_variant_handle(1)


def test_identifiers_count_up(tmp_path: Path) -> None:
    path = artefact(tmp_path)
    first, second = q.Model(path), q.Model(path)
    assert second.get_identifier() == first.get_identifier() + 1
    assert first.get_model_path() == path
