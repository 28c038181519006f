//! `if` and `while`. Values that a region captures are passed on: a branch sees them, a loop
//! carries them unchanged.

use super::writer::{Application, Term, Writer};
use overdrive_ir::{DType, Graph, TensorType};

pub(super) fn branch(
    w: &mut Writer,
    x: &[Term],
    regions: &[Graph],
    types: &[TensorType],
) -> Vec<Term> {
    let (condition, captures) = x.split_first().expect("`if` has a condition");
    let regions =
        regions.iter().map(|region| w.region(&[], |w, _| w.graph(region, captures))).collect();
    let (op, results) = ("stablehlo.if", types.to_vec());
    w.apply_all(Application { op, operands: &[condition], regions, attributes: "", results })
}

/// The bound on trips, if there is one, is a counter that is carried last.
pub(super) fn repeat(
    w: &mut Writer,
    x: &[Term],
    (carried, max_trips): (usize, Option<usize>),
    regions: &[Graph],
) -> Vec<Term> {
    let counter = TensorType::scalar(DType::I64);
    let mut operands = x.to_vec();
    if max_trips.is_some() {
        operands.push(w.full(&counter, 0.0));
    }
    let types: Vec<TensorType> = operands.iter().map(|term| term.ty.clone()).collect();
    let condition = w.region(&types, |w, values| {
        let mut goes_on = w.graph(&regions[0], &values[..x.len()]).remove(0);
        if let (Some(limit), Some(trips)) = (max_trips, values.get(x.len())) {
            let limit = w.full_int(&counter, limit as i128);
            let below = w.compare("LT", trips, &limit);
            goes_on = w.map("and", &[&goes_on, &below]);
        }
        vec![goes_on]
    });
    let body = w.region(&types, |w, values| {
        let mut next = w.graph(&regions[1], &values[..x.len()]);
        next.extend_from_slice(&values[carried..x.len()]);
        if let Some(trips) = values.get(x.len()) {
            let one = w.full(&counter, 1.0);
            next.push(w.map("add", &[trips, &one]));
        }
        next
    });
    let operands: Vec<&Term> = operands.iter().collect();
    let (op, regions) = ("stablehlo.while", vec![condition, body]);
    let mut results = w.apply_all(Application {
        op,
        operands: &operands,
        regions,
        attributes: "",
        results: types,
    });
    results.truncate(carried);
    results
}
