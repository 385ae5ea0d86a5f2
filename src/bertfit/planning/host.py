"""What a job on a card holds of the host's memory: the process, and copies of the model.

The data are not counted: they are read by the job, not by the estimate.
"""

from torch import nn

from bertfit.engine.fence import snapshot_bytes
from bertfit.engine.host_state import held_bytes
from bertfit.engine.optim import STATE_BYTES
from bertfit.models.rows import RowEmbedding
from bertfit.planning.levers import Settings, TrainSettings

_FP32_BYTES = 4

# What a process holds of its own: Python, torch with its CUDA libraries, transformers, tokenizer.
# The most of a run of a model of 0.5 million weights, by benchmarks/host_memory.py on Linux with
# torch 2.14.1 (CUDA 13) on the stub runtime; a driver adds what it keeps.
TRAIN_RUNTIME_BYTES = 1_199_153_152
INFERENCE_RUNTIME_BYTES = 856_363_008


def host_bytes(model: nn.Module, settings: Settings, state_bytes: int) -> int:
    """Return the most host memory that a job holds at once, in bytes.

    Measured, for 137 million weights with a vocabulary of 67,748: training 3,055 MB, prediction
    1,565 MB; this says 3,191 and 1,576.

    Args:
        model: from `planning.program.prepare`.
        settings: the levers.
        state_bytes: of the optimizer's state.
    """
    rows = [part for part in model.modules() if isinstance(part, RowEmbedding)]
    tables = sum(part.table[0].numel() - part.weight.numel() for part in rows)
    # Weights are read as fp32, whatever they become.
    loaded = _FP32_BYTES * (sum(p.numel() for p in model.parameters()) + tables)
    if not isinstance(settings, TrainSettings):
        halves = [p for p in model.parameters() if p.element_size() < _FP32_BYTES]
        return INFERENCE_RUNTIME_BYTES + loaded + sum(p.nbytes for p in halves)
    # All the time there are the whole table and, where any are wanted, the copy that checkpoints
    # are written from. Saving the model puts the table together once more, and takes the weights
    # from the card.
    table = _FP32_BYTES * sum(part.table[0].numel() for part in rows)
    if settings.host_state:
        # Saved from where it lies; in fp32, whatever the card has.
        trained = [p for p in model.parameters() if p.requires_grad]
        state_bytes = int(STATE_BYTES[settings.optimizer] * sum(p.numel() for p in trained))
        state_bytes += sum(_FP32_BYTES * p.numel() - p.nbytes for p in trained)
        loaded = held_bytes(model, settings.optimizer)
    copied = snapshot_bytes(model, state_bytes) if settings.saves else 0
    return TRAIN_RUNTIME_BYTES + 2 * table + copied + loaded
