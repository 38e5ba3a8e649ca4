"""What ``python -m gluon_syncbn diagnose`` finds out about an installation."""
