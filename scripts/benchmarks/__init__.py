"""The benchmark: processes that measure, what they measure, and what is reported."""
