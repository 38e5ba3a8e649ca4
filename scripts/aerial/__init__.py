"""Semantic segmentation of small aerial scenes: what the demo trains."""
