//! Times a trained model in low precision beside the same model in f32, in one process and in
//! turns. It gives medians of the ratios round by round, each with its 95 % interval by order
//! statistics. Disturbances by other programs affect all of a round.
//!
//! `cargo run --release -p overdrive-studies --example in_turns -- text-transformer BATCH THREADS
//! ROUNDS MODE...`

use overdrive_bench::statistics::Sorted;
use overdrive_cpu::CpuBackend;
use overdrive_ir::{Backend, Buffer, Graph, Mode, Session, State, Tuning};
use overdrive_passes::{QuantizationMode, bind};
use overdrive_studies::quantization::{Task, Trial};
use std::time::Instant;

/// A sample takes about as long.
const SAMPLE_NS: f64 = 4e6;

type Failed = Box<dyn std::error::Error>;

/// A compiled graph on inputs of its own.
struct Side {
    name: String,
    session: Box<dyn Session>,
    state: State,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

impl Side {
    fn call_ns(&mut self, calls: usize) -> Result<f64, Failed> {
        let start = Instant::now();
        for _ in 0..calls {
            self.session.run(self.state.with(&self.inputs, &mut self.outputs))?.wait()?;
        }
        Ok(start.elapsed().as_nanos() as f64 / calls as f64)
    }
}

fn main() -> Result<(), Failed> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, threads, rounds, modes @ ..] = given.as_slice() else {
        return Err("expected MODEL BATCH THREADS ROUNDS MODE...".into());
    };
    let (batch, rounds) = (batch.parse()?, rounds.parse()?);
    let backend = CpuBackend::new(Some(threads.parse()?))?;
    let mut task = Task::trained(&backend, overdrive_models::find(model)?, Trial::CARRIED, [4, 32])
        .map_err(|failure| failure.reason)?;
    let mut graphs: Vec<(String, Graph)> = vec![("f32".to_owned(), task.template.graph.clone())];
    for name in modes {
        let mode =
            QuantizationMode::find(name).ok_or_else(|| format!("no mode is called `{name}`"))?;
        graphs.push((
            name.clone(),
            task.apply(&backend, mode).map_err(|failure| failure.reason)?.graph,
        ));
    }
    task.template.dimensions.insert("batch".to_owned(), batch);
    let picked: Vec<u64> = (0..batch as u64).collect();
    let x = task.held_out.batch(&picked)?.x;
    let mut sides = Vec::new();
    for (name, graph) in graphs {
        let graph = bind(&graph, &task.template.dimensions)?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        sides.push(Side {
            name,
            session: backend.compile(&graph, Mode::Compile, &Tuning::default())?.session()?,
            state: State::initial(&graph, &backend)?,
            inputs: vec![backend.upload(&x)?],
            outputs: types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?,
        });
    }
    let mut calls = Vec::new();
    for side in &mut sides {
        side.call_ns(5)?;
        calls.push((SAMPLE_NS / side.call_ns(3)?).ceil() as usize);
    }
    let mut times = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            times[at].push(sides[at].call_ns(calls[at])?);
        }
    }
    let said = |values: &[f64]| -> Option<[f64; 3]> {
        let sorted = Sorted::new(values)?;
        let interval = sorted.median_interval()?;
        Some([sorted.median(), interval.low, interval.high])
    };
    for (side, own) in sides.iter().zip(&times) {
        let ratios: Vec<f64> = times[0].iter().zip(own).map(|(f32, own)| f32 / own).collect();
        let (Some([ns, ..]), Some([ratio, low, high])) = (said(own), said(&ratios)) else {
            return Err("too few rounds for an interval".into());
        };
        println!("{:24} {:8.3} ms  {ratio:.3}x [{low:.3}, {high:.3}]", side.name, ns / 1e6);
    }
    Ok(())
}
