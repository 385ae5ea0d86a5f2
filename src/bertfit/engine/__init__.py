"""The step and what it stands on: precision, optimizer, batches on a device."""
