//! The cost of replaying a captured call on other buffers, from the host: `cargo run --release
//! --example replay`.
//!
//! There are three ways:
//!
//! - a graph for each set of buffers;
//! - one graph that is given the addresses of each set;
//! - one graph with buffers of its own. Inputs are copied to them, and outputs are copied from
//!   them.

use overdrive_cuda::CudaBackend;
use overdrive_ir::backend::{CacheState, Protocol, TimedSample};
use overdrive_ir::{Backend, Buffer, Builder, DType, Mode, Session, State, Tensor, Tuning};
use std::time::Instant;

/// Calls of each way that are timed.
const CALLS: usize = 400;
/// Sets of buffers: more than an executable keeps graphs for.
const SETS: usize = 24;

type Set = ([Buffer; 1], [Buffer; 1]);

/// Median time of a call in ns, where call `i` takes set `i % sets`.
fn call_ns(session: &mut dyn Session, state: &mut State, sets: &mut [Set]) -> f64 {
    let mut times: Vec<f64> = (0..CALLS)
        .map(|i| {
            let at = i % sets.len();
            let (inputs, outputs) = &mut sets[at];
            let start = Instant::now();
            let pending = session.run(state.with(inputs, outputs)).expect("the model runs");
            pending.wait().expect("the model runs");
            start.elapsed().as_nanos() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[CALLS / 2]
}

/// Median time on the device in ns.
fn median(samples: Vec<TimedSample>) -> f64 {
    let mut times: Vec<f64> = samples.iter().filter_map(|sample| sample.device_ns).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = CudaBackend::new(0)?;
    for name in ["mlp", "transformer"] {
        let model = overdrive_models::find(name)?;
        let sizes =
            model.dimensions.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let graph = overdrive_passes::bind(&(model.build)()?, &sizes)?;
        let recipe = overdrive_passes::Recipe { contractions: DType::BF16 };
        let graph = overdrive_passes::precision(&graph, &recipe)?;
        let mut tuning = Tuning::default();
        backend.tune(&graph, Mode::Graph, &mut tuning)?;
        let mut state = State::initial(&graph, &backend)?;
        let [x, y] =
            [graph.inputs()[0].value, graph.outputs()[0].value].map(|v| graph.ty(v).clone());
        let ones = Tensor::from_f64(x.dtype, x.sizes(), &vec![1.0; x.elements()]);
        let set = || -> Result<Set, overdrive_ir::BackendError> {
            Ok(([backend.upload(&ones)?], [backend.output(&y)?]))
        };
        let mut sets = (0..SETS).map(|_| set()).collect::<Result<Vec<_>, _>>()?;
        let mut kept = backend.compile(&graph, Mode::Graph, &tuning)?.session()?;
        let on_kept = call_ns(kept.as_mut(), &mut state, &mut sets[..4]);
        let with_graphs = kept.memory().workspace_bytes;
        let on_updated = call_ns(kept.as_mut(), &mut state, &mut sets);
        let (inputs, outputs) = &mut sets[0];
        let cold = Protocol { samples: 20, calls_per_sample: 1, cache: CacheState::Cold };
        let on_device = median(kept.sample(state.with(inputs, outputs), cold)?);
        let mut launched = backend.compile(&graph, Mode::Compile, &tuning)?.session()?;
        let on_launched = call_ns(launched.as_mut(), &mut state, &mut sets);
        let without = launched.memory().workspace_bytes;

        let b = Builder::new("copies");
        for (port, ty) in [("x", &x), ("y", &y)] {
            let input = b.input(port, ty.clone());
            b.output(&format!("copy of {port}"), input);
        }
        let copies = b.finish()?;
        let mut copied = backend.compile(&copies, Mode::Compile, &Tuning::default())?.session()?;
        let inputs = [backend.upload(&ones)?, backend.output(&y)?];
        let mut outputs = [backend.output(&x)?, backend.output(&y)?];
        let protocol = Protocol { samples: 20, calls_per_sample: 1, cache: CacheState::Warm };
        let samples = copied.sample(State::default().with(&inputs, &mut outputs), protocol)?;
        println!(
            "{name} bf16: {:.1} us on the device; from the host: kept graph {:.1} us, updated \
             graph {:.1} us, launched {:.1} us; copies of {} B {:.1} us on the \
             device; scratch {} B with graphs, {} B without",
            on_device / 1e3,
            on_kept / 1e3,
            on_updated / 1e3,
            on_launched / 1e3,
            x.bytes() + y.bytes(),
            median(samples) / 1e3,
            with_graphs,
            without
        );
    }
    Ok(())
}
