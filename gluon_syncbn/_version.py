"""The version of the package: the one place where it is written down."""

__version__ = "0.3.0"
