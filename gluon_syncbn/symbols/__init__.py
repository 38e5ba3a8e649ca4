"""Networks as symbols: find, fuse, fold and replace their norms, and write them to files."""
