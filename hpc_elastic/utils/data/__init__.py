"""Going through data for several epochs, from where an earlier start has stopped."""

from __future__ import annotations

from hpc_elastic.utils.data.cycling_iterator import CyclingIterator
from hpc_elastic.utils.data.elastic_distributed_sampler import ElasticDistributedSampler

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]
