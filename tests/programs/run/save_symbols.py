"""MXNet alone writes the symbols that load_symbols.py reads."""

import mxnet as mx

norm = mx.sym.contrib.SyncBatchNorm
bn = norm(mx.sym.var("data"), ndev=2, key="k", name="bn", eps=1e-5, attr={"lr_mult": "3"})
both = norm(bn, key="l", name="both", output_mean_var=True)[0]
for name, symbol in (("net", bn), ("left", mx.sym.BatchNorm(both))):
    symbol.save(f"{name}-symbol.json")
