//! Composites that opset 23 has as an op of its own.

use super::signature::Signature;
use super::writer::{Writer, extents, float, int, text};
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::ops::avg_pool2d::{Padding, Pool2d};
use overdrive_ir::ops::batch_norm::Statistics;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::ops::{
    Attention, AvgPool2d, BatchNorm, Conv2d, Embedding, Gelu, GlobalAvgPool, Hadamard, LayerNorm,
    Linear, MaxPool2d, Relu, RmsNorm, Silu, Softmax,
};
use overdrive_ir::{Node, Operation, Tensor};

/// Types of a node, and whether a result of it is used.
type About<'a> = (&'a Signature, &'a dyn Fn(usize) -> bool);

/// The results, or `None` where the op is no standard op in this form.
pub(super) fn write(
    node: &Node,
    w: &mut Writer,
    x: &[String],
    about: About<'_>,
) -> Option<Vec<String>> {
    let result = standard(&node.op, w, x, about).or_else(|| attention(node, w, x, about))?;
    let mut results = vec![result];
    results.resize(node.results.len(), String::new());
    Some(results)
}

fn standard(op: &Operation, w: &mut Writer, x: &[String], (types, _): About<'_>) -> Option<String> {
    let operands: Vec<&str> = x.iter().map(String::as_str).collect();
    let rank = types.operands[0].rank();
    if op.composite::<Relu>().is_some() {
        return Some(w.one("Relu", &operands, vec![]));
    }
    if let Some(gelu) = op.composite::<Gelu>() {
        let approximate = if gelu.approximation == Approximation::Erf { "none" } else { "tanh" };
        return Some(w.one("Gelu", &operands, vec![text("approximate", approximate)]));
    }
    if op.composite::<Silu>().is_some() && types.operands[0].dtype.bits() >= 32 {
        // Two nodes and no function, which not every reader has; opset 24 has Swish.
        let gate = w.one("Sigmoid", &operands, vec![]);
        return Some(w.one("Mul", &[operands[0], &gate], vec![]));
    }
    if let Some(softmax) = op.composite::<Softmax>() {
        return Some(w.one("Softmax", &operands, vec![int("axis", softmax.axis as i64)]));
    }
    if let Some(norm) = op.composite::<LayerNorm>() {
        let attributes = vec![int("axis", -1), float("epsilon", norm.eps), int("stash_type", 1)];
        return Some(w.one("LayerNormalization", &operands, attributes));
    }
    if let Some(norm) = op.composite::<RmsNorm>() {
        let attributes = vec![int("axis", -1), float("epsilon", norm.eps), int("stash_type", 1)];
        return Some(w.one("RMSNormalization", &operands, attributes));
    }
    if let Some(norm) =
        op.composite::<BatchNorm>().filter(|norm| norm.statistics == Statistics::Given)
    {
        let attributes =
            vec![float("epsilon", norm.eps), float("momentum", 0.9), int("training_mode", 0)];
        return Some(w.one("BatchNormalization", &operands, attributes));
    }
    if let Some(conv) = op.composite::<Conv2d>() {
        let attributes = vec![
            extents("kernel_shape", &types.sizes(1)[2..]),
            extents("strides", &conv.stride),
            extents("dilations", &conv.dilation),
            extents("pads", &edges(conv.pad)),
            int("group", conv.groups as i64),
            text("auto_pad", "NOTSET"),
        ];
        return Some(w.one("Conv", &operands, attributes));
    }
    if let Some(pool) = op.composite::<MaxPool2d>() {
        let attributes = [windows(&pool.pool), vec![int("storage_order", 0)]].concat();
        return Some(w.one("MaxPool", &operands, attributes));
    }
    if let Some(pool) = op.composite::<AvgPool2d>() {
        let counted = i64::from(pool.padding == Padding::Counted);
        let attributes = [windows(&pool.pool), vec![int("count_include_pad", counted)]].concat();
        return Some(w.one("AveragePool", &operands, attributes));
    }
    if op.composite::<GlobalAvgPool>().is_some() {
        let mean = w.one("GlobalAveragePool", &operands, vec![]);
        return Some(w.reshape(&mean, &types.results[0].sizes()));
    }
    if op.composite::<Linear>().is_some() {
        if let (2, [a, b, bias]) = (rank, &operands[..]) {
            let attributes =
                vec![float("alpha", 1.0), float("beta", 1.0), int("transA", 0), int("transB", 0)];
            return Some(w.one("Gemm", &[a, b, bias], attributes));
        }
        let product = w.one("MatMul", &operands[..2], vec![]);
        return Some(match operands.get(2) {
            Some(bias) => w.one("Add", &[&product, bias], vec![]),
            None => product,
        });
    }
    if let Some(hadamard) = op.composite::<Hadamard>() {
        let (sizes, block) = (types.sizes(0), hadamard.block);
        let dtype = types.operands[0].dtype;
        let matrix = Tensor::from_f64(dtype, [block, block], &hadamard.matrix());
        let matrix = w.shared(&format!("hadamard_{block}_{dtype}"), &matrix).ok()?;
        let rows = w.reshape(operands[0], &[sizes.iter().product::<usize>() / block, block]);
        let product = w.one("MatMul", &[&rows, &matrix], vec![]);
        return Some(w.reshape(&product, &sizes));
    }
    if op.composite::<Embedding>().is_some() {
        // Ours clamps; ONNX counts negative indices from the end.
        let last = types.sizes(0)[0].saturating_sub(1) as f64;
        let wide = w.cast(operands[1], overdrive_ir::DType::I64).ok()?;
        let bounds = [0.0, last].map(|n| w.number(overdrive_ir::DType::I64, n));
        let [Ok(low), Ok(high)] = bounds else { return None };
        let above = w.one("Max", &[&wide, &low], vec![]);
        let inside = w.one("Min", &[&above, &high], vec![]);
        return Some(w.one("Gather", &[operands[0], &inside], vec![int("axis", 0)]));
    }
    None
}

/// Attention without regions, dropout or threshold, whose log-sum-exp nobody reads. It is causal
/// only where both alignments are the same.
fn attention(
    node: &Node,
    w: &mut Writer,
    x: &[String],
    (types, used): About<'_>,
) -> Option<String> {
    let is_plain =
        |op: &&Attention| op.dropout.is_none() && op.threshold.is_none() && node.regions.is_empty();
    let attention = node.op.composite::<Attention>().filter(is_plain).filter(|_| !used(1))?;
    let (q, k) = (types.sizes(0), types.sizes(1));
    let causal = attention.mask == Mask::Causal;
    if causal && q[2] != k[2] {
        return None;
    }
    let attributes = vec![
        int("is_causal", i64::from(causal)),
        float("scale", attention.factor(q[3])),
        float("softcap", 0.0),
        int("qk_matmul_output_mode", 0),
    ];
    Some(w.one("Attention", &[&x[0], &x[1], &x[2]], attributes))
}

fn edges(pad: [[usize; 2]; 2]) -> [usize; 4] {
    [pad[0][0], pad[1][0], pad[0][1], pad[1][1]]
}

fn windows(pool: &Pool2d) -> Vec<crate::onnx::proto::AttributeProto> {
    vec![
        extents("kernel_shape", &pool.window),
        extents("strides", &pool.stride),
        extents("dilations", &[1, 1]),
        extents("pads", &edges(pool.pad)),
        int("ceil_mode", 0),
        text("auto_pad", "NOTSET"),
    ]
}
