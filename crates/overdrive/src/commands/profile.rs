//! `overdrive profile`: operators by self time, and a trace. It has all ranks of a training step.
//! Profiled calls never feed a latency.

mod ranks;

use crate::asked_graph;
use crate::cli::Profile as Arguments;
use crate::devices;
use crate::failure::Failure;
use crate::terminal::{say, tell, width};
use overdrive::bench::clock::SystemClock;
use overdrive::bench::digits;
use overdrive::bench::exit::Exit;
use overdrive::bench::profile::{OperatorTable, Profile, chrome_trace};
use overdrive::bench::session_calls::CallTarget;
use overdrive::cpu::memory::available_bytes;
use overdrive::files::{Place, PlaceRequest};
use overdrive::ir::{Backend, Mode, State, Tuning};
use overdrive::studies::Workload;
use overdrive_process::Stop;
use serde_json::json;
use std::path::Path;

pub(crate) fn profile(arguments: &Arguments, stop: &Stop) -> Result<Exit, Failure> {
    let place = |path| {
        let inputs = &[Path::new(&arguments.subject.model)];
        let request =
            PlaceRequest { path, option: "--trace", existing: arguments.replacing.into(), inputs };
        Place::file(request).map_err(Failure::bad_input)
    };
    let place = arguments.trace.as_deref().map(place).transpose()?;
    let profiles = match &arguments.ranks.mesh {
        Some(mesh) => ranks::profiles(arguments, mesh)?,
        None => vec![alone(arguments)?],
    };
    if let Some(place) = place {
        let _whole = stop.heed();
        place
            .fill_with(chrome_trace(&profiles).to_string().as_bytes())
            .map_err(Failure::bad_input)?;
    }
    let by_time = |(_, one): &(usize, &Profile), (_, other): &(usize, &Profile)| {
        one.wall_ns.total_cmp(&other.wall_ns)
    };
    let slowest = profiles.iter().enumerate().max_by(by_time);
    let (rank, profile) = slowest.expect("there is at least one rank");
    let table = OperatorTable::of(profile);
    if arguments.json {
        let mut json = json!({
            "model": profile.name,
            "mode": profile.mode.name(),
            "table": table,
            "memory": profile.memory,
        });
        if profiles.len() > 1 {
            json["rank"] = json!(rank);
        }
        say!("{}", serde_json::to_string_pretty(&json).expect("plain data"))?;
        return Ok(Exit::Fine);
    }
    say!("{table:width$}", width = usize::from(width()))?;
    let memory = &profile.memory;
    let a_call = |wall_ns: f64| digits::time(wall_ns / f64::from(profile.calls), None);
    if profiles.len() > 1 {
        let fastest = profiles.iter().map(|profile| profile.wall_ns).fold(f64::MAX, f64::min);
        tell!(
            "rank {rank} of {}, the slowest; the fastest takes {} a call",
            profiles.len(),
            a_call(fastest)
        )?;
    }
    tell!(
        "{} {} x {}: {} a call, traced, so no latency; transient {}, prepared {}, parameters {}",
        profile.name,
        profile.mode,
        profile.calls,
        a_call(profile.wall_ns),
        digits::bytes(memory.transient_bytes),
        digits::bytes(memory.persistent_bytes),
        digits::bytes(memory.state_bytes),
    )?;
    Ok(Exit::Fine)
}

/// The profile of the graph on one device.
fn alone(arguments: &Arguments) -> Result<Profile, Failure> {
    let (workload, graph, opened) = &asked_graph::open(&arguments.subject)?;
    let backend = opened.backend.as_ref();
    let mode: Mode = arguments.subject.mode.into();
    devices::check_mode(mode, backend.description(), "--mode")?;
    check_memory(workload, backend)?;
    // Tuned as in a study, so that the same kernels are profiled.
    let mut tuning = Tuning::default();
    backend.tune(graph, mode, &mut tuning).map_err(devices::failure)?;
    let mut session = backend
        .compile(graph, mode, &tuning)
        .map_err(devices::failure)?
        .session()
        .map_err(devices::failure)?;
    let mut state = State::initial(graph, backend).map_err(devices::failure)?;
    let target = CallTarget { backend, session: session.as_mut(), state: &mut state };
    let inputs = workload.inputs(arguments.subject.machine.seed);
    let profile = Profile::take(target, &inputs, arguments.calls, &SystemClock::new());
    Ok(Profile { name: workload.key.name.clone(), ..profile.map_err(Failure::unmeasured)? })
}

/// Errs where states, inputs and outputs are more than the device has, or inputs more than the host
/// can draw.
fn check_memory(workload: &Workload, backend: &dyn Backend) -> Result<(), Failure> {
    let graph = &workload.graph;
    let drawn = graph.inputs().iter().map(|port| graph.ty(port.value).bytes() as u64);
    // A tensor is drawn beside the bytes that it becomes.
    let host = drawn.fold(0u64, |sum, bytes| sum.saturating_add(bytes.saturating_mul(2)));
    let sizes = [
        ("states, inputs and outputs", workload.least_bytes(), backend.description().memory_bytes),
        ("inputs, as they are drawn,", host, available_bytes()),
    ];
    for (what, needed, available) in sizes {
        if needed > available {
            return Err(Failure::bad_input(format!(
                "out of memory: {what} need {needed} bytes, there are {available}: use a smaller \
                 batch or smaller sizes"
            )));
        }
    }
    Ok(())
}
