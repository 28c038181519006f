//! Skips tests that cannot run here. Each prints its reason and is counted by `cargo xtask check`.
//! It fails if the machine is meant to have what the test needs.
//!
//! `OVERDRIVE_REQUIRE` names what must be there (`gpu,nvrtc`): a test that lacks it panics.
//! `OVERDRIVE_SKIPS` names a file that gets a line for each skip.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Requirements of a test on a machine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Needs {
    /// A GPU with its driver.
    Gpu,
    /// Two GPUs, and NCCL for their collectives.
    TwoGpus,
    /// A GPU of the generation Hopper, for kernels of its own instructions.
    Hopper,
    /// A processor with this instruction set, by its name.
    InstructionSet(&'static str),
    /// A machine without a driver, to test the messages there.
    NoDriver,
    /// The compiler of kernels.
    Nvrtc,
    /// An engine of somebody else, by its name. Another engine does not replace it.
    Engine(&'static str),
    /// A plugin of PJRT.
    Pjrt,
    /// Python with the server's schema of repositories.
    TritonSchema,
    /// Network namespaces that the process may make.
    Namespaces,
}

impl Needs {
    /// Its name in `OVERDRIVE_REQUIRE` and in the list of skips.
    pub fn name(self) -> &'static str {
        match self {
            Needs::Gpu => "gpu",
            Needs::TwoGpus => "two-gpus",
            Needs::Hopper => "hopper",
            Needs::NoDriver => "no-driver",
            Needs::Nvrtc => "nvrtc",
            Needs::InstructionSet(name) | Needs::Engine(name) => name,
            Needs::Pjrt => "pjrt",
            Needs::TritonSchema => "triton-schema",
            Needs::Namespaces => "namespaces",
        }
    }
}

/// Skips the calling test: says why, and adds a line to the list of skips. The test returns next.
///
/// # Panics
/// If `OVERDRIVE_REQUIRE` names the missing part, or the list cannot be written.
pub fn skip(needs: Needs, reason: impl Display) {
    require(needs, &reason);
    eprintln!("SKIPPED: {reason}");
    let Some(list) = std::env::var_os("OVERDRIVE_SKIPS") else { return };
    let thread = std::thread::current();
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_stem()?.to_str());
    let reason = reason.to_string().replace(['\n', '\t'], " ");
    let line = format!(
        "{}\t{}\t{}\t{reason}\n",
        program.unwrap_or("?"),
        thread.name().unwrap_or("?"),
        needs.name()
    );
    // One write to a file that is open for appending: lines of several processes stay whole.
    let file = OpenOptions::new().append(true).create(true).open(&list);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|e| panic!("cannot add to {}: {e}", list.display()));
}

/// Panics where `OVERDRIVE_REQUIRE` names what is missing.
pub fn require(needs: Needs, reason: impl Display) {
    let required = std::env::var("OVERDRIVE_REQUIRE").unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == needs.name());
    assert!(!is_required, "OVERDRIVE_REQUIRE={required}: {reason}");
}
