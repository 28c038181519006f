//! Every op against its specification, from its own samples.

use overdrive_ir::ops::OPS;
use overdrive_ir::{DType, Operation, Types};
use testkit::{Case, check_expansion};

#[test]
fn every_expansion_agrees_with_eval() {
    let mut failures = Vec::new();
    for op in OPS {
        let samples = (op.samples)();
        assert!(!samples.is_empty(), "`{}` has no sample", op.name);
        for sample in samples {
            let cases = Case::all(&sample).unwrap_or_else(|e| panic!("{e}"));
            for dtype in [DType::F32, DType::F64] {
                assert!(cases.iter().any(|case| case.dtype == dtype), "`{}` takes no {dtype}", op.name);
            }
            failures.extend(cases.iter().filter_map(|case| check_expansion(case, 7).err()));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn names_are_inferred_through_and_ops_survive_their_attributes() {
    for op in OPS {
        assert!(op.source.starts_with(&format!("//! `{}", op.name)), "{}: open with the formula", op.name);
        for sample in (op.samples)() {
            let operands: Vec<_> = sample.operands.iter().map(|operand| operand.ty.clone()).collect();
            let types = Types { operands: &operands, regions: &sample.regions };
            let results = sample.op.infer(&types);
            assert!(results.is_ok(), "{:?} of named dimensions: {results:?}", sample.op);
            let parsed = Operation::parse(op.name, sample.op.attributes());
            assert_eq!(parsed.as_ref(), Ok(&sample.op), "attributes of `{}`", op.name);
        }
    }
    assert!(OPS.windows(2).all(|pair| pair[0].name < pair[1].name), "OPS is sorted");
}
