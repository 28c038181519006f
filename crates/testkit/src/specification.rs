//! An op against its own specification: types, expansion.

use crate::tolerance::magnitude;
use crate::{Case, Tolerance, compare};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, verify};

/// Errs where `infer`, `eval` and `expand` do not say the same of a case.
pub fn check_expansion(case: &Case, seed: u64) -> Result<(), String> {
    let inputs = case.inputs(seed);
    let expected = eval(&case.graph(), &inputs, &mut States::new());
    let (declared, found) =
        (case.result_types(), expected.iter().map(Array::ty).collect::<Vec<_>>());
    if declared != found {
        return Err(format!("{}: infer says {declared:?}, eval gives {found:?}", case.describe()));
    }
    let graph = case.sample.op.expansion(&case.types(), &case.sample.regions);
    verify(&graph).map_err(|e| format!("{}: the expansion is damaged: {e}", case.describe()))?;
    let expanded = eval(&graph, &inputs, &mut States::new());
    // The evaluator rounds constants and conversions to their types; f64 is where agreement is
    // strict.
    let length = inputs.iter().map(Array::len).max().unwrap_or(1);
    let scale = magnitude(inputs.iter().chain(&expected));
    for (i, (expected, expanded)) in expected.iter().zip(&expanded).enumerate() {
        // The coarsest type between operands and result: a sample may hold one of them in 16 bits.
        let coarser =
            expected.dtype.is_arithmetic_float() && expected.dtype.epsilon() > case.dtype.epsilon();
        let dtype = if coarser { expected.dtype } else { case.dtype };
        compare(expected, expanded, Tolerance::new(dtype, length, scale))
            .map_err(|e| format!("{}: result {i} of the expansion: {e}", case.describe()))?;
    }
    Ok(())
}
