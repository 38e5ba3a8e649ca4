"""Parts of scripts/cost_model.py: what synchronizing adds to a training step."""
