//! Identities that hold in floating point: the same values with fewer nodes.

use super::Constants;
use crate::rebuild::NodeToCopy;
use overdrive_ir::{Binary, DType, Expr, Graph, Overflow, Pad, Prim, Reducer, Unary, Value};

/// Simpler expressions for the results of a node, if an identity applies.
pub(super) fn simpler<'b>(
    graph: &Graph,
    constants: &Constants,
    place: &NodeToCopy<'b, '_>,
) -> Option<Vec<Expr<'b>>> {
    let prim = place.node.op.prim()?;
    if let Prim::If = prim {
        let taken = constants.splat(place.node.operands[0])? != 0.0;
        return Some(
            place.builder.inline(&place.node.regions[!taken as usize], &place.operands[1..]),
        );
    }
    let one = match prim {
        Prim::Binary { kind } => binary(*kind, constants, place),
        Prim::Select => select(constants, place),
        Prim::Convert { to, overflow } => convert(graph, *to, *overflow, place),
        Prim::Unary { kind: kind @ (Unary::Neg | Unary::Not) } => {
            let inner = producer(graph, place)?;
            (inner.0 == &Prim::Unary { kind: *kind }).then(|| place.get(inner.1))
        }
        _ => movement(graph, prim, place),
    };
    one.map(|value| vec![value])
}

/// The primitive that made the first operand, and its own first operand.
fn producer<'g>(graph: &'g Graph, place: &NodeToCopy<'_, '_>) -> Option<(&'g Prim, Value)> {
    let node = graph.producer(*place.node.operands.first()?)?;
    Some((node.op.prim()?, *node.operands.first()?))
}

fn binary<'b>(kind: Binary, constants: &Constants, place: &NodeToCopy<'b, '_>) -> Option<Expr<'b>> {
    let [x, y] = place.operands[..] else { return None };
    let [a, b] = [0, 1].map(|i| constants.splat(place.node.operands[i]));
    let (is_float, is_bool) = (x.dtype().is_float(), x.dtype() == DType::Bool);
    let either = |neutral: f64| match () {
        () if b == Some(neutral) => Some(x),
        () if a == Some(neutral) => Some(y),
        () => None,
    };
    match (kind, b) {
        (Binary::Add, _) => either(0.0),
        (Binary::Sub, Some(0.0)) => Some(x),
        (Binary::Mul, _) => either(1.0),
        (Binary::Div | Binary::Pow, Some(1.0)) => Some(x),
        (Binary::Pow, Some(2.0)) => Some(x * x),
        // Exact: the reciprocal of a power of two is one.
        (Binary::Div, Some(c)) if is_float && is_power_of_two(c, x.dtype()) => Some(x * (1.0 / c)),
        (Binary::Max, _) if is_float => either(f64::NEG_INFINITY),
        (Binary::Min, _) if is_float => either(f64::INFINITY),
        (Binary::And, _) if is_bool => either(1.0),
        (Binary::Or, _) if is_bool => either(0.0),
        _ => None,
    }
}

/// True where `c` and its reciprocal are powers of two that `dtype` holds exactly.
fn is_power_of_two(c: f64, dtype: DType) -> bool {
    let mantissa = c.to_bits() & ((1 << 52) - 1);
    let exact = |v: f64| v.is_normal() && dtype.round(v, Overflow::Ieee) == v;
    mantissa == 0 && exact(c) && exact(1.0 / c) && (1e-4..1e4).contains(&c.abs())
}

fn select<'b>(constants: &Constants, place: &NodeToCopy<'b, '_>) -> Option<Expr<'b>> {
    let operands = &place.node.operands;
    match constants.splat(operands[0]) {
        Some(condition) => Some(place.operands[if condition != 0.0 { 1 } else { 2 }]),
        None => (operands[1] == operands[2]).then(|| place.operands[1]),
    }
}

fn convert<'b>(
    graph: &Graph,
    to: DType,
    overflow: Overflow,
    place: &NodeToCopy<'b, '_>,
) -> Option<Expr<'b>> {
    let x = place.operands[0];
    if x.dtype() == to {
        return Some(x);
    }
    let (inner, from) = producer(graph, place)?;
    let widened = matches!(inner, Prim::Convert { .. }) && widens(graph.ty(from).dtype, x.dtype());
    widened.then(|| match place.get(from) {
        source if source.dtype() == to => source,
        source => place.builder.op1(Prim::Convert { to, overflow }, &[source]),
    })
}

/// True where every value of `from` is one of `to`.
fn widens(from: DType, to: DType) -> bool {
    match to {
        DType::F64 => matches!(from, DType::F32 | DType::F16 | DType::BF16),
        DType::F32 => matches!(from, DType::F16 | DType::BF16),
        _ => false,
    }
}

fn movement<'b>(graph: &Graph, prim: &Prim, place: &NodeToCopy<'b, '_>) -> Option<Expr<'b>> {
    let x = *place.operands.first()?;
    let before = producer(graph, place);
    match prim {
        Prim::Reshape { shape } => match before {
            _ if x.shape() == *shape => Some(x),
            Some((Prim::Reshape { .. }, from)) => Some(place.get(from).reshape(shape.clone())),
            _ => None,
        },
        Prim::Transpose { perm } => match before {
            _ if perm.is_sorted() => Some(x),
            Some((Prim::Transpose { perm: inner }, from)) => {
                let both: Vec<usize> = perm.iter().map(|&p| inner[p]).collect();
                Some(place.get(from).transpose(&both))
            }
            _ => None,
        },
        Prim::Broadcast { shape, dims } => match before {
            _ if x.shape() == *shape => Some(x),
            Some((Prim::Broadcast { dims: inner, .. }, from)) => {
                let both: Vec<usize> = inner.iter().map(|&d| dims[d]).collect();
                Some(place.get(from).broadcast_in(shape, &both))
            }
            _ => None,
        },
        Prim::Slice { .. } if graph.ty(place.node.results[0]) == &x.ty() => Some(x),
        Prim::Pad { pads } if pads.iter().all(|pad| *pad == Pad::default()) => Some(x),
        Prim::Concat { .. } if place.operands.len() == 1 => Some(x),
        Prim::Reduce {
            reducer: Reducer::Sum | Reducer::Prod | Reducer::Max | Reducer::Min,
            axes,
        } if axes.iter().all(|&axis| x.shape()[axis].size() == Some(1)) => {
            Some(x.reshape(graph.ty(place.node.results[0]).shape.clone()))
        }
        _ => None,
    }
}
