"""What the compiler made of the GPU half's kernels, read from the built library."""
