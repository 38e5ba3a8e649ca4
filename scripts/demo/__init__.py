"""Parts of the segmentation job: scenes, networks, training and report."""
