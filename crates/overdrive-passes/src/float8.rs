//! `float8` puts linear layers of a model that is trained on codes of fp8.
//!
//! The pass runs on the forward graph: gradients of what it emits are in the recipe's format for
//! gradients (`overdrive_ir::ops::float8_linear`). Weights are rounded from their f32, so that
//! their gradients are in f32. Activations come in the format of all other contractions.
//!
//! A recipe is data ([`Float8`]): formats, what a scale covers, where scales come from, and which
//! layers stay as they are. [`left_in_float`] says of each of these why. Scales are current or
//! [delayed](crate::delayed): then they are states, which the step makes new by
//! [`DelayedScales`](crate::DelayedScales).
//!
//! Invariant: interfaces keep their types.

mod break_even;

use crate::delayed::Numbers;
use crate::legalize::scope_of;
use crate::precision::leads_to_a_contraction;
use crate::quantize::Skipped;
use crate::rebuild::rebuild;
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::{Float8Linear, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node, TensorType};
use serde::{Deserialize, Serialize};

/// How linear layers are trained on codes of fp8.
///
/// A layer has the name of its weight without the last part, as `block0.ffn.expand`. The head of a
/// model, if it stands outside all scopes, is `output`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Float8 {
    /// The type of the codes of activations and weights.
    pub forward: DType,
    /// The type of the codes of the gradients that layers are handed.
    pub gradient: DType,
    /// How much one scale covers.
    #[serde(default)]
    pub granularity: Float8Granularity,
    /// The source of scales; recipes that do not say it are older than the choice.
    #[serde(default)]
    pub scaling: Scaling,
    /// Layers that stay in float: their names, or the first parts of them. `*` is any one part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
    /// A layer stays in float unless rows of x, K and N are multiples of this. Tensor cores of fp8
    /// multiply 16.
    #[serde(default = "unit")]
    pub multiple: usize,
    /// FLOPs of a layer's products for each byte of its casts, below which it stays in float: codes
    /// would take more time than they save. `None` leaves no layer out for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even: Option<u32>,
    /// Whether layers are on codes that no contraction follows. The loss reads these, and nothing
    /// averages out their errors (Micikevicius et al., arXiv:2209.05433, keep them wider too).
    #[serde(default)]
    pub last: bool,
    /// Whether attention's forward multiplies codes too, by
    /// [`attend_in_float8`](crate::attend_in_float8).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attention: bool,
}

/// The source of the scales of tensors.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// From the tensor itself, which is read twice.
    #[default]
    Current,
    /// From the batches before: states of the step. Only scales that cover a tensor may be delayed.
    Delayed,
}

/// Extents that tensor cores of fp8 multiply.
const fn unit() -> usize {
    16
}

impl Float8 {
    /// Layers on codes of e4m3 with gradients of this type, as units of fp8 take them, but for the
    /// last.
    pub const fn new(gradient: DType, granularity: Float8Granularity, scaling: Scaling) -> Self {
        let (forward, multiple) = (DType::F8E4M3, unit());
        let except = Vec::new();
        Self {
            forward,
            gradient,
            granularity,
            scaling,
            except,
            multiple,
            break_even: None,
            last: false,
            attention: false,
        }
    }

    /// The op's settings: formats and granularity.
    fn formats(&self) -> Float8Linear {
        let Self { forward, gradient, granularity, .. } = *self;
        Float8Linear { forward, gradient, granularity }
    }

    /// Errs with the first exception that is no layer of the graph.
    fn check_exceptions(&self, graph: &Graph) -> Result<(), GraphError> {
        let names: Vec<String> = linear_layers(graph).map(name).collect();
        let is_of_none = |pattern: &&String| !names.iter().any(|name| covers(pattern, name));
        let Some(pattern) = self.except.iter().find(is_of_none) else { return Ok(()) };
        let known = match names.as_slice() {
            [] => "the model has no linear layer".to_owned(),
            [first, ..] => format!("layers have names such as `{first}`"),
        };
        Err(GraphError {
            op: "float8".into(),
            scope: graph.name().to_owned(),
            expected: "exceptions that are linear layers, or the first parts of their names".into(),
            found: format!("`{pattern}`"),
            remedy: format!("change `except` of the recipe: {known}"),
        })
    }

    /// Why a linear layer stays in float; `None` where it is on codes. `meets`: of each value,
    /// whether it leads to a contraction.
    fn declines(&self, graph: &Graph, node: &Node, meets: &[bool]) -> Option<String> {
        let x = graph.ty(node.operands[0]);
        let extents = extents(graph, node);
        let fits = |size: &usize| *size > 0 && size.is_multiple_of(self.multiple.max(1));
        let name = name(node);
        if let Some(pattern) = self.except.iter().find(|pattern| covers(pattern, &name)) {
            return Some(format!("the recipe leaves out `{pattern}`"));
        }
        if x.dtype != DType::F32 {
            return Some(format!("it is in {}, not in f32", x.dtype));
        }
        if !extents.iter().all(fits) {
            let multiple = self.multiple;
            return Some(format!("rows, K and N are {extents:?}, not multiples of {multiple}"));
        }
        let leads = node.results.iter().any(|result| meets[result.0 as usize]);
        if !leads && !self.last {
            return Some("no contraction follows it".to_owned());
        }
        self.loses(graph, node)
    }
}

/// The linear layers of a graph.
fn linear_layers(graph: &Graph) -> impl Iterator<Item = &Node> {
    graph.nodes().iter().filter(|node| is_linear(node))
}

/// Rows of x, K and N of a linear layer.
fn extents(graph: &Graph, node: &Node) -> [usize; 3] {
    let (x, w) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
    let [k, n] = [w.sizes()[0], w.sizes()[1]];
    [x.elements().checked_div(k).unwrap_or(0), k, n]
}

fn is_linear(node: &Node) -> bool {
    node.op.composite::<Linear>().is_some()
}

/// The name of a layer. A head stands outside all scopes, since it may share the embedding's
/// weight.
fn name(node: &Node) -> String {
    if node.scope.is_empty() { "output".to_owned() } else { node.scope.replace('/', ".") }
}

/// Whether a pattern is the first parts of a name.
fn covers(pattern: &str, name: &str) -> bool {
    let mut parts = name.split('.');
    pattern.split('.').all(|of| parts.next().is_some_and(|part| of == "*" || of == part))
}

/// The linear layers that `float8` leaves in float, each with the reason.
pub fn left_in_float(graph: &Graph, float8: &Float8) -> Vec<Skipped> {
    let meets = leads_to_a_contraction(graph);
    let skipped = |node: &Node| {
        let reason = float8.declines(graph, node, &meets)?;
        Some(Skipped { layer: name(node), reason })
    };
    let mut layers: Vec<Skipped> = linear_layers(graph).filter_map(skipped).collect();
    // The products of a layer with adapters.
    layers.dedup();
    layers
}

/// The graph with linear layers on codes expanded into casts and products, so that casts can be
/// told apart by their operands.
///
/// # Errors
/// When the graph is ill-formed.
pub fn expand_float8(graph: &Graph) -> Result<Graph, GraphError> {
    graph.rewrite(&mut |b, node, operands| {
        node.op.composite::<Float8Linear>()?;
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
        // As `legalize` does, so that fused ops have the same names.
        let _scope = b.scope_path(&scope_of(&node.op));
        Some(b.inline(&node.op.expansion(&types, &node.regions), operands))
    })
}

/// The graph with linear layers on codes as `float8` says, and activations between them in
/// `narrow`.
///
/// # Errors
/// When the graph is ill-formed, or an exception is none of its layers.
pub fn float8(graph: &Graph, float8: &Float8, narrow: DType) -> Result<Graph, GraphError> {
    float8.check_exceptions(graph)?;
    let (meets, formats) = (leads_to_a_contraction(graph), float8.formats());
    let mut numbers = Numbers::default();
    rebuild(graph, &Clone::clone, &mut |place| {
        let on_codes =
            is_linear(place.node) && float8.declines(graph, place.node, &meets).is_none();
        let (x, w, bias) = match place.operands.as_slice() {
            [x, w] if on_codes => (*x, *w, None),
            [x, w, bias] if on_codes => (*x, *w, Some(*bias)),
            _ => return Ok(place.keep(place.node.regions.clone())),
        };
        let scales = (float8.scaling == Scaling::Delayed).then(|| {
            let rows = x.ty().elements() / w.size(0);
            let operands = (place.node.operands[0], place.node.operands[1], rows);
            numbers.next(place.builder, operands, formats)
        });
        let y = x.convert(narrow).float8_linear(w, scales, formats);
        let y = bias.map_or(y, |bias| y + bias.convert(narrow));
        Ok(vec![y.convert(x.dtype())])
    })
}
