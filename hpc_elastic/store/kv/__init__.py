"""The key-value store with the interface of ``torch.distributed.Store``, without a server."""
