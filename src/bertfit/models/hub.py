"""Where a model is: a folder on this disk, or an id of the model hub.

A folder on disk touches no network, and neither does a model that the local cache has whole.
"""

import os
from pathlib import Path

from bertfit.errors import ModelError
from bertfit.language import _

HUB_TIMEOUT_SECONDS = 5
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]


def find_model(name: str | Path) -> Path:
    """Return the folder of a model given as run folder, model folder or hub id.

    A folder on disk touches no network. A hub id is taken from the local cache if it is whole
    there, else downloaded.

    Raises:
        ModelError: no such folder, not a model folder, or the hub cannot be reached.
    """
    name = str(name)
    path = Path(name)
    if os.path.isdir(path):  # no, too, for a name that is too long: a Path raises
        inside = path / "model"
        folder = inside if (inside / "config.json").is_file() else path
        if not (folder / "config.json").is_file():
            raise ModelError(
                _(
                    "{path}: holds no config.json, so it is not a model folder. Give the folder of "
                    "a run, of a Hugging Face checkpoint, or a hub id."
                ).format(path=path)
            )
        return folder
    if (
        path.is_absolute()
        or name.startswith((".", "~"))
        or name.count("/") > 1
        or os.path.exists(path)
    ):
        raise ModelError(_("{path}: there is no such folder.").format(path=name))
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
    except errors.HFValidationError:
        raise ModelError(
            _(
                "'{name}' is neither a folder nor a hub id such as 'hfl/chinese-macbert-base'."
            ).format(name=name)
        ) from None
    try:
        cached = Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
        if (cached / "config.json").is_file() and any(cached.glob("*.safetensors")):
            return cached
    except errors.LocalEntryNotFoundError:
        pass
    try:
        reachable = _probe_hub()
        if reachable:
            return Path(
                snapshot_download(name, allow_patterns=_WANTED, etag_timeout=HUB_TIMEOUT_SECONDS)
            )
    except errors.RepositoryNotFoundError:
        raise ModelError(
            _(
                "'{name}': the hub has no such model, or it needs a login (`hf auth login`). Check "
                "the spelling."
            ).format(name=name)
        ) from None
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError):
        pass
    raise ModelError(
        _(
            "'{name}': not on this disk, and the model hub {endpoint} cannot be reached. Ways out: "
            "set HF_ENDPOINT to a mirror (HF_ENDPOINT=https://hf-mirror.com); or `pip install "
            "modelscope` and `modelscope download --model {name} --local_dir FOLDER`; or copy the "
            "model from another machine. Then name that folder instead."
        ).format(name=name, endpoint=huggingface_hub.constants.ENDPOINT)
    )


def _probe_hub() -> bool:
    """Ask for a connection to the hub, once and shortly: the client's own retries take minutes."""
    import socket
    from urllib.parse import urlsplit

    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    proxies = any(os.environ.get(n) for n in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    if proxies:
        return True
    address = urlsplit(huggingface_hub.constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), HUB_TIMEOUT_SECONDS).close()
    except OSError:
        return False
    return True
