//! `Prim`: the closed set of primitives (docs/decisions/0001-primitives.md).
//!
//! Everything else is an `Op` that expands into these. Back ends match this enum exhaustively, so
//! adding a primitive is a decision, not an accident. Types, f64 semantics and gradients live
//! beside it in `prims/`.
//!
//! Long because a closed set is read in one place.

use crate::window_dimension::WindowDimension;
use crate::{Axis, DType, Mesh, Overflow, Shape, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Elementwise functions of one operand.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Unary {
    Neg,
    Abs,
    /// -1, 0 or 1; keeps NaN.
    Sign,
    Exp,
    /// exp(x) - 1 without cancellation.
    Expm1,
    Log,
    /// log(1 + x) without cancellation.
    Log1p,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Sin,
    Cos,
    Tanh,
    Erf,
    /// 1 / (1 + exp(-x)).
    Logistic,
    Floor,
    Ceil,
    /// To the nearest integer, ties to even.
    Round,
    /// Logical for bool, bitwise for integers.
    Not,
}

/// Elementwise functions of two operands of the same type.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Integers truncate toward zero; division by zero gives 0 for integers.
    Div,
    /// Remainder with the sign of the dividend.
    Rem,
    Pow,
    /// NaN if either is.
    Max,
    /// NaN if either is.
    Min,
    /// Logical for bool, bitwise for integers.
    And,
    Or,
    Xor,
    /// Shift counts of the width or more give 0.
    Shl,
    /// Arithmetic for signed, logical for unsigned integers.
    Shr,
}

/// Elementwise comparisons, giving bool; all but `Ne` are false where an operand is NaN.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How reductions and scatters combine two values.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Reducer {
    Sum,
    Prod,
    Max,
    Min,
    /// Logical for bool.
    And,
    Or,
}

/// Whether contractions may trade accuracy for speed inside.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Products of the operands' own type, sums in the accumulation type.
    #[default]
    Exact,
    /// f32 operands may be truncated to tf32.
    Tf32,
    /// fp8 sums may stay in the tensor core's narrow accumulator.
    FastFp8,
}

/// Dimension numbers and types of a general contraction. Result: batch, free lhs, free rhs
/// dimensions.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DotGeneral {
    /// Pairs of (lhs, rhs) axes that run in parallel.
    pub batch: Vec<(usize, usize)>,
    /// Pairs of (lhs, rhs) axes that are summed over.
    pub contract: Vec<(usize, usize)>,
    /// Type of partial sums.
    pub accumulate: DType,
    /// Type of the result.
    pub out: DType,
    /// Permitted shortcuts.
    pub precision: Precision,
}

/// Geometry and types of a convolution of `[N, C, spatial...]` with `[O, C/groups, spatial...]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Convolution {
    /// One per spatial dimension.
    pub window: Vec<WindowDimension>,
    /// Channel groups.
    pub groups: usize,
    /// Type of partial sums.
    pub accumulate: DType,
    /// Type of the result.
    pub out: DType,
}

/// Padding of one dimension, possibly negative at the edges.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Pad {
    /// Elements before the first.
    pub low: i64,
    /// Elements after the last.
    pub high: i64,
    /// Elements between neighbours.
    pub interior: usize,
}

/// Window of one dimension of `reduce_window`; positions outside the operand are the reducer's
/// identity.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Extent of the window.
    pub size: usize,
    /// Step between windows.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Padding before.
    pub pad_low: usize,
    /// Padding after.
    pub pad_high: usize,
}

/// A set of ranks that communicate, and the channel that pairs their calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Channel {
    /// Unique in a graph; collectives issue in the order of the graph on every rank.
    pub id: u64,
    /// The mesh axes over which it runs: ranks that differ in these alone take part together.
    pub group: Mesh,
}

impl Channel {
    /// Number of ranks of a group.
    pub fn ranks(&self) -> usize {
        self.group.ranks()
    }

    /// Whether it is between stages of a pipeline, whose ranks have graphs of their own.
    pub fn joins_stages(&self) -> bool {
        self.group.size(&Mesh::PIPELINE.into()) > 1
    }
}

/// The primitives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Prim {
    /// `() -> value`.
    Constant {
        /// The value.
        value: Tensor,
    },
    /// Elementwise, one operand.
    Unary {
        /// The function.
        kind: Unary,
    },
    /// Elementwise, two operands of equal type.
    Binary {
        /// The function.
        kind: Binary,
    },
    /// Elementwise comparison of equal types, giving bool.
    Compare {
        /// The relation.
        kind: Compare,
    },
    /// `(bool, T, T) -> T`, elementwise.
    Select,
    /// Rounds to another type.
    Convert {
        /// The new type.
        to: DType,
        /// The treatment of values out of range.
        overflow: Overflow,
    },
    /// Reinterprets bits; the element width must stay.
    Bitcast {
        /// The new type.
        to: DType,
    },
    /// Operand dimension `i` becomes dimension `dims[i]` of the result; it must be equal there
    /// or 1.
    Broadcast {
        /// Result shape.
        shape: Shape,
        /// Strictly increasing positions of the operand's dimensions.
        dims: Vec<usize>,
    },
    /// Same elements in row-major order.
    Reshape {
        /// Result shape.
        shape: Shape,
    },
    /// Result dimension `i` is operand dimension `perm[i]`.
    Transpose {
        /// A permutation.
        perm: Vec<usize>,
    },
    /// Elements `start, start + stride, ... < limit` of each dimension.
    Slice {
        /// First index.
        start: Vec<usize>,
        /// End, exclusive.
        limit: Vec<usize>,
        /// Step, at least 1.
        stride: Vec<usize>,
    },
    /// `(operand, scalar)`: surrounds and interleaves with the scalar; negative edges crop.
    Pad {
        /// One per dimension.
        pads: Vec<Pad>,
    },
    /// One or more operands, joined along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// `() -> index along axis`.
    Iota {
        /// Element type.
        dtype: DType,
        /// Result shape.
        shape: Shape,
        /// The axis that counts.
        axis: usize,
    },
    /// Folds axes away. Sums of types below f32 accumulate in f32.
    Reduce {
        /// The function that combines values.
        reducer: Reducer,
        /// Strictly increasing.
        axes: Vec<usize>,
    },
    /// Folds a sliding window.
    ReduceWindow {
        /// The function that combines values.
        reducer: Reducer,
        /// One per dimension.
        windows: Vec<Window>,
    },
    /// General contraction.
    DotGeneral(DotGeneral),
    /// General convolution.
    Convolution(Convolution),
    /// `(operand, indices[..., axes.len()])`: result is the index dimensions but the last, then the
    /// operand's dimensions that are not in `axes`. Indices are clamped into range.
    Gather {
        /// Strictly increasing operand axes that are indexed.
        axes: Vec<usize>,
    },
    /// `(operand, indices, updates)`: the inverse of `gather`; combines updates into a copy of the
    /// operand, in row-major order of the indices. `None` overwrites. Indices are clamped into
    /// range.
    Scatter {
        /// Strictly increasing operand axes that are indexed.
        axes: Vec<usize>,
        /// How an update meets the old value.
        reducer: Option<Reducer>,
    },
    /// `(operand, i64 starts[rank])`: a slice of `sizes`, its start clamped so that it fits.
    DynamicSlice {
        /// Extents of the slice.
        sizes: Vec<usize>,
    },
    /// `(operand, update, i64 starts[rank])`: overwrites a slice, its start clamped so that it
    /// fits.
    DynamicUpdateSlice,
    /// `operand -> (sorted, i32 indices)` along an axis; stable; NaN last ascending, first
    /// descending.
    Sort {
        /// The axis.
        axis: usize,
        /// Direction.
        order: SortOrder,
    },
    /// `u64 seed -> u32`: Philox 4x32-10 of (seed, site, global row-major index).
    RandomBits {
        /// Result shape.
        shape: Shape,
        /// Identity of this draw, kept by rematerialised clones.
        site: u64,
    },
    /// `(bool scalar, captures...)`, regions `then` and `else` from captures to results.
    If,
    /// `(carried..., captures...)`, regions `condition` and `body` from both; `carried` values are
    /// the results.
    While {
        /// Number of operands that are carried.
        carried: usize,
        /// Upper bound of trips; needed where differentiated.
        max_trips: Option<usize>,
    },
    /// `() -> i32` position of this rank along an axis of the mesh.
    RankIndex {
        /// The axis of the mesh.
        along: Axis,
    },
    /// Sum (or other fold) over ranks.
    AllReduce {
        /// The function that combines values.
        reducer: Reducer,
        /// Who takes part.
        channel: Channel,
    },
    /// Joins the ranks' operands along an axis.
    AllGather {
        /// The axis.
        axis: usize,
        /// Who takes part.
        channel: Channel,
    },
    /// Folds over ranks and keeps this rank's part of an axis.
    ReduceScatter {
        /// The function that combines values.
        reducer: Reducer,
        /// The axis.
        axis: usize,
        /// Who takes part.
        channel: Channel,
    },
    /// Cuts the operand along `split`, sends part i to rank i, joins what arrives along `concat`.
    AllToAll {
        /// The axis that is cut.
        split: usize,
        /// The axis along which parts are joined, in the order of ranks.
        concat: usize,
        /// Who takes part.
        channel: Channel,
    },
    /// Sends to `target` and receives from whoever names this rank; zeros where nobody does.
    Permute {
        /// Pairs (source, target), each at most once on its side.
        pairs: Vec<(usize, usize)>,
        /// Who takes part.
        channel: Channel,
    },
}

/// Direction of a sort.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum SortOrder {
    Ascending,
    Descending,
}

impl Reducer {
    /// The value that changes nothing, as f64 (integers clamp it to their range).
    pub const fn identity(self) -> f64 {
        match self {
            Reducer::Sum | Reducer::Or => 0.0,
            Reducer::Prod | Reducer::And => 1.0,
            Reducer::Max => f64::NEG_INFINITY,
            Reducer::Min => f64::INFINITY,
        }
    }

    /// The elementwise function that combines two values.
    pub const fn binary(self) -> Binary {
        match self {
            Reducer::Sum => Binary::Add,
            Reducer::Prod => Binary::Mul,
            Reducer::Max => Binary::Max,
            Reducer::Min => Binary::Min,
            Reducer::And => Binary::And,
            Reducer::Or => Binary::Or,
        }
    }
}

/// serde's name of a unit variant: the same word in IR text, benchmarks and reports.
fn variant_name<T: Serialize>(kind: &T) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        other => unreachable!("unit variants serialise to a string, not {other:?}"),
    }
}

impl Prim {
    /// The name in IR text: that of the elementwise function, or of the primitive.
    pub fn name(&self) -> String {
        match self {
            Prim::Unary { kind } => variant_name(kind),
            Prim::Binary { kind } => variant_name(kind),
            Prim::Compare { kind } => variant_name(kind),
            _ => match serde_json::to_value(self) {
                Ok(serde_json::Value::Object(map)) => {
                    map["op"].as_str().expect("the tag is a string").to_owned()
                }
                other => unreachable!("a primitive serialises to an object, not {other:?}"),
            },
        }
    }

    /// Attributes as JSON, without the name.
    pub fn attributes(&self) -> serde_json::Map<String, serde_json::Value> {
        let Ok(serde_json::Value::Object(mut map)) = serde_json::to_value(self) else {
            unreachable!("a primitive serialises to an object")
        };
        map.shift_remove("op");
        if matches!(self, Prim::Unary { .. } | Prim::Binary { .. } | Prim::Compare { .. }) {
            map.clear();
        }
        map
    }

    /// Reads back a name and attributes. `None` when no primitive has this name.
    pub fn parse(
        name: &str,
        mut attributes: serde_json::Map<String, serde_json::Value>,
    ) -> Option<Result<Prim, String>> {
        for tag in ["unary", "binary", "compare"] {
            let elementwise = serde_json::json!({ "op": tag, "kind": name });
            if let Ok(prim) = serde_json::from_value(elementwise) {
                return Some(Ok(prim));
            }
        }
        attributes.insert("op".into(), name.into());
        match serde_json::from_value(serde_json::Value::Object(attributes)) {
            Ok(prim) => Some(Ok(prim)),
            Err(e) if e.to_string().contains(&format!("unknown variant `{name}`")) => None,
            Err(e) => Some(Err(e.to_string())),
        }
    }

    /// True where every result element depends on the operand elements at the same index only.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Prim::Unary { .. }
                | Prim::Binary { .. }
                | Prim::Compare { .. }
                | Prim::Select
                | Prim::Convert { .. }
                | Prim::Bitcast { .. }
        )
    }

    /// The index of the operand that is written over a part of the first one, if that is what the
    /// op does. A back end can then write it in place.
    pub fn written_part(&self) -> Option<usize> {
        match self {
            Prim::DynamicUpdateSlice => Some(1),
            Prim::Scatter { reducer: None, .. } => Some(2),
            _ => None,
        }
    }

    /// The channel of a collective.
    pub fn channel(&self) -> Option<&Channel> {
        match self {
            Prim::AllReduce { channel, .. }
            | Prim::AllGather { channel, .. }
            | Prim::ReduceScatter { channel, .. }
            | Prim::AllToAll { channel, .. }
            | Prim::Permute { channel, .. } => Some(channel),
            _ => None,
        }
    }

    /// Bytes that each rank sends in a collective on an operand of so many bytes; 0 for other
    /// primitives. The algorithms are those that send as few as can be: rings, as NCCL has them for
    /// large operands.
    pub fn sent_bytes(&self, operand: u64) -> u64 {
        let ranks = self.channel().map_or(1, Channel::ranks) as u64;
        let pass = operand.saturating_mul(ranks - 1) / ranks;
        match self {
            Prim::AllReduce { .. } => pass.saturating_mul(2),
            Prim::ReduceScatter { .. } | Prim::AllToAll { .. } => pass,
            Prim::AllGather { .. } => operand.saturating_mul(ranks - 1),
            Prim::Permute { .. } => (operand as f64 * self.senders()) as u64,
            _ => 0,
        }
    }

    /// The share of the ranks of a permutation that send: of two neighbours in a line half, in a
    /// ring all.
    pub(crate) fn senders(&self) -> f64 {
        let Prim::Permute { pairs, .. } = self else { return 1.0 };
        let ranks: BTreeSet<usize> = pairs.iter().flat_map(|&(from, to)| [from, to]).collect();
        pairs.len() as f64 / ranks.len().max(1) as f64
    }
}
