"""What the checks and benchmarks for GPUs are made of; needs no MXNet."""
