//! `quantization_config`: what a graph's quantized layers are, in the words of compressed-tensors.
//!
//! A function of the graph alone, so that a folder whose words and tensors disagree can be told
//! from a good one. Invariant: none where a layer has codes that the ecosystem has no words for
//! (six bits, zero points that are no codes).

use super::transform::{TRANSFORMS, transform_config};
use overdrive_ir::ops::quantized_linear::{Activations, QuantizedLinear, WeightScales};
use overdrive_ir::ops::{Hadamard, Linear, SparseLinear, Unpack24};
use overdrive_ir::{DType, Graph, Node, Origin, Prim, Value};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};

/// Suffix of a 2:4 sparse weight's name.
pub(super) const COMPRESSED: &str = ".compressed";

/// The name in compressed-tensors of integers that are packed into i32.
const PACKED_FORMAT: &str = "pack-quantized";

/// Layers that are alike.
struct ConfigGroup {
    format: &'static str,
    weights: Json,
    activations: Json,
    targets: Vec<String>,
}

/// Names of a folder's layers, and the layout of their weights.
#[derive(Debug)]
pub struct Words<'a> {
    /// Layers by their names in the graph that the folder holds as `[K, N]`, where ours are `[N,
    /// K]`.
    pub input_major: &'a BTreeSet<String>,
    /// Whether codes of eight bits that meet float activations are packed: vLLM takes them in no
    /// other form, and nor does `transformers` 5 of experts.
    pub packs_bytes: bool,
}

impl Words<'static> {
    /// For our own folders, which no engine reads: weights are output-major, bytes unchanged.
    pub const OWN: Self = Self { input_major: &BTreeSet::new(), packs_bytes: false };
}

/// The config of a graph with quantized or 2:4 layers; `None` of any other, and of one without
/// words. A weight that is held as `[K, N]` has blocks of a column, which are read dense:
/// `dequantize` says so.
pub fn quantization_config(graph: &Graph, words: &Words<'_>) -> Option<Json> {
    let sizes = group_sizes(graph);
    let (mut groups, mut ignore, mut sparse) = (Vec::<ConfigGroup>::new(), Vec::new(), Vec::new());
    let mut rotated: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for node in graph.nodes() {
        let quantized = node.op.composite::<QuantizedLinear>();
        let float = node.op.composite::<Linear>().is_some()
            || node.op.composite::<SparseLinear>().is_some();
        if quantized.is_none() && !float {
            continue;
        }
        let Some((layer, compressed)) = layer(graph, node.operands[1]) else {
            // A product of two activations is no layer.
            continue;
        };
        // Parts of a fused layer are one layer.
        let known = |names: &[String]| names.contains(&layer);
        if known(&ignore) || known(&sparse) || groups.iter().any(|group| known(&group.targets)) {
            continue;
        }
        if compressed {
            sparse.push(layer.clone());
        }
        let Some(op) = quantized else {
            ignore.push(layer);
            continue;
        };
        let (mut format, mut weights) = weights(graph, node, *op, &sizes)?;
        let scaled_alone =
            op.weights == WeightScales::Symmetric && op.activations == Activations::Float;
        if words.packs_bytes && format == "int-quantized" && scaled_alone {
            format = PACKED_FORMAT;
        }
        if words.input_major.contains(&layer) {
            turn(format, &mut weights)?;
        }
        if let Some(block) = rotation(graph, node.operands[0]) {
            rotated.entry(block).or_default().push(layer.clone());
        }
        let activations = activations(graph, node, *op);
        let alike = |g: &&mut ConfigGroup| {
            g.format == format && g.weights == weights && g.activations == activations
        };
        match groups.iter_mut().find(alike) {
            Some(group) => group.targets.push(layer),
            None => groups.push(ConfigGroup { format, weights, activations, targets: vec![layer] }),
        }
    }
    if groups.is_empty() && sparse.is_empty() {
        return None;
    }
    let mut config =
        json!({ "quant_method": "compressed-tensors", "quantization_status": "compressed" });
    if let Some(first) = groups.first() {
        let mixed = groups.iter().any(|group| group.format != first.format);
        config["format"] = if mixed { "mixed-precision" } else { first.format }.into();
        let named = groups.iter().enumerate().map(|(i, group)| {
            let ConfigGroup { format, weights, activations, targets } = group;
            let group = json!({
                "targets": targets, "weights": weights, "input_activations": activations,
                "format": format,
            });
            (format!("group_{i}"), group)
        });
        config["config_groups"] = Json::Object(named.collect());
        config["ignore"] = ignore.into();
        if !words.input_major.is_empty() {
            config["dequantize"] = true.into();
        }
        if let Some(transforms) = transform_config(&rotated) {
            config[TRANSFORMS] = transforms;
        }
    }
    if !sparse.is_empty() {
        config["sparsity_config"] = json!({
            "format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": sparse,
            "ignore": [],
        });
    }
    Some(config)
}

/// The layers whose codes have eight bits and are packed, as words of a graph say.
pub(super) fn packed_bytes(words: &Json) -> BTreeSet<&str> {
    let groups = words["config_groups"].as_object().into_iter().flat_map(|groups| groups.values());
    let packed = groups.filter(|g| g["format"] == PACKED_FORMAT && g["weights"]["num_bits"] == 8);
    let targets = packed.filter_map(|group| group["targets"].as_array()).flatten();
    targets.filter_map(Json::as_str).collect()
}

/// Arguments of a weight `[N, K]` that is held as `[K, N]`. Its groups become blocks of a column,
/// and scales of a channel spread over columns as they are. `None` of formats that have rows of
/// blocks only.
fn turn(format: &str, weights: &mut Json) -> Option<()> {
    if weights["strategy"] == "group" {
        weights["block_structure"] = json!([weights["group_size"], 1]);
        weights["strategy"] = "block".into();
        weights["group_size"] = Json::Null;
    }
    [PACKED_FORMAT, "int-quantized", "float-quantized"].contains(&format).then_some(())
}

/// The layer whose weight a value is, and whether it is stored as the two of four that stay.
/// Transposes and slices may stand between.
fn layer(graph: &Graph, weight: Value) -> Option<(String, bool)> {
    let mut value = weight;
    loop {
        if let Origin::State(state) = graph.origin(value) {
            let name = graph.states()[state].name.as_str();
            let values = name.strip_suffix(COMPRESSED);
            let weight = values.unwrap_or(name);
            return Some((
                weight.strip_suffix(".weight").unwrap_or(weight).to_owned(),
                values.is_some(),
            ));
        }
        let node = graph.producer(value)?;
        let view = matches!(node.op.prim(), Some(Prim::Transpose { .. } | Prim::Slice { .. }));
        if !view && node.op.composite::<Unpack24>().is_none() {
            return None;
        }
        value = *node.operands.first()?;
    }
}

/// The size of the blocks in which the input of a layer is rotated, if it is.
fn rotation(graph: &Graph, input: Value) -> Option<usize> {
    graph.producer(input)?.op.composite::<Hadamard>().map(|op| op.block)
}

/// The sizes of groups that layers of the graph have, where a row has several.
fn group_sizes(graph: &Graph) -> BTreeSet<usize> {
    let layers =
        graph.nodes().iter().filter(|node| node.op.composite::<QuantizedLinear>().is_some());
    let sizes = layers.filter_map(|node| {
        let [codes, scale] = [1, 2].map(|at| graph.ty(node.operands[at]).sizes());
        let (columns, groups) = (*codes.get(1)?, *scale.get(1)?);
        (groups > 1).then(|| columns / groups)
    });
    sizes.collect()
}

/// The format of a layer's file and the arguments of its weights. A row of one group is a group
/// where other layers have groups of its size: some readers take one strategy for all layers.
fn weights(
    graph: &Graph,
    node: &Node,
    op: QuantizedLinear,
    sizes: &BTreeSet<usize>,
) -> Option<(&'static str, Json)> {
    let (codes, scale) = (graph.ty(node.operands[1]), graph.ty(node.operands[2]));
    let ([rows, groups], columns) = (<[usize; 2]>::try_from(scale.sizes()).ok()?, codes.sizes()[1]);
    let strategy = match (rows, groups) {
        (1, 1) if codes.sizes()[0] > 1 => "tensor",
        (_, 1) if !sizes.contains(&columns) && scale.dtype == DType::F32 => "channel",
        _ => "group",
    };
    if op.weights == WeightScales::Asymmetric && !graph.ty(node.operands[3]).dtype.is_int() {
        return None;
    }
    let format = match (codes.dtype, scale.dtype) {
        (DType::I4, _) => PACKED_FORMAT,
        (DType::I8, DType::F32) => "int-quantized",
        (DType::F8E4M3, DType::F32) => "float-quantized",
        (DType::F8E4M3, DType::E8M0) => "mxfp8-quantized",
        (DType::F4E2M1, DType::E8M0) => "mxfp4-pack-quantized",
        (DType::F4E2M1, DType::F8E4M3) => "nvfp4-pack-quantized",
        _ => return None,
    };
    let group_size = (strategy == "group").then(|| columns / groups);
    let strategy = if op.weights == WeightScales::TwoLevel { "tensor_group" } else { strategy };
    let mut arguments = json!({
        "num_bits": codes.dtype.bits(), "type": kind(codes.dtype), "strategy": strategy,
        "group_size": group_size,
        "symmetric": op.weights != WeightScales::Asymmetric, "dynamic": false,
    });
    if scale.dtype == DType::E8M0 {
        microscaled(&mut arguments);
    }
    Some((format, arguments))
}

/// Names the type of scales that are powers of two, by which readers tell a format of MX from any
/// other with groups. They know it for groups of 32 alone.
fn microscaled(arguments: &mut Json) {
    if arguments["group_size"] == 32 {
        arguments["scale_dtype"] = "torch.uint8".into();
        arguments["zp_dtype"] = "torch.uint8".into();
    }
}

fn activations(graph: &Graph, node: &Node, op: QuantizedLinear) -> Json {
    let arguments = |dtype: DType, strategy: &str, dynamic: bool| {
        json!({
            "num_bits": dtype.bits(), "type": kind(dtype), "strategy": strategy,
            "dynamic": dynamic, "symmetric": true,
        })
    };
    match op.activations {
        Activations::Float => Json::Null,
        Activations::Dynamic(dtype) => arguments(dtype, "token", true),
        Activations::Static(dtype) => {
            let mut found = arguments(dtype, "tensor", false);
            found["symmetric"] = (!dtype.is_int()).into();
            found
        }
        Activations::Blocks(dtype, _) => {
            let mut found = arguments(dtype, "group", true);
            let (codes, scale) = (graph.ty(node.operands[1]), graph.ty(node.operands[2]));
            found["group_size"] = (codes.sizes()[1] / scale.sizes()[1].max(1)).into();
            if scale.dtype == DType::E8M0 {
                microscaled(&mut found);
            }
            found
        }
    }
}

fn kind(dtype: DType) -> &'static str {
    if dtype.is_int() { "int" } else { "float" }
}
