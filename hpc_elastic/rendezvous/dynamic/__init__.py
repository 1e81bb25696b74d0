"""The dynamic rendezvous of torch.distributed.elastic over any compare-and-set backend."""
