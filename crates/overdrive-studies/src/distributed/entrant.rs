//! Ranks of ours as something to be timed.

use super::joint::{Judge, Split};
use super::team::Team;
use overdrive_bench::clock::Clock;
use overdrive_bench::deviation::{Deviation, Tolerance};
use overdrive_bench::failure::Failure;
use overdrive_bench::subject::{Reading, Subject};
use overdrive_ir::eval::{Array, eval_ranks};
use overdrive_ir::{Mesh, Tensor};
use std::cell::RefCell;
use std::ops::Range;

/// Facts of a case that are known before it is timed.
pub(super) struct Known<'a> {
    /// Its mesh.
    pub(super) mesh: Mesh,
    pub(super) judge: &'a Judge,
    /// For [`Judge::Small`]: how far the outputs at small sizes lie from f64.
    pub(super) small: Option<Result<Deviation, Failure>>,
    /// For [`Judge::OneRank`]: the outputs of the first call of one rank, once it was made.
    pub(super) one: &'a RefCell<Option<Vec<f64>>>,
}

/// A team with its memory, called by the rules of sampling.
pub(super) struct Ours<'a> {
    pub(super) team: &'a Team,
    pub(super) known: Known<'a>,
}

impl Ours<'_> {
    fn span_ns(&self, calls: u64) -> Result<u64, Failure> {
        let spans = self.team.ask(move |member| member.calls(calls))?;
        Ok(spans.into_iter().max().expect("a team has ranks"))
    }

    /// Outputs of all ranks as numbers, which have to be the same on all of them.
    fn first_outputs(&self) -> Result<Vec<f64>, Failure> {
        let all = self.team.ask(|member| member.outputs(None))?;
        if let Some(rank) = all.iter().position(|outputs| *outputs != all[0]) {
            return Err(Failure::incorrect(format!(
                "outputs of rank {rank} are not those of rank 0"
            )));
        }
        Ok(all[0].iter().flat_map(Tensor::to_f64).collect())
    }

    /// Rows at both ends of each block, against the evaluator.
    fn rows(&self, graph: &overdrive_ir::Graph, blocks: usize) -> Result<Deviation, Failure> {
        let rows = self.team.ask(|member| {
            let last = member.rows_of_input(0) - 1;
            member.input_rows(&[0, last])
        })?;
        let outputs = self.team.ask(move |member| {
            let count = member.rows_of_output(0) / blocks;
            let ends = (0..blocks).flat_map(|block| [block * count, (block + 1) * count - 1]);
            member.outputs(Some(&ends.collect::<Vec<_>>()))
        })?;
        let arrays = |tensors: &Vec<Tensor>| tensors.iter().map(Array::from).collect();
        let inputs: Vec<Vec<Array>> = rows.iter().map(arrays).collect();
        let mut states = vec![Default::default(); inputs.len()];
        let expected = eval_ranks(graph, &self.known.mesh, &inputs, &mut states);
        let mut worst = Deviation::none();
        for (found, expected) in outputs.iter().zip(&expected) {
            for (found, expected) in found.iter().zip(expected) {
                let expected = expected.to_tensor().to_f64();
                let exact = Tolerance::of_elements(0.0, 0.0);
                worst = worst.or_worse(Deviation::between(&found.to_f64(), &expected, exact)?);
            }
        }
        Ok(worst)
    }
}

impl Subject for Ours<'_> {
    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        self.span_ns(1).map(drop)
    }

    fn sample(&mut self, calls: Range<u64>, _clock: &dyn Clock) -> Result<Reading, Failure> {
        Ok(Reading::host(self.span_ns(calls.end - calls.start)?))
    }

    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        match self.known.judge {
            Judge::Rows { graph, blocks } => self.rows(graph, *blocks).map(Some),
            Judge::Small(..) => self.known.small.clone().transpose(),
            // One call was made by now.
            Judge::OneRank { rtol } => {
                let found = self.first_outputs()?;
                let tolerance = Tolerance::of_elements(*rtol, 0.0);
                let ranks = self.known.mesh.ranks();
                match (ranks, self.known.one.borrow().as_ref()) {
                    (1, _) => {}
                    (_, Some(one)) => return Deviation::between(&found, one, tolerance).map(Some),
                    (_, None) => return Ok(None),
                }
                self.known.one.replace(Some(found));
                Ok(None)
            }
        }
    }

    fn reference(&self) -> &str {
        match self.known.judge {
            Judge::Rows { .. } => "evaluator, rows at both ends",
            Judge::Small(..) => "f64 evaluator, the same at small sizes",
            Judge::OneRank { .. } => "loss and norm of one rank",
        }
    }
}

/// How far the outputs of all ranks together lie from f64, on inputs of a seed.
pub(super) fn small_outputs(
    team: &Team,
    split: &Split,
    held: &dyn Fn(&[Tensor]) -> Result<Deviation, Failure>,
) -> Result<Deviation, Failure> {
    team.ask(|member| member.allocate())?;
    team.ask(|member| member.calls(1))?;
    let all = team.ask(|member| member.outputs(None))?;
    let Some(sharded) = &split.sharded else { return held(&all[0]) };
    let whole = |(at, sharding): (usize, _)| {
        let parts: Vec<Tensor> = all.iter().map(|outputs| outputs[at].clone()).collect();
        sharded.join(&parts, sharding)
    };
    held(&sharded.outputs.iter().enumerate().map(whole).collect::<Vec<_>>())
}
