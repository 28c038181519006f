//! Casts that take in their surroundings give the same values, and take in nothing else.

#![allow(clippy::unwrap_used)]

use super::casts;
use crate::legalize;
use overdrive_ir::eval::eval_region;
use overdrive_ir::ops::{CastTranspose, gelu::Approximation};
use overdrive_ir::{
    Builder, Call, DType, Decline, Described, Description, Expr, Graph, Kernel, Reducer, Target,
    TensorType, Unary,
};
use testkit::random_inputs;

/// Samples, tokens and width; two bands and a part of a third.
const SIZES: [usize; 3] = [2, 130, 24];

/// A device with a kernel for casts, also with regions.
fn device() -> impl Target {
    let answer = |call: &Call<'_>| match call {
        Call::Op { op, .. } if op.name() == "cast_transpose" => Ok(Kernel::default()),
        _ => Err(Decline::NoKernel),
    };
    Described { description: Description::default(), answer }
}

/// A graph of inputs `h`, `dy` and `scale`.
fn graph(of: impl for<'b> FnOnce([Expr<'b>; 3]) -> Vec<Expr<'b>>) -> Graph {
    let b = Builder::new("casts");
    let tensor = |name| b.input(name, TensorType::new(DType::BF16, SIZES));
    let inputs = [tensor("h"), tensor("dy"), b.input("scale", TensorType::scalar(DType::F32))];
    for (i, value) in of(inputs).into_iter().enumerate() {
        b.output(&i.to_string(), value);
    }
    legalize(&b.finish().unwrap(), &device(), &mut Vec::new()).unwrap()
}

fn matrix(x: Expr<'_>) -> Expr<'_> {
    x.reshape([SIZES[0] * SIZES[1], SIZES[2]])
}

fn cast<'b>(x: Expr<'b>, scale: Expr<'b>) -> Vec<Expr<'b>> {
    matrix(x).cast_transpose(scale, DType::F8E4M3).to_vec()
}

fn gelu(h: Expr<'_>) -> Expr<'_> {
    h.convert(DType::F32).gelu(Approximation::Tanh).convert(h.dtype())
}

/// The number of tensors of each cast, whether it has a region, and whether it sums; in order.
fn found(graph: &Graph) -> Vec<(usize, bool, bool)> {
    let of = |node: &overdrive_ir::Node| {
        let op = node.op.composite::<CastTranspose>()?;
        Some((node.operands.len() - 1, !node.regions.is_empty(), op.sums))
    };
    let mut found: Vec<_> = graph.nodes().iter().filter_map(of).collect();
    found.sort_unstable();
    found
}

/// The pass over a graph, which computes what it did: codes exactly, sums as their order allows.
fn passed(graph: &Graph) -> Graph {
    let after = casts(graph, &device()).unwrap();
    let inputs = random_inputs(graph, 1);
    let values = |graph: &Graph| eval_region(graph, &inputs);
    for (before, after) in values(graph).iter().zip(values(&after)) {
        let is_code = before.dtype.bits() == 8;
        let error = |i: usize| (before.get(i) - after.get(i)).abs();
        let most = (0..before.len()).map(error).fold(0.0, f64::max);
        assert!(most <= if is_code { 0.0 } else { 0.1 }, "{most}: {graph}");
    }
    after
}

#[test]
fn a_gelu_and_its_gradient_become_regions_of_casts_that_sum_the_bias() {
    let graph = graph(|[h, dy, scale]| {
        let slope = h.convert(DType::F32).unary(Unary::Tanh);
        let dh = (dy.convert(DType::F32) * slope).convert(DType::BF16);
        let bias = dh.reduce(Reducer::Sum, &[0, 1]).convert(DType::F32);
        [vec![h], cast(gelu(h), scale), vec![bias], cast(dh, scale)].concat()
    });
    assert_eq!(found(&graph), [(1, false, false), (1, false, false)]);
    assert_eq!(found(&passed(&graph)), [(1, true, false), (2, true, true)]);
    // Without a kernel nothing changes.
    let without = overdrive_ir::WithoutKernels::default();
    assert_eq!(casts(&graph, &without).unwrap(), graph);
}

#[test]
fn sums_of_a_tensor_that_is_stored_come_of_its_cast() {
    for is_widened_first in [false, true] {
        let graph = graph(|[h, _, scale]| {
            let bias = match is_widened_first {
                true => h.convert(DType::F32).reduce(Reducer::Sum, &[0, 1]),
                false => h.reduce(Reducer::Sum, &[0, 1]).convert(DType::F32),
            };
            [vec![bias, h], cast(h, scale)].concat()
        });
        assert_eq!(found(&passed(&graph)), [(1, false, true)]);
    }
}

#[test]
fn what_others_read_or_no_element_gives_stays_outside() {
    // x is an output; a vector along rows; a sum over other axes; 32 bits; a scale from later.
    let stored = graph(|[h, _, scale]| [vec![gelu(h)], cast(gelu(h), scale)].concat());
    let stored = crate::cse(&stored).unwrap();
    let vector = graph(|[h, _, scale]| {
        let of_row = h.slice_axis(0, 0, 1).slice_axis(1, 0, 1).reshape([SIZES[2]]);
        let spread = of_row.broadcast_in(&h.shape(), &[2]).convert(DType::F32);
        cast((h.convert(DType::F32) * spread).convert(DType::BF16), scale)
    });
    let other_axes =
        graph(|[h, _, scale]| [vec![h, h.reduce(Reducer::Sum, &[0])], cast(h, scale)].concat());
    let wide = graph(|[h, _, scale]| {
        let stored = h.convert(DType::F32).reduce(Reducer::Max, &[2]);
        let spread = stored.broadcast_in(&h.shape(), &[0, 1]);
        cast((h.convert(DType::F32) - spread).convert(DType::BF16), scale)
    });
    let later = graph(|[h, _, scale]| {
        let sum = h.reduce(Reducer::Sum, &[0, 1]).convert(DType::F32);
        [vec![sum, h], cast(h, scale * 2.0)].concat()
    });
    for graph in [stored, vector, other_axes, wide, later] {
        assert_eq!(found(&passed(&graph)), [(1, false, false)], "{graph}");
    }
}
