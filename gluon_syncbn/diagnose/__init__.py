"""The command ``python -m gluon_syncbn diagnose``."""
