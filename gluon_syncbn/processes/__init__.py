"""Synchronize with the devices of other processes, over Horovod."""
