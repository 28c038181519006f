//! The f64 outputs of a workload, and how far rounding may move each of them. The graph runs in
//! f64, as it is and perturbed ([decision
//! 0007](../../../docs/decisions/0007-tolerance-from-what-was-summed.md)).

use crate::f64_sessions::{F64Sessions, SHARE, in_f64};
use crate::referee::Chosen;
use crate::tolerance::rounds_to_codes;
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::{Draws, Sensitivity, compared};
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{DType, Graph, GraphError, Shape, Tensor};
use overdrive_passes::perturb;
use std::fmt;
use std::rc::Rc;

/// Perturbed evaluations of outputs whose rows are too short to tell a size from one, or whose
/// results seem wrong by one. All values of a row may answer to a single rounding. Let errors be a
/// third of what is allowed. One draw then finds seven in a hundred too large, eight draws two in a
/// hundred thousand (Student's t).
const MOST_TWINS: usize = 8;
/// Values of a row that tell its size well enough together, over all twins.
const TELLING: usize = 16;

/// The runner of a reference.
#[derive(Clone)]
pub(crate) enum ReferenceRunner<'a> {
    /// The specification itself.
    Evaluator,
    /// The back end that the referee chose.
    On(Rc<Chosen<'a>>),
}

impl fmt::Display for ReferenceRunner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Evaluator => f.write_str("f64 evaluator"),
            Self::On(chosen) => chosen.fmt(f),
        }
    }
}

/// The graph in f64, as it is and perturbed.
pub(crate) struct Reference<'a> {
    plain: Result<Graph, GraphError>,
    /// None where the graph rounds to codes, or cannot be had in f64.
    perturbed: Option<Graph>,
    place: ReferenceRunner<'a>,
    sessions: F64Sessions,
}

impl<'a> Reference<'a> {
    /// Inputs and states keep the graph's types.
    pub(crate) fn new(graph: &Graph, place: ReferenceRunner<'a>) -> Self {
        let has_codes = rounds_to_codes(graph);
        let wide = in_f64(graph);
        let perturbed =
            wide.as_ref().ok().filter(|_| !has_codes).and_then(|wide| perturb(wide, SHARE).ok());
        // The definition takes what f64 has no form of, and knows the codes.
        let plain = match place {
            ReferenceRunner::Evaluator if has_codes || wide.is_err() => Ok(graph.clone()),
            _ => wide,
        };
        Self { plain, perturbed, place, sessions: F64Sessions::default() }
    }

    /// The reference of another graph, at the same place.
    pub(crate) fn of(&self, graph: &Graph) -> Self {
        Self::new(graph, self.place.clone())
    }

    /// Whether it knows how outputs answer to rounding.
    pub(crate) fn is_perturbable(&self) -> bool {
        self.perturbed.is_some()
    }

    /// The [`compared`] part of the outputs, in f64.
    ///
    /// # Errors
    /// When the back end cannot run the graph; a device that disagrees with the host.
    pub(crate) fn outputs(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        let plain = self.plain.as_ref().map_err(|e| Failure::failed(e.to_string()))?;
        self.run((plain, 0), inputs)
    }

    /// How each output, expected as given, answers to rounding, as a multiple of the largest
    /// relative error of a rounding.
    ///
    /// # Errors
    /// As `outputs`.
    pub(crate) fn sensitivities(
        &self,
        inputs: &[Tensor],
        expected: &[Vec<f64>],
        draws: Draws,
    ) -> Result<Vec<Sensitivity>, Failure> {
        let graph =
            self.perturbed.as_ref().expect("only a reference that can be perturbed is asked");
        let widths =
            graph.outputs().iter().map(|port| graph.ty(port.value).sizes().last().copied());
        let shortest = widths.map(|width| width.unwrap_or(1).max(1)).min().unwrap_or(1);
        let twins = match draws {
            Draws::Few => TELLING.div_ceil(shortest).clamp(1, MOST_TWINS),
            Draws::Many => MOST_TWINS,
        };
        let mut squares: Vec<Vec<f64>> =
            expected.iter().map(|values| vec![0.0; values.len()]).collect();
        let mut shapes = Vec::new();
        for twin in 0..twins {
            let draws = graph.inputs().len() - inputs.len();
            let seed = |draw| {
                Tensor::from_ints(DType::U64, Shape::default(), &[(twin << 32 | draw) as i128])
            };
            let inputs: Vec<Tensor> = inputs.iter().cloned().chain((0..draws).map(seed)).collect();
            let outputs: Vec<Tensor> =
                self.run((graph, 1), &inputs)?.into_iter().map(compared).collect();
            for ((sums, output), expected) in squares.iter_mut().zip(&outputs).zip(expected) {
                for ((sum, found), expected) in sums.iter_mut().zip(output.to_f64()).zip(expected) {
                    let response = (found - expected) / SHARE;
                    *sum += response * response / twins as f64;
                }
            }
            shapes = outputs.iter().map(|output| output.ty().sizes()).collect();
        }
        let of =
            |(squares, shape): (_, &Vec<usize>)| Sensitivity::of_responses(squares, shape, twins);
        Ok(squares.into_iter().zip(&shapes).map(of).collect())
    }

    /// Runs the graph that has this place among the sessions.
    fn run(
        &self,
        (graph, which): (&Graph, usize),
        inputs: &[Tensor],
    ) -> Result<Vec<Tensor>, Failure> {
        match &self.place {
            ReferenceRunner::Evaluator => Ok(eval_tensors(graph, inputs)),
            ReferenceRunner::On(chosen) => {
                let place = (chosen.backend()?, chosen.most_kept_bytes());
                self.sessions.run(place, (graph, which), inputs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::oracle::compared_rows;
    use overdrive_ir::{Builder, TensorType};

    #[test]
    fn of_a_large_output_only_the_compared_rows_are_computed_for_the_host() {
        let b = Builder::new("rows");
        let x = b.input("x", TensorType::new(DType::F32, [2, 550, 1]));
        let columns = b.iota(DType::F32, [8192], 0);
        let wide = Shape::from([2usize, 550, 8192]);
        b.output("y", x.broadcast_to(&wide) + columns.broadcast_to(&wide));
        b.output("x", x);
        let graph = b.finish().expect("it is well-formed");
        let values: Vec<f64> = (0..1100).map(|row| f64::from(row * 10_000)).collect();
        let inputs = [Tensor::from_f64(DType::F32, [2, 550, 1], &values)];
        let reference = Reference::new(&graph, ReferenceRunner::Evaluator);
        let found = reference.outputs(&inputs).expect("the evaluator runs everything");
        let rows =
            compared_rows(graph.ty(graph.outputs()[0].value)).expect("nine million elements");
        assert_eq!(found[0].ty().sizes(), [rows.len(), 8192]);
        let firsts: Vec<f64> = found[0].to_f64().iter().step_by(8192).copied().collect();
        assert_eq!(firsts, rows.iter().map(|row| values[*row]).collect::<Vec<_>>());
        assert_eq!(found[1].ty().sizes(), [2, 550, 1], "a small one is whole");
    }
}
