"""KV-cache planning: layer specs, grouping, packing, memory need and tensors."""
