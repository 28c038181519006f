//! Every primitive against its own `infer` and against central differences, from the samples of the
//! testkit.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, DType, Prim};
use std::collections::BTreeSet;
use testkit::{Case, FAMILIES, Gradients, derivative, family, prim_samples};

fn cases() -> Vec<(Prim, Case)> {
    let mut cases = Vec::new();
    for sample in prim_samples() {
        let prim = sample.op.prim().unwrap().clone();
        let all = Case::all(&sample).unwrap_or_else(|e| panic!("{e}"));
        cases.extend(all.into_iter().map(|case| (prim.clone(), case)));
    }
    cases
}

#[test]
fn every_family_has_samples() {
    let sampled: BTreeSet<&str> =
        prim_samples().iter().filter_map(|s| family(s.op.prim().unwrap())).collect();
    assert_eq!(sampled, BTreeSet::from(FAMILIES));
}

#[test]
fn infer_says_what_eval_gives() {
    for (_, case) in cases() {
        let results = eval(&case.graph(), &case.inputs(5), &mut States::new());
        let found: Vec<_> = results.iter().map(Array::ty).collect();
        assert_eq!(case.result_types(), found, "{}", case.describe());
    }
}

/// Rounding passes the gradient through, unlike a staircase function.
fn rounds(prim: &Prim) -> bool {
    matches!(prim, Prim::Convert { .. })
}

#[test]
fn every_gradient_agrees_with_central_differences_to_second_order() {
    let mut failures = Vec::new();
    for (_, case) in cases().iter().filter(|(prim, case)| case.dtype == DType::F64 && !rounds(prim))
    {
        let (graph, point) = (case.graph(), case.inputs(3));
        let first = Gradients::at(&graph, &point, 11).and_then(|g| g.check(23));
        let second = derivative(&graph, &point, 11)
            .and_then(|(graph, point)| Gradients::at(&graph, &point, 31)?.check(47));
        for (order, result) in [(1, first), (2, second)] {
            failures
                .extend(result.err().map(|e| format!("order {order}, {}: {e}", case.describe())));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_conversion_passes_its_cotangent_through() {
    let samples =
        cases().into_iter().filter(|(prim, case)| rounds(prim) && case.dtype == DType::F64);
    let mut checked = 0;
    for (prim, case) in samples {
        let Prim::Convert { to, .. } = prim else { unreachable!("filtered above") };
        let gradients = Gradients::at(&case.graph(), &case.inputs(3), 11).unwrap();
        let expected = if to.is_arithmetic_float() { 9 } else { 0 };
        for (_, grad) in &gradients.grads {
            assert_eq!(
                grad.floats().iter().filter(|g| **g != 0.0).count(),
                expected,
                "{}",
                case.describe()
            );
            checked += 1;
        }
    }
    assert!(checked >= 5, "conversions from f64 are among the samples");
}
