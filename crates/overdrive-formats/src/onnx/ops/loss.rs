//! Losses over classes on axis 1.

use super::activation::log_probabilities;
use crate::onnx::axes::sizes;
use crate::onnx::call::{Call, Outcome, one};
use crate::onnx::fault::{Fault, invalid};
use crate::onnx::item::ItemValue;
use overdrive_ir::{Compare, DType, Expr, Reducer, Tensor};

/// `-w[t] log p[t]` for log-probabilities `[N, C, ...]` and targets `[N, ...]`, then reduced as the
/// node says.
fn likelihood<'b>(c: &Call<'_, 'b>, log_p: Expr<'b>) -> Result<Expr<'b>, Fault> {
    let (target, shape) = (c.x(1)?.convert(DType::I64), sizes(log_p)?);
    let without: Vec<usize> = (0..shape.len()).filter(|&a| a != 1).collect();
    if shape.len() < 2
        || sizes(target)? != without.iter().map(|&a| shape[a]).collect::<Vec<usize>>()
    {
        return Err(invalid("targets of the input without its axis 1", target.ty().to_string()));
    }
    let classes = c.b.iota(DType::I64, shape.clone(), 1);
    let chosen = classes.compare(Compare::Eq, target.broadcast_in(&shape.clone().into(), &without));
    let zero = log_p.constant(0.0);
    let picked = |x: Expr<'b>| chosen.select(x, zero).reduce(Reducer::Sum, &[1]);
    let weight = match c.maybe(2)? {
        Some(weight) => {
            picked(weight.convert(log_p.dtype()).broadcast_in(&shape.clone().into(), &[1]))
        }
        None => c.b.full(log_p.dtype(), target.shape(), 1.0),
    };
    let weight = match c.attribute("ignore_index").map(|a| a.i()) {
        Some(ignored) => {
            let ignored = c.b.constant(Tensor::from_ints(
                DType::I64,
                overdrive_ir::Shape::default(),
                &[ignored.into()],
            ));
            target.compare(Compare::Eq, ignored).select(zero, weight)
        }
        None => weight,
    };
    // A target that is ignored may lie outside the classes, where nothing is picked: 0 and not -0
    // times infinity.
    let losses = -(picked(log_p) * weight);
    let all: Vec<usize> = (0..losses.rank()).collect();
    match c.text_or("reduction", "mean").as_str() {
        "none" => Ok(losses),
        "sum" => Ok(losses.reduce(Reducer::Sum, &all)),
        "mean" => Ok(losses.reduce(Reducer::Sum, &all) / weight.reduce(Reducer::Sum, &all)),
        other => Err(invalid("reduction none, sum or mean", other)),
    }
}

pub(super) fn negative_log_likelihood<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    one(likelihood(c, x.widen())?.convert(x.dtype()))
}

pub(super) fn softmax_cross_entropy<'b>(c: &Call<'_, 'b>) -> Outcome<'b> {
    let x = c.x(0)?;
    if sizes(x)?.len() < 2 {
        return Err(invalid("scores of [N, C, ...]", x.ty().to_string()));
    }
    let log_p = log_probabilities(x.widen(), 1);
    let loss = likelihood(c, log_p)?.convert(x.dtype());
    Ok(vec![ItemValue::from(loss), log_p.convert(x.dtype()).into()])
}
