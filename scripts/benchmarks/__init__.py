"""The benchmark: the processes that measure, the cases, and the tables."""
