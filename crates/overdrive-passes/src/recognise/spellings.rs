//! Other ways to write ops: forms of exporters and textbooks that differ from our expansions even
//! after `recognise/canonical.rs`.
//!
//! A test evaluates each of them against the op's definition, so that a wrong one cannot stay.

use overdrive_ir::ops::{Gelu, gelu::Approximation};
use overdrive_ir::{Expr, Operation};

/// Writes an op with these attributes on these operands; `None` where this form does not exist.
pub type Spelling = for<'b> fn(&Operation, &[Expr<'b>]) -> Option<Expr<'b>>;

/// Spellings by the name of the op.
pub const SPELLINGS: &[(&str, Spelling)] = &[("gelu", gelu_by_cube)];

/// `x / 2 (1 + tanh(√(2/π) (x + c x³)))`
fn gelu_by_cube<'b>(op: &Operation, args: &[Expr<'b>]) -> Option<Expr<'b>> {
    let (gelu, x) = (op.composite::<Gelu>()?, args[0]);
    (gelu.approximation == Approximation::Tanh).then(|| {
        let slope = (2.0 / std::f64::consts::PI).sqrt();
        x * 0.5 * (((x + x * x * x * 0.044715) * slope).tanh() + 1.0)
    })
}
