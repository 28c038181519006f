//! Types, f64 semantics, costs and gradients of the primitives, by family.
//!
//! Each family file has `infer` and `eval`; gradients stand in `grad/`. Invariant: a result's type
//! depends on types and attributes only, never on values.

pub(crate) mod collectives;
mod contraction;
mod control;
mod cost;
mod elementwise;
mod grad;
mod indexing;
mod movement;
mod reduction;

pub(crate) use cost::cost;
pub(crate) use grad::grad;

use crate::eval::philox;
use crate::{Array, DType, Graph, Mismatch, Prim, Shape, TensorType, Types};

pub(crate) fn infer(prim: &Prim, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
    let one = |ty: Result<TensorType, Mismatch>| ty.map(|ty| vec![ty]);
    match prim {
        Prim::Constant { value } => {
            types.exactly::<0>()?;
            Ok(vec![value.ty().clone()])
        }
        Prim::Unary { .. }
        | Prim::Binary { .. }
        | Prim::Compare { .. }
        | Prim::Select
        | Prim::Convert { .. }
        | Prim::Bitcast { .. } => one(elementwise::infer(prim, types)),
        Prim::Broadcast { .. }
        | Prim::Reshape { .. }
        | Prim::Transpose { .. }
        | Prim::Slice { .. }
        | Prim::Pad { .. }
        | Prim::Concat { .. } => one(movement::infer(prim, types)),
        Prim::Iota { dtype, shape, axis } => {
            types.exactly::<0>()?;
            check_axis(*axis, shape)?;
            Ok(vec![TensorType::new(*dtype, shape.clone())])
        }
        Prim::Reduce { .. } | Prim::ReduceWindow { .. } => one(reduction::infer(prim, types)),
        Prim::DotGeneral(dot) => one(contraction::infer_dot(dot, types)),
        Prim::Convolution(conv) => one(contraction::infer_convolution(conv, types)),
        Prim::Gather { .. }
        | Prim::Scatter { .. }
        | Prim::DynamicSlice { .. }
        | Prim::DynamicUpdateSlice
        | Prim::Sort { .. } => indexing::infer(prim, types),
        Prim::RandomBits { shape, .. } => {
            let [seed] = types.exactly()?;
            if *seed != TensorType::scalar(DType::U64) {
                return Err(Mismatch::new("a u64[] seed", seed.to_string()));
            }
            Ok(vec![TensorType::new(DType::U32, shape.clone())])
        }
        Prim::If | Prim::While { .. } => control::infer(prim, types),
        Prim::RankIndex { .. }
        | Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => one(collectives::infer(prim, types)),
    }
}

pub(crate) fn eval(prim: &Prim, args: &[Array], regions: &[Graph]) -> Vec<Array> {
    match prim {
        Prim::Constant { value } => vec![Array::from(value)],
        Prim::Unary { .. }
        | Prim::Binary { .. }
        | Prim::Compare { .. }
        | Prim::Select
        | Prim::Convert { .. }
        | Prim::Bitcast { .. } => vec![elementwise::eval(prim, args)],
        Prim::Broadcast { .. }
        | Prim::Reshape { .. }
        | Prim::Transpose { .. }
        | Prim::Slice { .. }
        | Prim::Pad { .. }
        | Prim::Concat { .. } => vec![movement::eval(prim, args)],
        Prim::Iota { dtype, shape, axis } => {
            vec![Array::build(*dtype, &concrete(shape), |index| index[*axis] as f64)]
        }
        Prim::Reduce { .. } | Prim::ReduceWindow { .. } => vec![reduction::eval(prim, args)],
        Prim::DotGeneral(dot) => vec![contraction::eval_dot(dot, args)],
        Prim::Convolution(conv) => vec![contraction::eval_convolution(conv, args)],
        Prim::Gather { .. }
        | Prim::Scatter { .. }
        | Prim::DynamicSlice { .. }
        | Prim::DynamicUpdateSlice
        | Prim::Sort { .. } => indexing::eval(prim, args),
        Prim::RandomBits { shape, site } => {
            let (seed, shape) = (args[0].ints()[0] as u64, concrete(shape));
            let count = shape.iter().product::<usize>() as u64;
            let bits = (0..count).map(|i| philox::bits(seed, *site, i) as i128).collect();
            vec![Array::int(DType::U32, &shape, bits)]
        }
        Prim::If => {
            let region = &regions[(args[0].get(0) == 0.0) as usize];
            crate::eval::eval_region(region, &args[1..])
        }
        Prim::While { .. }
        | Prim::RankIndex { .. }
        | Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => unreachable!("`{}` is evaluated over ranks", prim.name()),
    }
}

/// Extents of an attribute shape. Only after `bind`.
fn concrete(shape: &Shape) -> Vec<usize> {
    shape.known().expect("shapes are concrete after `bind`")
}

/// Errs unless `axis` is one of `shape`.
fn check_axis(axis: usize, shape: &Shape) -> Result<(), Mismatch> {
    if axis < shape.rank() {
        return Ok(());
    }
    Err(Mismatch::new(format!("an axis below {}", shape.rank()), format!("axis {axis} of {shape}")))
}

/// Errs unless `axes` are strictly increasing axes of `shape`.
fn check_axes(axes: &[usize], shape: &Shape) -> Result<(), Mismatch> {
    axes.iter().try_for_each(|&axis| check_axis(axis, shape))?;
    if axes.windows(2).all(|w| w[0] < w[1]) {
        return Ok(());
    }
    Err(Mismatch::new("strictly increasing axes", format!("{axes:?}")))
}

/// Extents of a type, or a request to bind first.
fn known(ty: &TensorType) -> Result<Vec<usize>, Mismatch> {
    ty.shape.known().ok_or_else(|| {
        Mismatch::new("concrete sizes", ty.to_string()).remedy("bind the named dimensions first")
    })
}
