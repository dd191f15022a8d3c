"""Other implementations of attention, each if it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limelight.core.masks import Causal, Mask


def available(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, threads: int, sparse: Mask | None = None
) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Return calls that compute softmax(q kᵀ / √d) v, by name, and why a peer that is absent or fails is left out.

    A ``sparse`` pattern is for FlexAttention alone.
    """
    calls: dict[str, Callable[[], object]] = {}
    absent: dict[str, str] = {}
    makers: dict[str, Callable[..., Callable[[], object]]]
    makers = {"FlexAttention": _flex, "ONNX Runtime": _onnxruntime, "OpenVINO": _openvino}
    if sparse is not None:
        makers = {"FlexAttention": partial(_flex, sparse=sparse)}
    for name, make in makers.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call = make(q, k, v, causal, threads)
                call()
        except ImportError as error:
            absent[name] = f"not installed ({error})"
        except Exception as error:  # a peer may fail in its own way, and the others are still measured
            absent[name] = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            calls[name] = call
    return calls, absent


def _flex(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, threads: int, sparse: Mask | None = None
) -> Callable[[], object]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    N, M = q.shape[2], k.shape[2]
    pattern = Causal() if causal else sparse
    mask: Any = None
    if pattern is not None:
        mask = create_block_mask(lambda b, h, i, j: pattern.allows(i, j, N, M), None, None, N, M, device="cpu")
    torch._dynamo.reset()
    compiled: Any = torch.compile(flex_attention)
    return lambda: compiled(q, k, v, block_mask=mask)


def _graph(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
    """ONNX Runtime's fused MultiHeadAttention, which takes (B, N, H · D)."""
    from onnx import TensorProto, helper

    B, H, N, D = q.shape
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=H, unidirectional=int(causal)
    )
    shape = [B, N, H * D]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("q", "k", "v")]
    graph = helper.make_graph(
        [node], "attention", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    model.ir_version = 8
    return model


def _onnxruntime(q: Tensor, k: Tensor, v: Tensor, causal: bool, threads: int) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model = _graph(q, k, v, causal)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {n: x.transpose(1, 2).flatten(2).contiguous().numpy() for n, x in (("q", q), ("k", k), ("v", v))}
    return lambda: session.run(None, feed)


def _openvino(q: Tensor, k: Tensor, v: Tensor, causal: bool, threads: int) -> Callable[[], object]:
    import numpy as np
    import openvino
    from openvino import opset13 as ops

    parameters = [ops.parameter(list(x.shape), np.float32) for x in (q, k, v)]
    y = ops.scaled_dot_product_attention(*parameters, causal=causal)
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(openvino.Model([y], parameters), "CPU", settings)
    request = compiled.create_infer_request()
    feed = [x.numpy() for x in (q, k, v)]
    return lambda: request.infer(feed, share_inputs=True, share_outputs=True)
