"""What tells one model from another, without reading its weights."""

from pathlib import Path

from bertfit.models.hub import find_model


def model_identity(name: str) -> str:
    """Return folder, size and time of a model's weights: others after any training."""
    folder = find_model(name)
    weights = sorted(folder.glob("*.safetensors"))
    stats = [path.stat() for path in weights]
    size = sum(stat.st_size for stat in stats)
    newest = max((stat.st_mtime_ns for stat in stats), default=0)
    return f"{Path(folder).resolve()}:{size}:{newest}"
