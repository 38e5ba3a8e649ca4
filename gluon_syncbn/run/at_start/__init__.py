"""The folder that ``gluon-syncbn run`` puts first in PYTHONPATH."""
