//! How a state holds the weight of a layer: transposed or not, and which rows of it a product
//! reads.

use overdrive_ir::{Graph, Operation, Origin, Prim, Value};
use std::ops::Range;

/// How a layer contracts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LayerKind {
    /// `x w`, w `[K, N]`.
    Linear,
    /// A convolution with w `[O, C/groups, kernel]`: N is O, K the rest.
    Convolution,
}

impl LayerKind {
    /// The axis of channels in an input or an output of this rank.
    pub(super) fn channel_axis(self, rank: usize) -> usize {
        match self {
            LayerKind::Linear => rank - 1,
            LayerKind::Convolution => 1,
        }
    }
}

/// The axis of a state that is K, which is summed over.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KAxis {
    /// `[K, N]`.
    InputMajor,
    /// `[N, K]`, or `[O, C/groups, kernel]` of a convolution.
    OutputMajor,
}

impl KAxis {
    /// `[N, K]` of a state of these extents.
    pub(super) fn matrix(self, kind: LayerKind, sizes: &[usize]) -> Option<[usize; 2]> {
        match (kind, self, sizes) {
            (LayerKind::Linear, Self::InputMajor, &[k, n]) => Some([n, k]),
            (LayerKind::Linear, Self::OutputMajor, &[n, k]) => Some([n, k]),
            (LayerKind::Convolution, _, &[o, ref rest @ ..]) => Some([o, rest.iter().product()]),
            _ => None,
        }
    }
}

/// How a state holds a weight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Extents of the state.
    pub sizes: Vec<usize>,
    /// The axis that is K.
    pub order: KAxis,
}

impl Held {
    /// Elements of the state as rows of K.
    pub(super) fn rows(&self, stored: Vec<f64>, [n, k]: [usize; 2]) -> Vec<f64> {
        match self.order {
            KAxis::OutputMajor => stored,
            KAxis::InputMajor => (0..n * k).map(|i| stored[i % k * n + i / k]).collect(),
        }
    }

    /// Rows of K in the order of the state.
    pub(super) fn stored(&self, rows: &[f64], [n, k]: [usize; 2]) -> Vec<f64> {
        match self.order {
            KAxis::OutputMajor => rows.to_vec(),
            KAxis::InputMajor => (0..n * k).map(|i| rows[i % n * k + i / n]).collect(),
        }
    }
}

/// The weight that a product reads.
pub(super) struct Weight {
    /// Index of its state.
    pub(super) state: usize,
    pub(super) order: KAxis,
    /// The rows of N that are read.
    pub(super) rows: Range<usize>,
    /// Values between the state and the product.
    pub(super) views: Vec<Value>,
}

impl Weight {
    /// The weight behind the second operand of a product, if transposes and slices of outputs are
    /// all that stands between.
    pub(super) fn of(graph: &Graph, operand: Value, kind: LayerKind) -> Option<Self> {
        let mut order = match kind {
            LayerKind::Linear => KAxis::InputMajor,
            LayerKind::Convolution => KAxis::OutputMajor,
        };
        let size = |value: Value, order: KAxis, at: usize| {
            let axis = if order == KAxis::OutputMajor { at } else { 1 - at };
            graph.ty(value).shape.0.get(axis).and_then(|dim| dim.size())
        };
        let mut rows = 0..size(operand, order, 0)?;
        let (mut value, mut views) = (operand, Vec::new());
        loop {
            if let Origin::State(state) = graph.origin(value) {
                return Some(Self { state, order, rows, views });
            }
            let node = graph.producer(value).filter(|_| kind == LayerKind::Linear)?;
            match &node.op {
                Operation::Prim(Prim::Transpose { perm }) if perm[..] == [1, 0] => {
                    order = match order {
                        KAxis::InputMajor => KAxis::OutputMajor,
                        KAxis::OutputMajor => KAxis::InputMajor,
                    };
                }
                Operation::Prim(Prim::Slice { start, limit, stride }) if stride[..] == [1, 1] => {
                    let [outputs, inputs] =
                        if order == KAxis::OutputMajor { [0, 1] } else { [1, 0] };
                    let whole = size(node.operands[0], order, 1)?;
                    if (start[inputs], limit[inputs]) != (0, whole) {
                        return None;
                    }
                    rows = rows.start + start[outputs]..rows.end + start[outputs];
                }
                _ => return None,
            }
            views.push(value);
            value = node.operands[0];
        }
    }
}
