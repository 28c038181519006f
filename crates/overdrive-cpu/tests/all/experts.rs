//! Mixtures: a call leaves out the steps of experts that no row chose, and its results are those of
//! the definition, whatever earlier calls left.

use crate::support::{MODES, Session, check, graph, random};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::plan::OnlyIf;
use overdrive_ir::{Array, Backend, DType, Graph, Init, Mode, TensorType};
use testkit::{Tolerance, compare};

const EXPERTS: usize = 5;
const WIDTH: usize = 48;

/// Rows of x through five experts, with the weights that are given, and an expert that another
/// result reads too.
fn mixture(given: &[Array]) -> Graph {
    graph("mixture", given, |b, x| {
        let expert = |index: usize| {
            let ty = TensorType::new(DType::F32, [WIDTH, WIDTH]);
            let matrix = |name: &str, seed: u64| {
                let init = Init::Normal { std: 0.2, seed };
                b.state(&format!("{name}{index}"), ty.clone(), init)
            };
            (x[0].matmul(matrix("up", 1)).silu()).matmul(matrix("down", 2))
        };
        let tensors: Vec<_> = (0..EXPERTS).map(expert).collect();
        let sums = [x[1].weighed_sum(0, &tensors[..3]), x[1].weighed_sum(3, &tensors[3..])];
        vec![x[0] + sums[0] + sums[1], tensors[4] * 2.0]
    })
}

/// Weights of rows, each with two of the experts that are chosen.
fn weights(rows: usize, chosen: &[usize]) -> Array {
    Array::build(DType::F32, &[rows, EXPERTS], |at| {
        let place = chosen.iter().position(|&expert| expert == at[1]);
        let has = place.is_some_and(|place| (place + at[0]) % chosen.len() < 2);
        if has { 0.25 + at[1] as f64 / 8.0 } else { 0.0 }
    })
}

#[test]
fn calls_with_other_experts_follow_each_other() {
    let tolerance = Tolerance::new(DType::F32, WIDTH * EXPERTS, 8.0);
    for rows in [1, 7] {
        let x = random(DType::F32, &[rows, WIDTH], 3);
        let given = [x.clone(), weights(rows, &[0, 1, 2, 3, 4])];
        let made = mixture(&given);
        check(&made, &given, tolerance);
        let tensors: Vec<_> = given.iter().map(Array::to_tensor).collect();
        for mode in MODES {
            let mut session = Session::new(&made, mode, 2, &tensors).unwrap();
            for chosen in [&[0, 1, 2, 3, 4][..], &[3, 1], &[4, 0], &[], &[2]] {
                let given = [x.clone(), weights(rows, chosen)];
                session.inputs[1] = session.backend.upload(&given[1].to_tensor()).unwrap();
                session.run().unwrap();
                let expected = eval(&made, &given, &mut States::new());
                for (expected, found) in expected.iter().zip(&session.outputs()) {
                    compare(expected, found, tolerance)
                        .unwrap_or_else(|e| panic!("{rows} rows, {mode}, {chosen:?}: {e}"));
                }
            }
        }
    }
}

/// Experts 0, 2 and 3 have no weights and do not run. Expert 4 is read by a result too.
#[test]
fn experts_that_no_row_chose_are_left_out() {
    let given = [random(DType::F32, &[3, WIDTH], 3), weights(3, &[1, 4])];
    let tensors: Vec<_> = given.iter().map(Array::to_tensor).collect();
    let mut session = Session::new(&mixture(&given), Mode::Compile, 1, &tensors).unwrap();
    let (inputs, outputs) = (&session.inputs, &mut session.outputs);
    let profile = session.compiled.profile(session.state.with(inputs, outputs), 2).unwrap();
    let steps = &session.compiled.plan().steps;
    let ran = |column: usize| {
        let of = steps.iter().zip(&profile).filter(|(step, _)| {
            step.only_if.as_ref().is_some_and(|OnlyIf { column: found, .. }| *found == column)
        });
        let calls: Vec<usize> = of.map(|(_, profile)| profile.time_ns.len()).collect();
        calls
    };
    for column in [0, 2, 3] {
        assert_eq!(ran(column), [0, 0], "expert {column}: {steps:#?}");
    }
    assert_eq!(ran(1), [2, 2]);
    assert!(ran(4).is_empty());
}
