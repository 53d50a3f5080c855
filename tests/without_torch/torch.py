"""Stands where TVM looks for torch: as if it were not installed."""

raise ModuleNotFoundError("No module named 'torch'", name="torch")
