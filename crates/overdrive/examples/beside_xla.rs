//! A built-in model in bf16 on one GPU: our CUDA back end in mode `graph` beside XLA, both on the
//! host's clock.
//!
//! There are two metrics, each in one session with alternating samples. One is a call from start to
//! completion. The other is a queue of calls that is waited for at its end, where launching hides
//! behind computing. XLA lends no events of its stream, so there is no device time to compare.
//! Outputs of both are held against the graph in f64.
//!
//! `cargo run --release --example beside_xla -- PLUGIN [MODEL...]`

use overdrive::bench::case::{Case, Configuration, Workload};
use overdrive::bench::clock::SystemClock;
use overdrive::bench::deviation::Deviation;
use overdrive::bench::failure::Failure;
use overdrive::bench::oracle::{Oracle, normal_inputs};
use overdrive::bench::record::Record;
use overdrive::bench::rules::Rules;
use overdrive::bench::runner::Runner;
use overdrive::bench::speedup::Speedup;
use overdrive::bench::subject::Subject;
use overdrive::ir::{
    Arguments, Backend, Buffer, DType, Graph, Mode, Session, State, Tensor, Tuning,
};
use overdrive::passes::{Recipe, precision, to_f64};
use overdrive::{cpu::CpuBackend, cuda::CudaBackend, studies};
use overdrive_foreign::xla::XlaBackend;
use std::collections::BTreeMap;
use std::path::Path;

/// Calls in a queue.
const QUEUED: u64 = 50;
/// bf16 has eight bits; a transformer of six blocks rounds some dozens of times.
const TOLERANCE: overdrive::bench::deviation::Tolerance = overdrive::bench::deviation::Tolerance {
    rtol: 0.05,
    atol: 0.08,
    rms: f64::INFINITY,
    rounding: None,
};

/// Calls of an executable, so many at a time.
struct Queue<'a> {
    backend: &'a dyn Backend,
    session: Box<dyn Session>,
    state: State,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    oracle: &'a Oracle<'a>,
    depth: u64,
}

impl<'a> Queue<'a> {
    fn new(
        backend: &'a dyn Backend,
        (graph, mode): (&Graph, Mode),
        oracle: &'a Oracle<'a>,
        depth: u64,
    ) -> Result<Self, Failure> {
        let mut tuning = Tuning::default();
        backend.tune(graph, mode, &mut tuning)?;
        let session = backend.compile(graph, mode, &tuning)?.session()?;
        let state = State::initial(graph, backend)?;
        let inputs = upload(backend, &oracle.inputs(1))?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let outputs = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
        Ok(Self { backend, session, state, inputs, outputs, oracle, depth })
    }
}

fn upload(backend: &dyn Backend, tensors: &[Tensor]) -> Result<Vec<Buffer>, Failure> {
    Ok(tensors.iter().map(|tensor| backend.upload(tensor)).collect::<Result<_, _>>()?)
}

impl Subject for Queue<'_> {
    fn call(&mut self, _: u64) -> Result<(), Failure> {
        for _ in 1..self.depth {
            drop(self.session.run(self.state.with(&self.inputs, &mut self.outputs))?);
        }
        Ok(self.session.run(self.state.with(&self.inputs, &mut self.outputs))?.wait()?)
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        self.inputs = upload(self.backend, &self.oracle.inputs(seed))?;
        self.call(0)?;
        let found: Vec<Tensor> = self
            .outputs
            .iter()
            .map(|output| self.backend.download(output))
            .collect::<Result<_, _>>()?;
        self.oracle.compare(seed, &found, TOLERANCE).map(Some)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let plugin = arguments.next().ok_or("usage: beside_xla PLUGIN [MODEL...]")?;
    let mut models: Vec<String> = arguments.collect();
    if models.is_empty() {
        models = vec!["transformer".to_owned(), "mlp".to_owned()];
    }
    let reference = CpuBackend::new(None)?;
    let ours = CudaBackend::new(0)?;
    let theirs = XlaBackend::new(Path::new(&plugin), 0)?;
    println!("ours on {}, XLA: {}", ours.device().properties().name, theirs.version());
    for name in &models {
        let model = overdrive::models::MODELS
            .iter()
            .find(|model| model.name == name)
            .ok_or("no such model")?;
        let workload = studies::Workload::of_model(model, &BTreeMap::new())?;
        compare(
            name,
            &workload.graph,
            &reference,
            [(&ours, Mode::Graph), (&theirs, Mode::Compile)],
        )
        .map_err(|failure| format!("{name}: {failure:?}"))?;
    }
    Ok(())
}

fn compare(
    name: &str,
    graph: &Graph,
    reference: &dyn Backend,
    backends: [(&dyn Backend, Mode); 2],
) -> Result<(), Failure> {
    let exact = to_f64(graph).map_err(|e| Failure::failed(e.to_string()))?;
    let short = Recipe { contractions: DType::BF16 };
    let graph = precision(graph, &short).map_err(|e| Failure::failed(e.to_string()))?;
    let expected = |inputs: &[Tensor]| -> Result<Vec<Tensor>, Failure> {
        let wide: Vec<Tensor> = inputs.iter().map(|tensor| tensor.convert(DType::F64)).collect();
        let mut session =
            reference.compile(&exact, Mode::Compile, &Tuning::default())?.session()?;
        let mut state = State::initial(&exact, reference)?;
        let types = exact.outputs().iter().map(|port| exact.ty(port.value));
        let mut outputs = types.map(|ty| reference.output(ty)).collect::<Result<Vec<_>, _>>()?;
        session
            .run(Arguments {
                state: &mut state,
                inputs: &upload(reference, &wide)?,
                outputs: &mut outputs,
            })?
            .wait()?;
        Ok(outputs.iter().map(|output| reference.download(output)).collect::<Result<_, _>>()?)
    };
    let oracle = Oracle::new(
        "the graph in f64 on the processor",
        |seed| normal_inputs(&graph, seed),
        expected,
    );
    let clock = SystemClock::new();
    for (metric, depth) in [("one call", 1), ("a queue of 50 calls", QUEUED)] {
        let runner = Runner::new(&clock, Rules::full(), 1);
        let [ours, theirs] =
            backends.map(|(backend, mode)| Queue::new(backend, (&graph, mode), &oracle, depth));
        let (mut ours, mut theirs) = (ours?, theirs?);
        let outcomes = runner.compare(&mut [&mut theirs, &mut ours]);
        let names = [("xla", "compile"), ("cuda:0", "graph")];
        let record = |((backend, mode), outcome): ((&str, &str), _)| Record {
            case: Case {
                study: "beside_xla".to_owned(),
                workload: Workload::new(name, [("calls", depth)]),
                configuration: Configuration {
                    backend: backend.to_owned(),
                    device: "cuda:0".to_owned(),
                    mode: mode.to_owned(),
                    dtype: "bf16".to_owned(),
                    threads: 1,
                    variant: None,
                },
            },
            baseline: None,
            seed: 1,
            command: "cargo run --release --example beside_xla".to_owned(),
            outcome,
        };
        let records: Vec<Record> = names.into_iter().zip(outcomes).map(record).collect();
        for record in &records {
            let backend = &record.case.configuration.backend;
            match record.outcome.measurement().and_then(|m| m.latency.as_ref().map(|l| (m, l))) {
                Some((measurement, series)) => {
                    let summary = &series.summary;
                    let each = |ns: f64| ns / 1e3 / depth as f64;
                    println!(
                        "{name} bf16, {metric}, {backend}: {:.1} us a call, {:.1?} of {} samples, \
                         worst {:?}",
                        each(summary.median_ns),
                        summary.median_interval.as_ref().map(|i| [each(i.low_ns), each(i.high_ns)]),
                        summary.count,
                        measurement.agreement
                    );
                }
                None => println!("{name} bf16, {metric}, {backend}: {:?}", record.outcome),
            }
        }
        match Speedup::between(&records[0], &records[1]) {
            Ok(speedup) => println!("{name} bf16, {metric}: ours over XLA {}", speedup.figure()),
            Err(reasons) => println!("{name} bf16, {metric}: no claim: {reasons}"),
        }
    }
    Ok(())
}
