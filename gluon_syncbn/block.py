"""The Gluon block."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import gluon

from . import processes
from .activations import ACTIVATIONS
from .arguments import find_problem
from .library import LIBRARY
from .mxnet_versions import IS_2, context_of, custom_operator, is_tracing
from .naming import Identity, Named

OP_TYPE = "SyncBatchNorm"
SHARED_ATTRIBUTES = ("axis", "eps", "momentum", "fix_gamma", "use_global_stats")  # BatchNorm's too
# Version of the operator's attributes. src/operator/attributes.cc refuses a later version.
ATTRIBUTES_VERSION = 1
PARAMETERS = ("gamma", "beta", "running_mean", "running_var")  # BatchNorm's too


class SyncBatchNorm(Named, gluon.nn.BatchNorm):
    """Batch normalization over the whole batch of a training step, on all devices.

    In training, all devices exchange the count, the mean and the sum of squared deviations of every
    channel, and normalize with the merged statistics. Backward exchanges the two sums that the
    gradient of the input needs. One device with the whole batch would compute the same output,
    gradients and running statistics [1]_, [2]_, [3]_. Each device computes its share of the
    gradients of gamma and beta, and ``gluon.Trainer`` sums them. Inference,
    ``use_global_stats=True`` and a device without others exchange nothing.

    The layer is a ``gluon.nn.BatchNorm`` with the arguments of ``gluon.contrib.nn.SyncBatchNorm``.
    Each training forward updates the running statistics once, with the biased variance (as MXNet),
    and to the same bits on all devices. BatchNorm updates them in backward.

    Parameters have BatchNorm's names, so files of ``save_parameters`` load in networks with either.
    Prefixes have ``syncbatchnorm``, as in ``gluon.contrib.nn.SyncBatchNorm``. Prefixes are part of
    the names in files of ``collect_params().save``, and in networks that contain a symbol.

    The input has 2 to 5 dimensions and is float16, float32 or float64. The output has its shape and
    dtype. For float16 data, parameters and statistics are float32, even after
    ``net.cast("float16")``. Devices may hold shards of different size.

    Call all devices before you read the result of any: ``asnumpy()`` inside the loop over shards
    waits for devices that have not been called.

    ``layer(x)`` is ``act(norm(x))`` and ``layer(x, shortcut)`` is ``act(norm(x) + shortcut)``, in
    one pass over memory. Without `activation`, ``act`` is the identity. `shortcut` has the shape,
    dtype and context of `x`. To a hybridized layer, pass `shortcut` in every call or in none.

    With `inplace`, backward recovers the normalized values from the output [4]_, so that MXNet can
    free the input after the forward pass. Parameters keep their meaning. Backward raises an error
    if gamma is 0, or so small beside its beta that the output has lost half of the digits. Do not
    initialize gamma with zeros. Gradients have the rounding error of the output: that of the dtype
    times about ``1 + abs(beta / gamma)``. 'elu' loses values far below 0: below -8 in float16,
    below -17 in float32.

    Parameters
    ----------
    in_channels : int, default 0
        Number of channels of the input. Inferred from the first input if 0.
    num_devices : int, optional
        Number of devices of a training step. By default, the number of contexts of the parameters.
        0 counts as 1: programs give the number of GPUs, and train on the CPU where there is none.
    momentum : float or None, default 0.9
        Weight of the old value in the running statistics, from 0 to 1. If None, they are the
        average over all training batches: the weight is ``1 - 1 / n`` in the n-th. The parameter
        `num_batches_tracked` of shape (1,) then counts the batches. To load a checkpoint without
        it, pass ``allow_missing=True``.
    epsilon : float, default 1e-5
        Added to the variance.
    center : bool, default True
        Whether beta is trained.
    scale : bool, default True
        Whether gamma is trained; it is 1 otherwise.
    use_global_stats : bool, default False
        Normalize with the running statistics in training too.
    beta_initializer, running_mean_initializer : str or Initializer
        By default, zeros.
    gamma_initializer, running_variance_initializer : str or Initializer
        By default, ones.
    axis : int, default 1
        Axis of the channels: 1 for NCHW, -1 for NHWC.
    sync_group_size : int, optional
        Synchronize within groups of this many devices, in the order of the contexts that the
        network was initialized on. Each group has its own statistics of the batch, and its own
        running statistics. A saved checkpoint has their mean. By default, all devices are one
        group.
    process_set : horovod.mxnet.ProcessSet, optional
        Processes to synchronize with. By default, the processes of :func:`gluon_syncbn.init`, or
        this process alone. Processes match layers by prefix, then by order, so all must make the
        same layers in the same order. One process alone may run inference, or trace a network.
    activation : {'relu', 'leaky_relu', 'elu'}, optional
        An activation after the normalization, in the same pass. By default, none.
    alpha : float, optional
        Slope of 'leaky_relu' below 0 (default 0.01), or scale of 'elu' below 0 (default 1). At
        least 0.
    inplace : bool, default False
        Keep the output for backward instead of the input. The activation must be invertible (None,
        or 'leaky_relu' or 'elu' with an `alpha` above 0). A shortcut is an error.
    prefix : str, optional
        As of every Gluon block of MXNet 1.9.1. With MXNet 2, whose blocks have none, it names the
        layer in messages and for other processes.
    params : ParameterDict, optional
        As of every Gluon block of MXNet 1.9.1. With MXNet 2 it is an error.

    Raises
    ------
    ValueError
        If an argument is not as above, `sync_group_size` does not divide `num_devices`, or Horovod
        does not know `process_set`. At the call, if `num_devices` is not the number of contexts of
        the parameters (inference on one context is allowed), or `sync_group_size` is combined with
        other processes. Also if `shortcut` is on another context, or combined with `inplace`.
    ImportError, RuntimeError
        If `process_set` is given and Horovod is missing or not initialized.
    mxnet.base.MXNetError
        At the call, if the data or `shortcut` has a wrong dtype or shape. At ``asnumpy()`` or
        ``wait_to_read()``, if the devices of a step differ in channels, dtype, epsilon or momentum;
        if one fails; if one does not come within :func:`gluon_syncbn.get_timeout` seconds, or can
        no longer come; if an exported or moved network trains on another number of devices than
        its graph is for; if `inplace` meets a gamma that is too small.

    References
    ----------
    .. [1] S. Ioffe and C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by
       Reducing Internal Covariate Shift", ICML 2015, algorithm 1.
    .. [2] H. Zhang et al., "Context Encoding for Semantic Segmentation", CVPR 2018.
    .. [3] T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm
       for computing sample variances", Stanford University, 1979, eq. 2.1.
    .. [4] S. Rota Bulò, L. Porzi and P. Kontschieder, "In-place activated batchnorm for
       memory-optimized training of DNNs", CVPR 2018. They replace gamma by ``abs(gamma) + eps``,
       which changes the meaning of trained weights.

    Examples
    --------
    >>> import gluon_syncbn
    >>> import mxnet as mx
    >>> from mxnet import gluon
    >>> contexts = [mx.cpu(0), mx.cpu(1)]
    >>> layer = gluon_syncbn.SyncBatchNorm()
    >>> layer.initialize(ctx=contexts)
    >>> batch = mx.nd.array([[1.], [1.], [1.], [2.], [2.], [2.]])
    >>> shards = gluon.utils.split_and_load(batch, contexts)
    >>> with mx.autograd.record():
    ...     outputs = [layer(shard) for shard in shards]
    """

    _kwargs: dict[str, Any]
    _was_frozen = False

    def __init__(
        self,
        in_channels: int = 0,
        num_devices: int | None = None,
        momentum: float | None = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        running_mean_initializer: Any = "zeros",
        running_variance_initializer: Any = "ones",
        axis: int = 1,
        sync_group_size: int | None = None,
        process_set: Any = None,
        activation: str | None = None,
        alpha: float | None = None,
        inplace: bool = False,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            axis=axis,
            center=center,
            scale=scale,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            running_mean_initializer=running_mean_initializer,
            running_variance_initializer=running_variance_initializer,
            in_channels=0 if find_problem(in_channels=in_channels) else int(in_channels),
            prefix=prefix,
            **({} if params is None else {"params": params}),  # MXNet 2 has none
        )
        self._require(
            in_channels=in_channels, axis=axis, activation=activation, alpha=alpha, inplace=inplace
        )
        self._begin(process_set)
        # Gluon reads the old value before it sets an attribute, so both must have one.
        self._kwargs.update(axis=int(axis), num_devices=None, sync_group_size=None)
        self.num_devices = num_devices
        self.sync_group_size = sync_group_size
        self.momentum = momentum
        self.epsilon = epsilon
        self.use_global_stats = use_global_stats
        if activation is not None:
            self._kwargs["activation"] = activation
            default = ACTIVATIONS[activation].alpha
            if default is not None:
                self._kwargs["alpha"] = default if alpha is None else float(alpha)
        if inplace:
            self._kwargs["inplace"] = True

    def _begin(self, process_set: Any) -> None:
        """Set the attributes that no BatchNorm has, for a new or a converted layer."""
        self._identity = Identity(self.prefix)
        self._own_process_set = process_set is not None
        self._process_set = processes.register(process_set) if self._own_process_set else None

    # MXNet 2 calls forward(), and refuses a layer that has hybrid_forward().
    if IS_2:

        def infer_shape(self, x: Any, *_: Any) -> None:
            """Give the parameters the shapes that the operator infers."""
            norm = mx.sym.Custom(mx.sym.var("x"), op_type=OP_TYPE, key=self.key, axis=self.axis)
            parameters = [self._reg_params[name] for name in PARAMETERS]
            known = zip(norm.list_inputs(), [x.shape, *(each.shape for each in parameters)])
            (_, *shapes), _, states = norm.infer_shape(**dict(known))
            for parameter, shape in zip(parameters, [*shapes, *states]):
                parameter.shape = shape

        def forward(self, x: Any, shortcut: Any = None) -> Any:
            """Return ``act(norm(x))`` or ``act(norm(x) + shortcut)``."""
            parameters = {name: each.data(x.device) for name, each in self._reg_params.items()}
            if self.gamma.grad_req == self.beta.grad_req == "null" and mx.autograd.is_recording():
                # MXNet records nothing if no gradient is wanted, and backward() would be an error.
                # The layers of the fork of MXNet 2 want one too.
                with mx.autograd.pause():
                    parameters["beta"] = parameters["beta"].copy()
                parameters["beta"].attach_grad()
            return self._normalize(is_tracing(), x, shortcut, **parameters)

    else:

        def hybrid_forward(self, F: Any, x: Any, *inputs: Any, **named: Any) -> Any:  # noqa: N803
            """Return ``act(norm(x))`` or ``act(norm(x) + shortcut)``."""
            # Gluon gives parameters by name, a subclass perhaps by position after a shortcut.
            every = (*PARAMETERS, "num_batches_tracked")
            missing = [each for each in every if each in self._reg_params.keys() - named]
            first = len(inputs) - len(missing)
            named.update(zip(missing, inputs[first:]))
            return self._normalize(F is mx.sym, x, *inputs[:first], **named)

    def _normalize(
        self,
        traced: bool,
        x: Any,
        shortcut: Any = None,
        *,
        gamma: Any,
        beta: Any,
        running_mean: Any,
        running_var: Any,
        num_batches_tracked: Any = None,
    ) -> Any:
        """Call the operator. The inputs are symbols or arrays; `traced` says that MXNet traces."""
        if shortcut is not None:
            self._check_shortcut(x, shortcut)
        inputs = (x, gamma, beta, shortcut, running_mean, running_var, num_batches_tracked)
        use = self._identity.next_use(self) if traced else None
        return custom_operator(traced)(
            *[each for each in inputs if each is not None],
            name="fwd",
            op_type=OP_TYPE,
            **self._attributes(),
            **({} if shortcut is None else {"shortcut": True}),
            **self._among_processes(use),
            # Copies of a graph share the key. By the scope "graph" only operators of one node meet.
            **({"scope": "graph", "version": ATTRIBUTES_VERSION} if traced else {"scope": "key"}),
        )

    def _check_shortcut(self, x: Any, shortcut: Any) -> None:
        if self.inplace:
            raise ValueError(
                f"{self.name}: inplace=True and a shortcut exclude each other: the terms of a sum "
                "are not recoverable from the output"
            )
        if isinstance(x, mx.sym.Symbol):
            return
        found, expected = context_of(shortcut), context_of(x)
        if found != expected:
            raise ValueError(
                f"{self.name}: shortcut is on {found} where {expected} is expected, that of data"
            )

    def _attributes(self) -> dict[str, Any]:
        contexts = contexts_of(self.running_mean) or []
        num_devices = self._devices_in_use(contexts)
        attributes = dict(self._kwargs, num_devices=num_devices, key=self.key)
        if self.activation is not None:
            attributes["act_type"] = ACTIVATIONS[attributes.pop("activation")].act_type
        if self.alpha is not None:
            attributes["slope"] = attributes.pop("alpha")
        if self.sync_group_size is None:
            del attributes["sync_group_size"]
        else:
            self._require(num_devices=num_devices, sync_group_size=self.sync_group_size)
        devices = device_ids(self.name, contexts, num_devices or 0)
        if devices is not None:
            attributes["device_ids"] = devices
            if self._identity.first_devices is None:
                self._identity.first_devices = devices
            elif self._identity.first_devices != devices:  # calls there may still wait
                attributes["key"] += f"@{devices}"
        self._note_frozen(attributes["key"])
        return attributes

    def _note_frozen(self, key: str) -> None:
        """Note whether the program has converted a BatchNorm and does not train gamma and beta."""
        trained = [each for each in (self.gamma, self.beta) if each._differentiable]
        converted = hasattr(self, "_before_conversion")
        frozen = converted and bool(trained) and all(each.grad_req == "null" for each in trained)
        if frozen or self._was_frozen:
            LIBRARY.set_frozen(key.encode(), frozen)
            self._was_frozen = frozen

    def _among_processes(self, use: str | None) -> dict[str, Any]:
        """Attributes for synchronizing with other processes; none if this process is alone.

        Additional graphs of one process do not change them, unless the layer is called by itself.
        """
        number = self._processes()
        if number is None:  # -1: this process alone, also after a later init()
            return {"process_set": -1} if self._own_process_set else {}
        self._require(sync_group_size=self.sync_group_size, process_set=number)
        return {"process_set": number, "across": self._identity.across(use)}

    def _processes(self) -> int | None:
        """Horovod's number of the processes to synchronize with; None for this process alone."""
        return self._process_set if self._own_process_set else processes.default()

    def _devices_in_use(self, contexts: list) -> int | None:
        """Return the number of devices of a training step, for parameters on `contexts`.

        It is None in a symbol that is made before the parameters have contexts.
        """
        number = len(contexts)
        # A network that was trained on several devices, or in groups, is often served on one.
        served = number == 1 and not mx.autograd.is_training()
        if self.num_devices is None:
            return (self.sync_group_size if served else None) or number or None
        if number not in (0, self.num_devices) and not served and not self.use_global_stats:
            raise ValueError(
                f"{self.name}: num_devices={self.num_devices}, but the parameters live on "
                f"{number} contexts: {', '.join(map(str, contexts))}. Initialize the network on "
                f"{self.num_devices} contexts, or leave num_devices out"
            )
        return self.num_devices

    def _require(self, **arguments: Any) -> None:
        problem = find_problem(**arguments)
        if problem is not None:
            raise ValueError(f"{self.name}: {problem}")

    def _set(self, **attributes: Any) -> None:
        if attributes.items() <= self._kwargs.items():
            return
        self._kwargs.update(attributes)
        while self._identity.networks:
            self._identity.networks.pop()._clear_cached_op()

    @property
    def num_devices(self) -> int | None:
        """Number of devices of a training step, or None: the number of contexts. 0 becomes 1."""
        return self._kwargs["num_devices"]

    @num_devices.setter
    def num_devices(self, value: int | None) -> None:
        self._require(num_devices=value, sync_group_size=self.sync_group_size)
        # Programs give the number of GPUs, and MXNet's layer too counts no GPUs as one device.
        self._set(num_devices=None if value is None else max(int(value), 1))

    @property
    def sync_group_size(self) -> int | None:
        """Number of devices of a group, or None for all."""
        return self._kwargs["sync_group_size"]

    @sync_group_size.setter
    def sync_group_size(self, value: int | None) -> None:
        self._require(num_devices=self.num_devices, sync_group_size=value)
        self._set(sync_group_size=None if value is None else int(value))

    @property
    def activation(self) -> str | None:
        """Activation after the normalization: 'relu', 'leaky_relu', 'elu' or None."""
        return self._kwargs.get("activation")

    @property
    def alpha(self) -> float | None:
        """Slope or scale of the activation below 0, if it has one."""
        return self._kwargs.get("alpha")

    @property
    def inplace(self) -> bool:
        """Whether backward reads the output, so that MXNet can free the input."""
        return bool(self._kwargs.get("inplace", False))

    @property
    def axis(self) -> int:
        """Axis of the channels. It cannot change."""
        return self._kwargs["axis"]

    @axis.setter
    def axis(self, value: int) -> None:
        if value != self.axis:
            raise ValueError(
                f"{self.name}: axis={value!r} should be {self.axis}, which cannot change: "
                "make a new layer"
            )

    @property
    def epsilon(self) -> float:
        """Added to the variance."""
        return self._kwargs["eps"]

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._require(epsilon=value)
        self._set(eps=value)

    @property
    def use_global_stats(self) -> bool:
        """Whether training uses the running statistics."""
        return self._kwargs["use_global_stats"]

    @use_global_stats.setter
    def use_global_stats(self, value: Any) -> None:
        self._require(use_global_stats=value)
        self._set(use_global_stats=bool(value))

    @property
    def momentum(self) -> float | None:
        """Weight of the old value in the running statistics, or None: the average over all batches.

        If you set None, a count of batches starts at 0, and the next batch replaces the statistics.
        If you set a number, the count ends.
        """
        return self._kwargs["momentum"]

    @momentum.setter
    def momentum(self, value: float | None) -> None:
        self._require(momentum=value)
        self._set(momentum=value)
        counts = "num_batches_tracked" in self._reg_params
        if value is None and not counts:
            self._count_batches()
        elif value is not None and counts:
            parameter = self._reg_params.pop("num_batches_tracked")
            if not IS_2:
                self.params._params.pop(parameter.name, None)
            del self.num_batches_tracked

    def _count_batches(self) -> None:
        # The count has the dtype of the other parameters, so that casts keep them together. A
        # float32 count ends at 2**24, where another batch no longer changes float32 averages.
        make = gluon.Parameter if IS_2 else self.params.get
        self.num_batches_tracked = make(
            "num_batches_tracked",
            grad_req="null",
            shape=(1,),
            dtype=self.running_mean.dtype,
            init="zeros",
            differentiable=False,
        )
        contexts = contexts_of(self.running_mean)
        shared = contexts_of(self.num_batches_tracked)
        if contexts is not None and shared is None:
            self.num_batches_tracked.initialize(ctx=contexts)


def contexts_of(parameter: Any) -> list | None:
    """Present or future contexts of `parameter`, or None before ``initialize``."""
    try:
        return parameter.list_ctx()
    except RuntimeError:
        return None


def contexts_in(block: gluon.SymbolBlock) -> list:
    """Contexts of a block's parameters. The statistics of a norm of it may be inputs."""
    return next(filter(None, map(contexts_of, block.params.values())), [])


def device_ids(layer: str, contexts: list, num_devices: int) -> str | None:
    """Write the attribute `device_ids`, the devices of a training step; None if they are not known.

    Inference may run on fewer contexts than training. cpu(0) and gpu(0) have the same number, and
    the operator refuses to synchronize them.
    """
    if len({*contexts}) < len(contexts):
        raise ValueError(
            f"{layer}: the parameters live on {', '.join(map(str, contexts))}, where each context "
            "should be there once. Initialize the network on different contexts"
        )
    if len(contexts) != num_devices or len({each.device_type for each in contexts}) != 1:
        return None
    return ",".join(str(each.device_id) for each in contexts)
