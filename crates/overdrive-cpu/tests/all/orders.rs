//! Values that are stored in the order that a reader wants, against the reference, in every mode.

use crate::support::{check, graph, random};
use overdrive_ir::DType;
use testkit::Tolerance;

/// A loop reads any order, so a transpose beside it says how a value lies. A value that is reshaped
/// before both of them keeps its own order.
#[test]
fn joined_dimensions_are_read_by_a_transpose_and_by_a_loop() {
    let inputs = [random(DType::F32, &[2, 3, 5], 1), random(DType::F32, &[5, 4], 2)];
    let graph = graph("joined", &inputs, |_, x| {
        let joined = x[0].linear(x[1], None).reshape([6usize, 4]);
        vec![joined.transpose(&[1, 0]).reshape([24usize]), joined.relu()]
    });
    check(&graph, &inputs, Tolerance::new(DType::F32, 5, 10.0));
}
