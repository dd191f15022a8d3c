"""The attention matrix as an object: ``Weights``, its statistics, indexing, rollout and traces."""
