//! XLA against the f64 definition: every case of every op and primitive, and its gradient, on the
//! PJRT plugin that `OVERDRIVE_PJRT_PLUGIN` names. Without one these tests skip aloud.
#![cfg(feature = "xla")]
#![allow(clippy::unwrap_used)]

use overdrive_foreign::xla::XlaBackend;
use overdrive_ir::{Backend, BackendError, DType, Mode};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::{Case, Disagreement, Needs, check_backend, derivative};

fn backend() -> Option<XlaBackend> {
    let Ok(path) = std::env::var("OVERDRIVE_PJRT_PLUGIN") else {
        testkit::skip(Needs::Pjrt, "OVERDRIVE_PJRT_PLUGIN names no PJRT plugin");
        return None;
    };
    Some(XlaBackend::new(Path::new(&path), 0).unwrap_or_else(|e| panic!("{e}")))
}

/// Errs with every case that `check` refuses, on all processors. `OVERDRIVE_OPS` names a part of
/// those to check.
fn check_all(
    applies: impl Fn(&Case) -> bool,
    check: impl Fn(&XlaBackend, &Case) -> Result<(), Disagreement> + Sync,
) {
    let Some(backend) = backend() else { return };
    let part = std::env::var("OVERDRIVE_OPS").unwrap_or_default();
    let cases = Case::every().unwrap_or_else(|e| panic!("{e}"));
    let is_part = |case: &&Case| case.sample.op.name().contains(&part) && applies(case);
    let cases: Vec<&Case> = cases.iter().filter(is_part).collect();
    let (next, failures, unsaid) =
        (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            match check(&backend, case) {
                Ok(()) => {}
                Err(Disagreement::Refused(BackendError::Unsupported { reason, .. })) => {
                    unsaid.lock().unwrap().push(format!("{}: {reason}", case.describe()));
                }
                Err(wrong) => {
                    failures.lock().unwrap().push(format!("{}: {wrong}", case.describe()))
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(work);
        }
    });
    let (mut failures, mut unsaid) = (failures.into_inner().unwrap(), unsaid.into_inner().unwrap());
    failures.sort();
    unsaid.sort();
    let counts = (cases.len(), unsaid.len(), failures.len());
    let (name, version) = (backend.name(), backend.version());
    eprintln!(
        "{name} ({version}): {} cases, {} beyond XLA, {} failures",
        counts.0, counts.1, counts.2
    );
    eprintln!("beyond XLA:\n{}", unsaid.join("\n"));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_op_means_in_xla_what_it_means() {
    let check = |backend: &XlaBackend, case: &Case| {
        check_backend(backend, Mode::Compile, &case.graph(), &case.inputs(5))
    };
    check_all(|_| true, check);
}

#[test]
fn every_gradient_means_in_xla_what_it_means() {
    // The narrow types round between the steps of a gradient, as often as it has steps: no bound is
    // known here.
    let wide = |case: &Case| matches!(case.dtype, DType::F32 | DType::F64);
    check_all(wide, |backend, case| {
        let (graph, point) =
            derivative(&case.graph(), &case.inputs(5), 11).map_err(Disagreement::Wrong)?;
        check_backend(backend, Mode::Compile, &graph, &point)
    });
}

/// Our heap would see next to nothing of a call, and XLA would win every comparison of memory.
#[test]
fn memory_of_a_call_is_told_by_xla_itself() {
    let Some(backend) = backend() else { return };
    let b = overdrive_ir::Builder::new("work");
    let x = b.input("x", overdrive_ir::TensorType::new(DType::F32, [64, 64]));
    b.output("y", x.matmul(x).matmul(x));
    let session = backend
        .compile(&b.finish().unwrap(), Mode::Compile, &Default::default())
        .unwrap()
        .session()
        .unwrap();
    assert_eq!(session.heap(), overdrive_ir::backend::Heap::Library);
    assert!(session.memory().transient_bytes >= 64 * 64 * 4, "{:?}", session.memory());
}

#[test]
fn a_library_that_is_no_plugin_is_refused_in_its_loaders_words() {
    let error = XlaBackend::new(Path::new("/nowhere/plugin.so"), 0).err().unwrap().to_string();
    assert!(error.contains("/nowhere/plugin.so"), "{error}");
}
