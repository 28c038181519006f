//! Attention over pages of a pool: its kernel compiles for every GPU and hardly spills. It
//! computes what the definition says, and what attention over the same keys in order does. No step
//! of a decoder gathers its caches.

use crate::support::llama::{CAPACITY, LAYERS, step_of};
use crate::support::{gpu, h200};
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::{Error, Gpu, kernels};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::ops::paged_attention::KeysAndValues;
use overdrive_ir::ops::quantized_attention::CodedRows;
use overdrive_ir::ops::{Attention, PagedAttention};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, Compare, DType, Graph, Mode, Plan, State, TensorType, Tuning,
};
use overdrive_models::{CacheCodes, Caches, Pages};
use std::num::NonZeroUsize;
use testkit::{Needs, Tolerance, compare};

/// A call: the pages of a sequence and their tokens.
#[derive(Copy, Clone, Debug)]
struct Case {
    sequences: usize,
    /// Query heads and key heads.
    heads: [usize; 2],
    queries: usize,
    channels: usize,
    pages: [usize; 2],
    /// The type of keys and values; `None` for that of q.
    codes: Option<DType>,
}

/// Few keys and many; pages that tiles fit into, pages of any length, and of one token. Also
/// channels of no vector, and more rows than a block takes.
fn cases() -> Vec<Case> {
    let case = |sequences, heads, queries, channels, pages| Case {
        sequences,
        heads,
        queries,
        channels,
        pages,
        codes: None,
    };
    let numbers = [
        case(2, [8, 8], 1, 64, [12, 16]),
        case(3, [32, 8], 1, 128, [40, 64]),
        case(1, [8, 1], 1, 256, [129, 16]),
        case(2, [12, 4], 1, 80, [33, 7]),
        case(1, [14, 2], 3, 96, [5, 100]),
        case(4, [3, 1], 1, 19, [130, 1]),
        case(12, [10, 2], 1, 128, [1041, 1]),
        case(4, [16, 2], 4, 64, [70, 32]),
        case(2, [4, 4], 1, 32, [9, 1000]),
    ];
    let kinds = [None, Some(DType::I8), Some(DType::F8E4M3)];
    let with = |case: Case| kinds.map(|codes| Case { codes, ..case });
    numbers.into_iter().flat_map(with).collect()
}

/// The queries of each sequence over the keys up to its position, with a score function if asked.
/// Two inputs of the same keys: q, pools, pages, position.
fn call(q: DType, case: Case, capped: bool) -> Graph {
    let Case { sequences, heads: [heads, shared], queries, channels, pages: [pages, size], codes } =
        case;
    let b = Builder::new("paged");
    let position = [TensorType::new(DType::I64, [sequences])];
    let mask = mask_region(&position, |[s, _, _, k], captures| {
        k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[s]))
    });
    let score = score_region(DType::F32, &position, |score, _, _| (score * 0.2).tanh() * 5.0);
    let regions: Vec<Graph> =
        capped.then_some(score).into_iter().chain([mask]).map(Result::unwrap).collect();
    // As many pages as two thirds of the sequences need, so that some are shared.
    let pool = [1 + (sequences * pages * 2).div_ceil(3), shared, size];
    let input = |name: &str, dtype: DType, last: usize| {
        b.input(name, TensorType::new(dtype, [&pool[..], &[last]].concat()))
    };
    let queries = b.input("q", TensorType::new(q, [sequences, heads, queries, channels]));
    let kept = match codes {
        None => KeysAndValues::Numbers(["k", "v"].map(|name| input(name, q, channels))),
        Some(codes) => KeysAndValues::Codes(["k", "v"].map(|name| CodedRows {
            codes: input(name, codes, channels),
            scales: input(&format!("{name}_scale"), DType::F32, 1),
        })),
    };
    let pages = b.input("pages", TensorType::new(DType::I32, [sequences, pages]));
    let position = b.input("position", position[0].clone());
    let op = PagedAttention { attention: Attention::FULL };
    let [out, lse] = op.of(queries, (kept, pages), regions, &[position]);
    b.output("out", out);
    b.output("lse", lse);
    b.finish().unwrap()
}

/// Random inputs of a call. Positions lie at the borders of pages, and one is past the keys.
fn given(graph: &Graph, case: Case) -> Vec<Array> {
    let keys = case.pages[0] * case.pages[1];
    let types = graph.inputs().iter().map(|port| graph.ty(port.value));
    let fill = |(seed, ty): (u64, &TensorType)| {
        let count = ty.elements();
        let drawn = || philox::uniforms(seed, 3).take(count);
        let largest = case.codes.map_or(1.0, DType::max_value);
        let values: Vec<f64> = match ty.dtype {
            dtype if Some(dtype) == case.codes => {
                drawn().map(|u| (2.0 * u - 1.0) * largest).collect()
            }
            // Any page, the first and the last among them, and numbers beyond the pool.
            DType::I32 => drawn().map(|u| (u * 1.02 * count as f64).floor() - 1.0).collect(),
            DType::I64 => {
                let size = case.pages[1];
                let places = [keys, size - 1, size, keys / 2, 0, keys / 3];
                (0..count).map(|s| places[s % places.len()] as f64).collect()
            }
            _ if ty.sizes().last() == Some(&1) => {
                drawn().map(|u| (0.25 + 2.0 * u) / largest).collect()
            }
            _ => philox::normals(seed, 4).take(count).collect(),
        };
        Array::from(&Array::from_f64(ty.dtype, &ty.sizes(), values).to_tensor())
    };
    (7..).zip(types).map(fill).collect()
}

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
    for (turn, case) in cases().into_iter().enumerate() {
        let q = of_q(turn);
        let plan = planned(&call(q, case, turn % 2 == 0));
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
    for (turn, case) in cases().into_iter().enumerate() {
        for q in [of_q(turn), of_q(turn + 1)] {
            let graph = call(q, case, turn % 2 == 0);
            let given = given(&graph, case);
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
            let keys = case.pages[0] * case.pages[1];
            let tolerance = Tolerance::new(q, keys.max(case.channels), 16.0);
            for (expected, found) in expected.iter().zip(&outputs) {
                let found = Array::from(&backend.download(found).unwrap());
                compare(expected, &found, tolerance)
                    .unwrap_or_else(|error| panic!("{q} {case:?}: {error}"));
            }
        }
    }
}
