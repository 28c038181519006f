//! `overdrive bench`: one model across modes, precisions and batch sizes.

use super::output;
use super::run::{command_line, stop_on_interrupt};
use crate::cli::Bench;
use crate::devices;
use crate::failure::Failure;
use crate::model;
use crate::progress::Spinner;
use crate::text;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::bench::report::to_json;
use overdrive::bench::results::Results;
use overdrive::bench::rules::Rules;
use overdrive::ir::DType;
use overdrive::passes::{Recipe, precision};
use overdrive::studies::{Context, Device, Entry, PEER_MODES, Progress, measure};
use std::cell::RefCell;
use std::collections::BTreeMap;

pub(crate) fn bench(arguments: &Bench) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let ids = arguments.text.as_ref().map(|text| text::encode(text::tokenizer(&model)?, text)).transpose()?;
    let opened = devices::open(&arguments.machine)?;
    let reference = devices::reference(devices::threads(&arguments.machine))?;
    if let Some(folder) = &arguments.out {
        output::prepare(folder)?;
    }
    let clock = SystemClock::new();
    let spinner = Spinner::start();
    let devices = [Device { backend: opened.backend.as_ref(), threads: opened.threads }];
    let rules = match arguments.trials {
        Some(trials) => Rules::full().with_trials(arguments.warmup as usize, trials as usize),
        None => Rules::full(),
    };
    let tuning = RefCell::default();
    let context = Context {
        devices: &devices,
        reference: &reference,
        tuning: &tuning,
        matmul_peers: &[],
        peer: None,
        peer_modes: &PEER_MODES,
        ceilings: vec![],
        clock: &clock,
        rules,
        deadline_ns: None,
        seed: arguments.machine.seed,
        stop: stop_on_interrupt(),
        heap: Some(&crate::HEAP),
        energy: None,
        command: command_line(),
        progress: &spinner,
        only: &[],
        earlier: &[],
        keep: &|_| (),
    };
    let mut results = Results::begin(command_line(), arguments.machine.seed);
    results.environment.devices.extend(opened.described.clone());
    spinner.study("bench");
    let batches: Vec<Option<u32>> = match arguments.batch.as_slice() {
        [] => vec![None],
        sizes => sizes.iter().map(|&n| Some(n)).collect(),
    };
    for batch in batches {
        let batch = batch.map(|n| ("batch".to_owned(), n as usize));
        let mut sizes: BTreeMap<String, usize> = arguments.shapes.iter().cloned().chain(batch).collect();
        if let Some(ids) = ids.as_ref().filter(|_| model.has_dimension("tokens")) {
            sizes.insert("tokens".to_owned(), ids.len());
        }
        let mut workload = model.bind(&sizes)?;
        if let Some(ids) = &ids {
            workload.given = text::inputs(&workload.graph, ids)?;
        }
        spinner.workload(&workload.key.to_string());
        let mut entries = Vec::new();
        for &dtype in &arguments.dtype {
            let dtype = DType::from(dtype);
            let graph =
                precision(&workload.graph, &Recipe { contractions: dtype }).map_err(Failure::harness)?;
            for &mode in &arguments.modes {
                let entry = Entry::plain(&workload, context.device(), mode.into());
                entries.push(Entry { dtype, graph: graph.clone(), ..entry });
            }
        }
        results.records.extend(measure(&context, "bench", &entries, &mut []));
        if context.stop.is_requested() {
            break;
        }
    }
    spinner.finish();
    if let Some(folder) = &arguments.out {
        output::write(folder, &results)?;
    }
    println!("{}", if arguments.json { to_json(&results) } else { output::summary(&results) });
    Ok(Exit::of(&results))
}
