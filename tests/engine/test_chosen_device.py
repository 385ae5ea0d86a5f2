"""Devices by name."""

import pytest
import torch

from bertfit.engine.device import choose_device
from bertfit.errors import ConfigError


def test_the_processor_has_no_number() -> None:
    assert choose_device("cpu") == choose_device("cpu:0") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"--device cpu:3: there is only one\. Use --device cpu"):
        choose_device("cpu:3")
