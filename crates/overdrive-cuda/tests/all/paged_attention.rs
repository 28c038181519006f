//! Attention over pages of a pool: its kernel compiles for every GPU and hardly spills. It
//! computes what the definition says, and what attention over the same keys in order does. No step
//! of a decoder gathers its caches.

use crate::support::llama::{CAPACITY, LAYERS, step_of};
use crate::support::{gpu, h200};
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::{Error, Gpu, kernels};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, Backend, DType, Graph, Mode, Plan, State, Tuning};
use overdrive_models::{CacheCodes, Caches, Pages};
use std::num::NonZeroUsize;
use testkit::{Needs, PagedCall, Tolerance, compare};

fn planned(graph: &Graph) -> Plan {
    overdrive_passes::plan(graph, Mode::Graph, &Gpu::new(&h200()), &Tuning::default()).unwrap()
}

fn paged_steps(plan: &Plan) -> usize {
    let is_it = |kind: &StepKind| match kind {
        StepKind::Kernel(call) => {
            matches!(&call.op, KernelOp::Composite(op, _) if op.name() == "paged_attention")
        }
        _ => false,
    };
    plan.steps.iter().filter(|step| is_it(&step.kind)).count()
}

/// The type of q in a turn, so that each comes up beside each kind of keys.
fn of_q(turn: usize) -> DType {
    [DType::BF16, DType::F32, DType::F16, DType::BF16][turn % 4]
}

#[test]
fn kernels_over_pages_compile_and_hardly_spill() {
    for (turn, case) in PagedCall::every().into_iter().enumerate() {
        let q = of_q(turn);
        let plan = planned(&case.graph(q, turn % 2 == 0));
        assert_eq!(paged_steps(&plan), 1, "{case:?}: {plan}");
        let sources = kernels::sources_of(&plan).unwrap_or_else(|refusal| panic!("{refusal}"));
        for (source, architectures) in sources {
            let both = [Architecture::Sm80, Architecture::Sm90a];
            for architecture in both.into_iter().filter(|one| architectures.contains(one)) {
                let used = match resources(&source, architecture) {
                    Err(missing @ Error::Missing { .. }) => {
                        return testkit::skip(Needs::Nvrtc, missing);
                    }
                    compiled => compiled.unwrap_or_else(|e| panic!("{e}\n{}", source.text)),
                };
                let spilled: u32 = used.iter().map(|entry| entry.spilled_bytes).sum();
                // Codes of 256 channels take every register already.
                let most = if case.channels == 256 && case.codes.is_some() { 16 } else { 0 };
                assert!(spilled <= most, "{q} {case:?} {architecture:?}: {spilled} bytes");
            }
        }
    }
}

/// One kernel in each layer reads the pool, and nothing as large as the keys of all sequences is
/// written.
#[test]
fn no_step_gathers_its_pages() {
    let sequences = 3;
    let pages = Pages { size: NonZeroUsize::new(16).unwrap(), count: 60 };
    for codes in [None, Some(CacheCodes::Int8), Some(CacheCodes::Fp8)] {
        let caches = Caches { pages: Some(pages), codes, ..Caches::of(sequences, CAPACITY) };
        let plan = planned(&step_of(DType::BF16, caches));
        assert_eq!(paged_steps(&plan), LAYERS, "{plan}");
        let pool = (pages.count + 1) * 2 * 16 * 64;
        for step in plan.steps.iter().filter(|step| !step.prepare) {
            for slot in &step.writes {
                let elements = plan.slot(*slot).ty.elements();
                assert!(elements == pool || elements < sequences * 2 * CAPACITY * 64, "{plan}");
            }
        }
    }
}

#[test]
fn results_are_those_of_the_definition() {
    let Some(backend) = gpu() else { return };
    for (turn, case) in PagedCall::every().into_iter().enumerate() {
        for q in [of_q(turn), of_q(turn + 1)] {
            let graph = case.graph(q, turn % 2 == 0);
            let given = case.inputs(&graph);
            let expected = eval(&graph, &given, &mut States::new());
            let mut session = backend
                .compile(&graph, Mode::Compile, &Tuning::default())
                .unwrap()
                .session()
                .unwrap();
            let inputs: Vec<_> =
                given.iter().map(|x| backend.upload(&x.to_tensor()).unwrap()).collect();
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
            let mut state = State::initial(&graph, &backend).unwrap();
            session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
            let tolerance = Tolerance::new(q, case.keys().max(case.channels), 16.0);
            for (expected, found) in expected.iter().zip(&outputs) {
                let found = Array::from(&backend.download(found).unwrap());
                compare(expected, &found, tolerance)
                    .unwrap_or_else(|error| panic!("{q} {case:?}: {error}"));
            }
        }
    }
}
