"""Semantic segmentation of small aerial scenes, for the demo."""
