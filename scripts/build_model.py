#!/usr/bin/env python3
"""Writes all-MiniLM-L6-v2 as an ONNX graph from its weights, without a training framework.

    build_model.py [--int8] model.safetensors model.onnx

Inputs of the graph:  input_ids, attention_mask, token_type_ids  [batch, seq] int64
Outputs:              last_hidden_state [batch, seq, 384], sentence_embedding [batch, 384] float32
                      (the latter mean-pooled over the mask and L2-normalised)

The same weights and package versions give the same bytes; scripts/setup_embedder.sh checks their sum. Names in the
graph are therefore part of the result.
"""

import argparse
import hashlib
import logging
import pathlib
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

LAYERS, HIDDEN, HEADS = 6, 384, 12
HEAD_SIZE = HIDDEN // HEADS
MASKED_SCORE = -10000.0  # as in the original BERT code
NORM_EPSILON = 1e-12
OPSET, IR_VERSION = 18, 8


class Graph:
    """Collects nodes and constants; every node is named after its only output."""

    def __init__(self, weights):
        self.weights, self.nodes, self.constants = weights, [], {}

    def constant(self, name, array):
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name):
        return self.constant(name, self.weights[name])

    def op(self, kind, inputs, output, **attributes):
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def linear(self, x, prefix, output):
        """x W^T + b; the weights are kept transposed, so that no transposition is left to run time."""
        weight = self.constant(prefix + ".weight_t", self.weights[prefix + ".weight"].T.astype(np.float32))
        bias = self.constant(prefix + ".bias", self.weights[prefix + ".bias"].astype(np.float32))
        return self.op("Add", [self.op("MatMul", [x, weight], output + "_mm"), bias], output)

    def layer_norm(self, x, prefix, output):
        inputs = [x, self.weight(prefix + ".weight"), self.weight(prefix + ".bias")]
        return self.op("LayerNormalization", inputs, output, axis=-1, epsilon=NORM_EPSILON)

    def gelu(self, x, output):
        """x / 2 (1 + erf(x / sqrt 2)), the exact form the model was trained with."""
        scaled = self.op("Div", [x, self.constant("sqrt2", np.float32(np.sqrt(2.0)))], output + "_d")
        erf = self.op("Erf", [scaled], output + "_erf")
        one_more = self.op("Add", [erf, self.constant("one", np.float32(1))], output + "_1")
        product = self.op("Mul", [x, one_more], output + "_m")
        return self.op("Mul", [product, self.constant("half", np.float32(0.5))], output)


def embed_tokens(g):
    word = g.op("Gather", [g.constant("embeddings.word", g.weights["embeddings.word_embeddings.weight"]), "input_ids"], "emb_word")
    kinds = g.constant("embeddings.type", g.weights["embeddings.token_type_embeddings.weight"])
    kind = g.op("Gather", [kinds, "token_type_ids"], "emb_type")
    length = g.op("Shape", ["input_ids"], "seq_len", start=1, end=2)
    positions = g.constant("embeddings.pos", g.weights["embeddings.position_embeddings.weight"])
    start, axis = g.constant("i0", np.array([0], np.int64)), g.constant("ax0", np.array([0], np.int64))
    position = g.op("Slice", [positions, start, length, axis], "emb_pos")
    total = g.op("Add", [g.op("Add", [word, kind], "emb_wt"), position], "emb_sum")
    return g.layer_norm(total, "embeddings.LayerNorm", "emb_ln")


def mask_bias(g):
    """The mask as numbers, and what is added to attention scores: 0 where it is 1, a large negative number elsewhere."""
    mask = g.op("Cast", ["attention_mask"], "mask_f", to=TensorProto.FLOAT)
    per_head = g.op("Unsqueeze", [mask, g.constant("ax12", np.array([1, 2], np.int64))], "mask_4d")
    inverse = g.op("Sub", [g.constant("one", np.float32(1)), per_head], "mask_inv")
    return mask, g.op("Mul", [inverse, g.constant("neg", np.float32(MASKED_SCORE))], "mask_bias")


def encoder_layer(g, x, bias, index):
    prefix, name = f"encoder.layer.{index}.", f"l{index}_"
    by_head = g.constant("shape_heads", np.array([0, 0, HEADS, HEAD_SIZE], np.int64))
    together = g.constant("shape_back", np.array([0, 0, HIDDEN], np.int64))

    def heads(part, order):
        projected = g.linear(x, prefix + f"attention.self.{part}", name + part)
        return g.op("Transpose", [g.op("Reshape", [projected, by_head], name + part + "_r")], name + part + "_t", perm=order)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = g.op("MatMul", [query, key], name + "qk")
    scores = g.op("Div", [scores, g.constant("sqrtd", np.float32(np.sqrt(HEAD_SIZE)))], name + "qk_s")
    attention = g.op("Softmax", [g.op("Add", [scores, bias], name + "qk_b")], name + "att", axis=-1)
    context = g.op("Transpose", [g.op("MatMul", [attention, value], name + "ctx")], name + "ctx_t", perm=[0, 2, 1, 3])
    context = g.op("Reshape", [context, together], name + "ctx_r")
    context = g.linear(context, prefix + "attention.output.dense", name + "o")
    x = g.layer_norm(g.op("Add", [context, x], name + "res1"), prefix + "attention.output.LayerNorm", name + "ln1")
    wide = g.gelu(g.linear(x, prefix + "intermediate.dense", name + "ff1"), name + "gelu")
    narrow = g.linear(wide, prefix + "output.dense", name + "ff2")
    output = "last_hidden_state" if index == LAYERS - 1 else name + "ln2"
    return g.layer_norm(g.op("Add", [narrow, x], name + "res2"), prefix + "output.LayerNorm", output)


def pool(g, x, mask):
    """Mean over the tokens of the mask, scaled to length 1."""
    mask_3d = g.op("Unsqueeze", [mask, g.constant("ax2", np.array([2], np.int64))], "mask_3d")
    axis = g.constant("ax1", np.array([1], np.int64))
    total = g.op("ReduceSum", [g.op("Mul", [x, mask_3d], "pool_mul"), axis], "pool_sum", keepdims=0)
    count = g.op("ReduceSum", [mask, axis], "pool_cnt", keepdims=1)
    count = g.op("Max", [count, g.constant("eps9", np.float32(1e-9))], "pool_den")
    mean = g.op("Div", [total, count], "pool_mean")
    norm = g.op("ReduceL2", [mean, g.constant("axm1", np.array([-1], np.int64))], "norm", keepdims=1)
    norm = g.op("Max", [norm, g.constant("eps12", np.float32(1e-12))], "norm_den")
    g.op("Div", [mean, norm], "sentence_embedding")


def build(weights):
    g = Graph(weights)
    x = embed_tokens(g)
    mask, bias = mask_bias(g)
    for index in range(LAYERS):
        x = encoder_layer(g, x, bias, index)
    pool(g, x, mask)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [
        helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "seq", HIDDEN]),
        helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", HIDDEN]),
    ]
    graph = helper.make_graph(g.nodes, "all-MiniLM-L6-v2", inputs, outputs, list(g.constants.values()))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="cema-router-model-builder")
    onnx.checker.check_model(model, full_check=True)
    return model


def quantize(model, path):
    """Matrix and embedding weights as 8-bit integers."""
    logging.getLogger().setLevel(logging.ERROR)  # it advises a pre-processing that changes nothing here
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        full = pathlib.Path(folder, "model.onnx")
        onnx.save(model, full)
        quantize_dynamic(full, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul", "Gather"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--int8", action="store_true", help="quantise to 8-bit integers (needs onnxruntime)")
    options = parser.parse_args()
    model = build(load_file(options.weights))
    if options.int8:
        quantize(model, options.output)
    else:
        onnx.save(model, options.output)
    data = options.output.read_bytes()
    print(f"{options.output.name}: {len(data) / 1e6:.1f} MB, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
