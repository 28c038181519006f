//! See where the time of a call goes: operators by self time, and a trace that ui.perfetto.dev
//! opens.
//!
//! `cargo run --release --example profile_a_model`

use overdrive::bench::clock::SystemClock;
use overdrive::bench::profile::{OperatorTable, Profile, chrome_trace};
use overdrive::bench::session_calls::CallTarget;
use overdrive::cpu::CpuBackend;
use overdrive::ir::{Backend, Mode, State, Tuning};
use overdrive::models;
use overdrive::studies::Workload;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let workload = Workload::of_model(models::find("digits-conv")?, &Default::default())?;
    let backend = CpuBackend::new(None)?;
    let mut session =
        backend.compile(&workload.graph, Mode::Compile, &Tuning::default())?.session()?;
    let mut state = State::initial(&workload.graph, &backend)?;
    let target = CallTarget { backend: &backend, session: session.as_mut(), state: &mut state };
    let profile = Profile::take(target, &workload.inputs(1), 20, &SystemClock::new())?;
    println!("{}", OperatorTable::of(&profile));
    let file = std::env::temp_dir().join("digits-conv.trace.json");
    std::fs::write(&file, chrome_trace(&[profile]).to_string())?;
    println!("trace: {}", file.display());
    Ok(())
}
