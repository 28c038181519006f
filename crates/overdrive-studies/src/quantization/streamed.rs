//! Runs a graph part by part, so that of a model larger than memory only a part's weights are on
//! the device.
//!
//! 16-bit weights of a folder take twice the room in f32, and two models are judged beside each
//! other. Invariant: a graph is cut at the same places whoever runs it, so that outputs of one
//! graph are bitwise the same.

use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Graph, Mode, State, Tensor, Tuning};
use overdrive_passes::{block_ends, segments};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of weights from which on a part ends: far above the cost of compiling one more.
const PART_BYTES: u64 = 256 << 20;

/// Told how many steps of how many are done.
pub type Done<'a> = dyn FnMut(usize, usize) + 'a;

/// The outputs of a bound graph on each batch, its states being what they begin as.
///
/// # Errors
/// When the back end cannot run it.
pub fn outputs(
    backend: &dyn Backend,
    graph: &Graph,
    batches: &[Vec<Tensor>],
) -> Result<Vec<Vec<Tensor>>, Failure> {
    outputs_told(backend, graph, batches, &mut |_, _| {})
}

/// The same; `done` is told after each batch of each part.
///
/// # Errors
/// As [`outputs`].
pub fn outputs_told(
    backend: &dyn Backend,
    graph: &Graph,
    batches: &[Vec<Tensor>],
    done: &mut Done<'_>,
) -> Result<Vec<Vec<Tensor>>, Failure> {
    streamed((backend, graph), batches, PART_BYTES, done)
}

fn streamed(
    (backend, graph): (&dyn Backend, &Graph),
    batches: &[Vec<Tensor>],
    part_bytes: u64,
    done: &mut Done<'_>,
) -> Result<Vec<Vec<Tensor>>, Failure> {
    let parts = match block_ends(graph, part_bytes) {
        ends if ends.is_empty() => vec![graph.clone()],
        ends => segments(graph, &ends).map_err(|e| Failure::failed(e.to_string()))?,
    };
    let names = |of: &Graph| of.inputs().iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let named = |batch: &Vec<Tensor>| names(graph).into_iter().zip(batch.iter().cloned()).collect();
    let mut known: Vec<BTreeMap<String, Tensor>> = batches.iter().map(named).collect();
    let mut found = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let given = |known: &BTreeMap<String, Tensor>| -> Vec<Tensor> {
            names(part).iter().map(|name| known[name].clone()).collect()
        };
        let seen: Vec<Vec<Tensor>> = known.iter().map(given).collect();
        let mut step = 0;
        found = run((backend, part), &seen, &mut || {
            step += 1;
            done(index * batches.len() + step, parts.len() * batches.len());
            true
        })?;
        let needed: BTreeSet<String> = parts[index + 1..].iter().flat_map(&names).collect();
        for (known, found) in known.iter_mut().zip(&found) {
            let made = part.outputs().iter().map(|port| port.name.clone());
            known.extend(made.zip(found.iter().cloned()));
            known.retain(|name, _| needed.contains(name));
        }
    }
    Ok(found)
}

/// The outputs of a graph, all of whose weights are on the device, on each batch until `going`,
/// asked after each, says no.
pub(super) fn run(
    (backend, graph): (&dyn Backend, &Graph),
    batches: &[Vec<Tensor>],
    going: &mut dyn FnMut() -> bool,
) -> Result<Vec<Vec<Tensor>>, Failure> {
    let mut session = backend.compile(graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, backend)?;
    let types = || graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut results = types().map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::with_capacity(batches.len());
    for batch in batches {
        let inputs =
            batch.iter().map(|tensor| backend.upload(tensor)).collect::<Result<Vec<_>, _>>()?;
        session.run(state.with(&inputs, &mut results))?.wait()?;
        found
            .push(results.iter().map(|buffer| backend.download(buffer)).collect::<Result<_, _>>()?);
        if !going() {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Template;
    use overdrive_cpu::CpuBackend;
    use overdrive_models::find;

    #[test]
    fn parts_give_what_the_whole_gives() {
        let template = Template::built_in(find("text-transformer").unwrap()).unwrap();
        let workload = template.bind(&BTreeMap::new()).unwrap();
        let backend = CpuBackend::new(Some(1)).unwrap();
        let batches: Vec<_> = (0..2).map(|seed| workload.inputs(seed)).collect();
        let run = |part_bytes| {
            let mut last = (0, 0);
            let graph = &workload.graph;
            let told = &mut |done, all| last = (done, all);
            (streamed((&backend, graph), &batches, part_bytes, told).unwrap(), last)
        };
        let ((whole, once), (parts, last)) = (run(u64::MAX), run(1));
        assert_eq!(once, (2, 2));
        assert!(last.1 > 4 && last.0 == last.1, "{last:?}");
        for (whole, part) in whole.iter().flatten().zip(parts.iter().flatten()) {
            let off = |(a, b): (&f64, &f64)| (a - b).abs();
            let most = whole.to_f64().iter().zip(&part.to_f64()).map(off).fold(0.0, f64::max);
            assert!(most < 1e-4, "off by {most}");
        }
    }
}
