//! Whole models, small, in every mode against the reference.

use crate::support::{check, models, random};
use overdrive_ir::DType;
use testkit::Tolerance;

#[test]
fn models_agree_with_the_reference_in_every_mode() {
    for (graph, shape) in [models::mlp(), models::conv(), models::transformer()] {
        check(&graph, &[random(DType::F32, &shape, 1)], Tolerance::new(DType::F32, 4096, 2.0));
    }
}
