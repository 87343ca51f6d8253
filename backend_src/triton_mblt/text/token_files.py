"""Reads the small files beside tokenizer.json: named special tokens, tokens to add, end-of-text ids, chat templates.

Owns the file formats (tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json, *.jinja)
and turns them into one frozen `TokenFiles`. Does not know the vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from triton_mblt.core.errors import ConfigError

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_JsonObject = dict[str, Any]


class TokenSpec(msgspec.Struct, frozen=True):
    """One added token as tokenizer_config.json writes it."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class TokenFiles(msgspec.Struct, frozen=True):
    """What the small files say.

    `named` maps bos_token, eos_token ... to spellings; `templates` maps names to sources.
    """

    folder: Path
    named: dict[str, str]
    added: tuple[TokenSpec, ...]
    extra_special: tuple[str, ...]
    eos_ids: tuple[int, ...]
    templates: dict[str, str]


def read_token_files(folder: Path) -> TokenFiles:
    """Errors: ConfigError(param="model") naming the file that is no valid JSON or has a field of the wrong type."""
    config = _read_object(folder / "tokenizer_config.json")
    # A config with its own decoder table supersedes the older special_tokens_map.json.
    legacy = {} if "added_tokens_decoder" in config else _read_object(folder / "special_tokens_map.json")
    merged = {**config, **legacy}
    return TokenFiles(
        folder=folder,
        named={name: spelling for name in NAMED_TOKENS if (spelling := _spelling(merged.get(name)))},
        added=_added_tokens(folder, config.get("added_tokens_decoder", {})),
        extra_special=_extra_special(merged),
        eos_ids=_eos_ids(folder),
        templates=_templates(folder, config.get("chat_template")),
    )


def _read_object(path: Path) -> _JsonObject:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=_JsonObject)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="model") from error


def _spelling(value: object) -> str:
    """A named token is a string or an object with `content`; anything else counts as absent."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _added_tokens(folder: Path, table: object) -> tuple[TokenSpec, ...]:
    try:
        by_id = msgspec.convert(table, dict[str, TokenSpec])
        return tuple(by_id[key] for key in sorted(by_id, key=int))
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"{folder / 'tokenizer_config.json'}: added_tokens_decoder: {error}", param="model"
        ) from error


def _extra_special(merged: _JsonObject) -> tuple[str, ...]:
    extra = merged.get("extra_special_tokens") or merged.get("additional_special_tokens") or []
    values = list(extra.values()) if isinstance(extra, dict) else extra if isinstance(extra, list) else []
    return tuple(spelling for value in values if (spelling := _spelling(value)))


def _eos_ids(folder: Path) -> tuple[int, ...]:
    """generation_config.json decides; config.json only when that says nothing, as in transformers' generate()."""
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder / name).get("eos_token_id")
        if value is None:
            continue
        try:
            return tuple(msgspec.convert([value] if isinstance(value, int) else value, list[int]))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{folder / name}: eos_token_id: {error}", param="model") from error
    return ()


def _templates(folder: Path, in_config: object) -> dict[str, str]:
    """Named chat templates; files win over tokenizer_config.json, which wins over a processor's chat_template.json."""
    from_files: dict[str, str] = {}
    main = folder / "chat_template.jinja"
    if main.is_file():
        from_files["default"] = _read_template(main)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        from_files[path.stem] = _read_template(path)
    if from_files:
        return from_files
    return _named_templates(in_config) or _named_templates(
        _read_object(folder / "chat_template.json").get("chat_template")
    )


def _named_templates(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        return {str(name): source for name, source in value.items() if isinstance(source, str)}
    if isinstance(value, list):
        return {
            str(entry["name"]): str(entry["template"])
            for entry in value
            if isinstance(entry, dict) and "name" in entry and "template" in entry
        }
    return {}


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="model") from error
