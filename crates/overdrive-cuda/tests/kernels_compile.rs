//! Every named kernel compiles for every declared architecture, where NVRTC is found; no GPU is needed.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

use std::collections::HashSet;

use overdrive_cuda::compiler::{Architecture, Source, compile};
use overdrive_cuda::{Error, kernels};
use overdrive_ir::{Caps, DType, Graph, Mode, Tuning};
use testkit::Case;

/// Panics where a source does not compile; says so where there is no compiler.
fn compiles(source: &Source, architecture: Architecture) {
    match compile(source, architecture) {
        Ok(code) => assert!(!code.is_empty()),
        Err(missing @ Error::Missing { .. }) => eprintln!("SKIPPED: {missing}"),
        Err(error) => panic!("{:?}: {error}\n{}", source.defines, source.text),
    }
}

#[test]
fn every_kernel_compiles_for_every_declared_architecture() {
    for source in kernels::sources() {
        for architecture in Architecture::DECLARED {
            compiles(&source, architecture);
        }
    }
}

/// A device that claims what this crate has kernels for.
fn caps() -> Caps {
    Caps {
        device: "a GPU".to_owned(),
        memory_bytes: 1 << 40,
        claims: kernels::CLAIMS.map(str::to_owned).into(),
        contraction_dtypes: [DType::F64, DType::F32, DType::F16, DType::BF16].into(),
        loop_dtypes: DType::ALL.into(),
        ..Caps::default()
    }
}

fn sources_of(graph: &Graph) -> Vec<Source> {
    let plan = overdrive_passes::plan(graph, Mode::Compile, &caps(), &Tuning::default()).unwrap();
    kernels::sources_of(&plan).unwrap_or_else(|refusal| panic!("`{}`: {refusal}", graph.name()))
}

#[test]
fn attentions_and_convolutions_of_every_sample_compile() {
    let printed = ["attention", "convolution", "conv2d"];
    let cases = Case::every().unwrap().into_iter();
    let cases = cases.filter(|case| printed.contains(&case.sample.op.name().as_str()));
    let mut distinct = HashSet::new();
    for case in cases.filter(|case| matches!(case.dtype, DType::F32 | DType::BF16)) {
        distinct.extend(sources_of(&case.graph()));
    }
    assert!(distinct.len() > 20, "{} sources are too few to stand for all", distinct.len());
    // One architecture each, in turn.
    for (source, architecture) in distinct.iter().zip(Architecture::DECLARED.into_iter().cycle()) {
        compiles(source, architecture);
    }
}
