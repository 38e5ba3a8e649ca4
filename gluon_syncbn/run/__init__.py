"""``gluon-syncbn run``: a script of somebody else, with SyncBatchNorm in the place of MXNet's."""
