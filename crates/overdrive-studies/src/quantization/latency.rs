//! Several graphs of the same interface timed in one session, in alternation.

use super::rivals::Rival;
use super::streamed::outputs;
use super::times::{BlockTimes, Timed};
use crate::tolerance::tolerance;
use overdrive_bench::clock::Clock;
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::{Oracle, normal_inputs};
use overdrive_bench::outcome::Outcome;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::{Runner, Stop};
use overdrive_bench::session_calls::{CallTarget, Calls};
use overdrive_bench::subject::Subject;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::{Backend, DType, Graph, Session, State, Tensor, Tuning};
use overdrive_passes::{ModelBlock, blocks};
use std::collections::BTreeMap;

/// How a session samples.
#[derive(Clone)]
pub struct Conditions<'a> {
    /// Its time source.
    pub clock: &'a dyn Clock,
    /// How long to sample.
    pub rules: Rules,
    /// Seed of the first inputs.
    pub seed: u64,
    /// Looked at between samples.
    pub stop: &'a Stop,
}

/// The times of the blocks of graphs of one model, each distinct block in a session of its own. For
/// models larger than memory, only a block's weights are then on the device. `draw` gives the
/// inputs of the whole; values between blocks are drawn from a normal distribution.
///
/// # Errors
/// As [`latency`].
pub fn latency_of_blocks(
    backend: &dyn Backend,
    graphs: &[&Graph],
    draw: &dyn Fn(u64) -> Vec<Tensor>,
    conditions: &Conditions<'_>,
) -> Result<Vec<BlockTimes>, Failure> {
    let inputs = |seed: u64| {
        let names = graphs[0].inputs().iter().map(|port| port.name.clone());
        names.zip(draw(seed)).collect::<BTreeMap<String, Tensor>>()
    };
    let timed = |block: ModelBlock| {
        let first = &block.parts[0];
        let drawn = |seed: u64| {
            let given = inputs(seed);
            let ports = first.inputs().iter().zip(normal_inputs(first, seed));
            ports.map(|(port, own)| given.get(&port.name).cloned().unwrap_or(own)).collect()
        };
        let parts: Vec<&Graph> = block.parts.iter().collect();
        let timed = latency(backend, &parts, &mut [], &drawn, conditions.clone())?;
        Ok(BlockTimes { name: block.name, times: block.times, timed })
    };
    let blocks = blocks(graphs).map_err(|error| Failure::failed(error.to_string()))?;
    blocks.into_iter().map(timed).collect()
}

/// The times of bound graphs in the device's fastest mode, in their order, then those of rivals.
/// Inputs are those of `draw` for a seed. A graph's outputs are compared with those of a separate
/// run of the same graph, and must be equal up to rounding. How near they are to the float model is
/// judged elsewhere.
///
/// # Errors
/// When the back end cannot compile or run one of them.
pub fn latency(
    backend: &dyn Backend,
    graphs: &[&Graph],
    rivals: &mut [Rival<'_>],
    draw: &dyn Fn(u64) -> Vec<Tensor>,
    conditions: Conditions<'_>,
) -> Result<Vec<Timed>, Failure> {
    let placed: Vec<_> = graphs.iter().map(|graph| (backend, *graph)).collect();
    latency_on(&placed, rivals, draw, conditions)
}

/// The same of graphs that run on back ends of their own.
///
/// # Errors
/// As [`latency`].
pub fn latency_on(
    placed: &[(&dyn Backend, &Graph)],
    rivals: &mut [Rival<'_>],
    draw: &dyn Fn(u64) -> Vec<Tensor>,
    Conditions { clock, rules, seed, stop }: Conditions<'_>,
) -> Result<Vec<Timed>, Failure> {
    let mut compiled: Vec<(Box<dyn Session>, State)> = Vec::new();
    for (backend, graph) in placed {
        let mode = backend.description().fastest_mode();
        let session = backend.compile(graph, mode, &Tuning::default())?.session()?;
        compiled.push((session, State::initial(graph, *backend)?));
    }
    let own = |(backend, graph): (&dyn Backend, &Graph), inputs: &[Tensor]| {
        Ok(outputs(backend, graph, &[inputs.to_vec()])?.remove(0))
    };
    let oracles: Vec<Oracle<'_>> = placed
        .iter()
        .map(|&placed| {
            Oracle::new("another run of the same graph", draw, move |inputs: &[Tensor]| {
                own(placed, inputs)
            })
        })
        .collect();
    let mut calls = Vec::new();
    for (((session, state), oracle), (backend, graph)) in
        compiled.iter_mut().zip(&oracles).zip(placed)
    {
        let target = CallTarget { backend: *backend, session: session.as_mut(), state };
        // The other run goes part by part where weights are large, and may sum in another order.
        let rounding = tolerance(DType::F32, graph, (oracle, seed))?;
        calls.push(Calls::new(target, oracle, rounding, seed)?);
    }
    let mut subjects: Vec<&mut dyn Subject> =
        calls.iter_mut().map(|calls| calls as &mut dyn Subject).collect();
    let ours = subjects.len();
    subjects.extend(rivals.iter_mut().filter_map(Rival::subject));
    let mut outcomes =
        Runner::new(clock, rules, seed).with_stop(stop.clone()).compare(&mut subjects);
    let mut theirs = outcomes.split_off(ours).into_iter();
    drop(calls);
    let resident = compiled.iter().map(|(session, _)| session.memory());
    let timed = |(outcome, memory): (Outcome, MemoryReport)| Timed {
        outcome,
        resident_bytes: memory.state_bytes + memory.persistent_bytes,
        peak_bytes: memory.state_bytes
            + memory.persistent_bytes
            + memory.transient_bytes
            + memory.workspace_bytes,
    };
    let mut all: Vec<Timed> = outcomes.into_iter().zip(resident).map(timed).collect();
    all.extend(
        rivals.iter().map(|rival| rival.timed(|| theirs.next().expect("who is ready was timed"))),
    );
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Template;
    use overdrive_bench::clock::SystemClock;
    use overdrive_cpu::CpuBackend;
    use overdrive_models::find;

    #[test]
    fn each_distinct_block_is_timed_and_counted() {
        let template = Template::built_in(find("text-transformer").unwrap()).unwrap();
        let workload = template.bind(&BTreeMap::new()).unwrap();
        let backend = CpuBackend::new(Some(1)).unwrap();
        let (clock, stop) = (SystemClock::new(), Stop::default());
        let rules = Rules::full().with_trials(1, 5);
        let conditions = Conditions { clock: &clock, rules, seed: 1, stop: &stop };
        let graphs = [&workload.graph; 2];
        let draw = |seed| workload.inputs(seed);
        let found = latency_of_blocks(&backend, &graphs, &draw, &conditions).unwrap();
        let all: usize = found.iter().map(|block| block.times).sum();
        assert!(found.len() < all, "blocks repeat: {} of {all}", found.len());
        for block in &found {
            let measured = block.timed.iter().filter(|one| one.outcome.measurement().is_some());
            assert_eq!(measured.count(), 2, "{}", block.name);
        }
    }
}
