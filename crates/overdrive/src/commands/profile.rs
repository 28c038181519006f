//! `overdrive profile`: operators by self time, and a trace. Profiled calls never feed a latency.

use crate::cli::Profile as Arguments;
use crate::devices;
use crate::failure::Failure;
use crate::model;
use crate::terminal::say;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::digits;
use overdrive::bench::executable::Target;
use overdrive::bench::exit::Exit;
use overdrive::bench::profile::{OperatorTable, Profile, chrome_trace};
use overdrive::bench::report::write_atomically;
use overdrive::ir::{Mode, State, Tuning};
use overdrive::passes::{Recipe, precision};
use overdrive_process::Stop;
use serde_json::json;

pub(crate) fn profile(arguments: &Arguments, stop: &Stop) -> Result<Exit, Failure> {
    let model = model::load(&arguments.model)?;
    let batch = arguments.batch.map(|n| model.batch(n)).transpose()?;
    let workload = model.bind(&arguments.shapes.iter().cloned().chain(batch).collect())?;
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let mode: Mode = arguments.mode.into();
    let recipe = Recipe { contractions: arguments.dtype.into() };
    let graph = &precision(&workload.graph, &recipe).map_err(Failure::harness)?;
    // What is profiled is what a study would time.
    let mut tuning = Tuning::default();
    backend.tune(graph, mode, &mut tuning).map_err(devices::failure)?;
    let mut executable = backend.compile(graph, mode, &tuning).map_err(devices::failure)?;
    let mut state = State::initial(graph, backend).map_err(devices::failure)?;
    let target = Target { backend, executable: executable.as_mut(), state: &mut state };
    let inputs = workload.inputs(arguments.machine.seed);
    let profile = Profile::take(target, &inputs, arguments.calls, &SystemClock::new());
    let profile = Profile { name: workload.key.name.clone(), ..profile.map_err(Failure::harness)? };
    if let Some(file) = &arguments.trace {
        let trace = chrome_trace(&profile).to_string();
        let _whole = stop.heed();
        write_atomically(file, trace.as_bytes()).map_err(Failure::bad_input)?;
    }
    let table = OperatorTable::of(&profile);
    if arguments.json {
        let json = json!({
            "model": profile.name,
            "mode": mode.name(),
            "table": table,
            "memory": profile.memory,
        });
        say!("{}", serde_json::to_string_pretty(&json).expect("plain data"))?;
        return Ok(Exit::Fine);
    }
    say!("{table}")?;
    let memory = &profile.memory;
    say!(
        "{} {} x {}: {} a call, traced, so no latency; transient {}, prepared {}, parameters {}",
        profile.name,
        mode,
        profile.calls,
        digits::time(profile.wall_ns / f64::from(profile.calls), None),
        digits::bytes(memory.transient_bytes),
        digits::bytes(memory.persistent_bytes),
        digits::bytes(memory.state_bytes),
    )?;
    Ok(Exit::Fine)
}
