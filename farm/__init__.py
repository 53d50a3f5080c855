"""farm: a device farm for neural networks, over Apache TVM's RPC."""

__version__ = "0.1.0"
