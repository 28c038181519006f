//! Each primitive as operations of StableHLO.

use super::convert::convert;
use super::elementwise::{binary, compare, unary};
use super::literal::{Unsaid, array};
use super::writer::{Term, Writer};
use super::{contraction, control, indexing, random, reductions};
use overdrive_ir::{DType, Graph, Prim, TensorType};

pub(super) fn write(
    prim: &Prim,
    w: &mut Writer,
    (x, regions): (&[Term], &[Graph]),
    types: &[TensorType],
) -> Result<Vec<Term>, Unsaid> {
    let ty = || types[0].clone();
    let result = match prim {
        Prim::Constant { value } => w.constant(value),
        Prim::Unary { kind } => unary(*kind, w, &x[0]),
        Prim::Binary { kind } => binary(*kind, w, &x[0], &x[1]),
        Prim::Compare { kind } => compare(*kind, w, &x[0], &x[1]),
        Prim::Select => w.select(&x[0], &x[1], &x[2]),
        Prim::Convert { to, overflow } => convert(w, &x[0], *to, *overflow),
        Prim::Bitcast { to } if x[0].dtype() == *to => x[0].clone(),
        Prim::Bitcast { to } => w.bitcast(&x[0], *to),
        Prim::Broadcast { dims, .. } => {
            let attribute = format!("broadcast_dimensions = {}", array(dims));
            w.apply("broadcast_in_dim", &[&x[0]], &attribute, ty())
        }
        Prim::Reshape { .. } => w.reshape(&x[0], &types[0].sizes()),
        Prim::Transpose { perm } => {
            w.apply("transpose", &[&x[0]], &format!("permutation = {}", array(perm)), ty())
        }
        Prim::Slice { start, limit, stride } => {
            let [start, limit, stride] = [start, limit, stride].map(|part| array(part));
            let attributes =
                format!("limit_indices = {limit}, start_indices = {start}, strides = {stride}");
            w.apply("slice", &[&x[0]], &attributes, ty())
        }
        Prim::Pad { pads } => {
            let low: Vec<i64> = pads.iter().map(|pad| pad.low).collect();
            let high: Vec<i64> = pads.iter().map(|pad| pad.high).collect();
            let interior: Vec<usize> = pads.iter().map(|pad| pad.interior).collect();
            let (low, high, interior) = (array(&low), array(&high), array(&interior));
            let attributes = format!(
                "edge_padding_high = {high}, edge_padding_low = {low}, interior_padding = \
                 {interior}"
            );
            w.apply("pad", &[&x[0], &x[1]], &attributes, ty())
        }
        Prim::Concat { axis } => {
            let parts: Vec<&Term> = x.iter().collect();
            w.apply("concatenate", &parts, &format!("dimension = {axis} : i64"), ty())
        }
        Prim::Iota { dtype, axis, .. } => {
            let counts = dtype.is_arithmetic_float() || dtype.is_int();
            let counted = types[0].with_dtype(if counts { *dtype } else { DType::F32 });
            let index = w.apply("iota", &[], &format!("iota_dimension = {axis} : i64"), counted);
            w.cast(&index, *dtype)
        }
        Prim::Reduce { reducer, axes } => reductions::reduce(w, &x[0], *reducer, axes),
        Prim::ReduceWindow { reducer, windows } => {
            reductions::reduce_window(w, &x[0], (*reducer, windows), ty())
        }
        Prim::DotGeneral(dot) => contraction::dot(w, [&x[0], &x[1]], dot, ty()),
        Prim::Convolution(conv) => contraction::convolution(w, [&x[0], &x[1]], conv, ty()),
        Prim::Gather { axes } => indexing::gather(w, [&x[0], &x[1]], axes, ty()),
        Prim::Scatter { axes, reducer } => {
            indexing::scatter(w, [&x[0], &x[1], &x[2]], axes, *reducer)
        }
        Prim::DynamicSlice { sizes } => indexing::dynamic_slice(w, [&x[0], &x[1]], sizes),
        Prim::DynamicUpdateSlice => indexing::dynamic_update_slice(w, [&x[0], &x[1], &x[2]]),
        Prim::Sort { axis, order } => return Ok(indexing::sort(w, &x[0], *axis, *order)),
        Prim::RandomBits { site, .. } => random::bits(w, &x[0], *site, &types[0]),
        Prim::If => return Ok(control::branch(w, x, regions, types)),
        Prim::While { carried, max_trips } => {
            return Ok(control::repeat(w, x, (*carried, *max_trips), regions));
        }
        Prim::RankIndex { .. }
        | Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => {
            return Err(Unsaid(
                "the module is for one device: split the work among ranks elsewhere".into(),
            ));
        }
    };
    Ok(vec![result])
}
