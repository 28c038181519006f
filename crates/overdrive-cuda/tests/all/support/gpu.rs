//! The GPU of the tests, where there is one.

use overdrive_cuda::{CudaBackend, Library, gpus};
use overdrive_ir::Mode;
use testkit::Needs;

/// The first GPU; where there is none, the test is skipped.
pub(crate) fn gpu() -> Option<CudaBackend> {
    if gpus() == 0 {
        testkit::skip(Needs::Gpu, "no GPU was found");
        return None;
    }
    Some(CudaBackend::new(0).unwrap_or_else(|e| panic!("{e}")))
}

/// The modes to check: all, or those that `OVERDRIVE_MODES` names after commas.
pub(crate) fn modes() -> Vec<Mode> {
    let asked = std::env::var("OVERDRIVE_MODES").ok();
    let chosen = |mode: &Mode| {
        asked.as_ref().is_none_or(|names| names.split(',').any(|name| name == mode.name()))
    };
    Mode::ALL.into_iter().filter(chosen).collect()
}

/// All GPUs of this machine, up to four; says so where there are fewer than two.
#[allow(dead_code)] // For `context` and `peers`, which are programs of their own.
pub(crate) fn ranks() -> Option<usize> {
    let found = gpus();
    if found < 2 {
        testkit::skip(Needs::TwoGpus, format!("two GPUs are needed, found {found}"));
        return None;
    }
    if let Err(missing) = Library::Nccl.require() {
        testkit::skip(Needs::TwoGpus, missing);
        return None;
    }
    Some(found.min(4))
}
