"""vecrl: any simulator behind batches of tensors."""

__version__ = "0.1.0"
