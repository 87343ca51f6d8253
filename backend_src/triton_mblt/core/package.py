"""Finding a model package: a folder, or a `mobilint/...` id in the local hub cache (downloaded only when it is not
there)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from triton_mblt.core.errors import ConfigError

_WANTED = ["*.json", "*.jinja", "*.mxq", "*.safetensors", "*.txt", "*.model"]


class PackageConfig(msgspec.Struct, frozen=True):
    """The fields of a package's config.json that this product reads itself (contract 4.1); the zoo reads the rest."""

    model_type: str = ""
    mxq_path: str = ""
    vocab_size: int | None = None
    hidden_size: int | None = None
    max_batch_size: int | dict[str, int] = 1
    core_mode: str | None = None
    npu_prefill_chunk_size: int | float | str | dict[str, int | float | str] | None = None
    eos_token_id: int | list[int] | None = None


def resolve_package(model: str, revision: str = "") -> Path:
    """The folder of a package. Errors: ConfigError(param="model") that says where it was looked for."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ConfigError(
            f"model folder {model!r} does not exist, and it is no hub id of the form owner/name", param="model"
        )
    return _from_hub(model, revision)


def _from_hub(repo: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = revision or None
    try:
        return Path(snapshot_download(repo, revision=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        pass  # not in the cache: the network is the last resort
    try:
        return Path(snapshot_download(repo, revision=wanted, allow_patterns=_WANTED))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        at = f" at revision {revision!r}" if revision else ""
        raise ConfigError(
            f"model {repo!r}{at} is neither a folder nor in the hub cache, and cannot be downloaded: {error}",
            param="model",
        ) from error


def read_config(folder: Path) -> PackageConfig:
    """config.json of a package. Errors: ConfigError naming the file or the field."""
    path = folder / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=PackageConfig)
    except OSError as error:
        raise ConfigError(
            f"{folder} is no model package: cannot read config.json ({error.strerror})", param="model"
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: {error}", param="model") from error
