"""Synchronize with the devices of other processes. No other module knows that Horovod does it."""

from .horovod import default, gather, init, register

__all__ = ["default", "gather", "init", "register"]
