//! Attention over keys and values that are codes: its kernel compiles for every GPU. Steps over a
//! cache of codes compute what the definition says, and make no float cache.

use crate::support::llama::{CAPACITY, LAYERS, shuffled_pages, step_of, steps_agree};
use crate::support::{gpu, h200};
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::{Error, Gpu, kernels};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::ops::quantized_attention::CodedRows;
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, Compare, DType, Graph, Mode, Plan, State, Tensor, TensorType, Tuning,
};
use overdrive_models::{CacheCodes, Caches};
use testkit::{Needs, Tolerance, compare};

const CODES: [DType; 2] = [DType::I8, DType::F8E4M3];
const CACHES: [CacheCodes; 2] = [CacheCodes::Int8, CacheCodes::Fp8];

/// Sizes of a call: sequences, query heads, key heads, keys and channels.
type Sizes = [usize; 5];

/// Whole vectors of channels, lanes without any, channels of no vector; one key head for more rows
/// than a block takes, and few keys. Beyond 1024 keys, whole vectors have a kernel of their own.
const SIZES: [Sizes; 15] = [
    [1, 32, 8, 4096, 128],
    [2, 8, 8, 700, 64],
    [1, 8, 1, 2048, 256],
    [2, 12, 4, 500, 80],
    [1, 14, 2, 300, 96],
    [3, 20, 1, 130, 19],
    [1, 4, 2, 1, 4],
    [1, 4, 4, 9000, 64],
    [1, 8, 2, 9000, 128],
    [4, 3, 1, 4099, 64],
    [2, 8, 4, 4200, 80],
    [2, 16, 1, 1025, 128],
    [12, 2, 1, 1100, 64],
    [12, 10, 2, 1041, 128],
    [1, 8, 1, 5000, 256],
];

/// Lengths of twelve sequences: at the borders of tiles of every width, and one past the cache.
const LENGTHS: [usize; 12] = [1, 15, 16, 17, 32, 33, 64, 65, 513, 1024, 1025, 1101];

/// A query of each head over the keys up to its position; with a score function, if asked.
fn call(q: DType, codes: DType, sizes: Sizes, capped: bool) -> Graph {
    let [sequences, heads, shared, keys, depth] = sizes;
    let b = Builder::new("coded");
    let position = [TensorType::new(DType::I64, [sequences])];
    let mask = mask_region(&position, |[s, _, _, k], captures| {
        k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[s]))
    });
    let score = score_region(DType::F32, &position, |score, _, _| (score * 0.2).tanh() * 5.0);
    let regions: Vec<Graph> =
        capped.then_some(score).into_iter().chain([mask]).map(Result::unwrap).collect();
    let rows = |name: &str| CodedRows {
        codes: b.input(name, TensorType::new(codes, [sequences, shared, keys, depth])),
        scales: b.input(
            &format!("{name}_scale"),
            TensorType::new(DType::F32, [sequences, shared, keys, 1]),
        ),
    };
    let q = b.input("q", TensorType::new(q, [sequences, heads, 1, depth]));
    let (k, v) = (rows("k"), rows("v"));
    let position = b.input("position", position[0].clone());
    let [out, lse] = q.quantized_attention([k, v], Attention::FULL, regions, &[position]);
    b.output("out", out);
    b.output("lse", lse);
    b.finish().unwrap()
}

fn planned(graph: &Graph) -> Plan {
    overdrive_passes::plan(graph, Mode::Graph, &Gpu::new(&h200()), &Tuning::default()).unwrap()
}

fn coded_steps(plan: &Plan) -> usize {
    let is_it = |kind: &StepKind| match kind {
        StepKind::Kernel(call) => {
            matches!(&call.op, KernelOp::Composite(op, _) if op.name() == "quantized_attention")
        }
        _ => false,
    };
    plan.steps.iter().filter(|step| is_it(&step.kind)).count()
}

#[test]
fn kernels_over_codes_compile_and_spill_nothing() {
    for (sizes, turn) in SIZES.into_iter().zip(0..) {
        // Each pair of types comes up.
        let (q, codes) = ([DType::BF16, DType::F32, DType::F16][turn % 3], CODES[turn % 2]);
        let plan = planned(&call(q, codes, sizes, turn % 2 == 0));
        assert_eq!(coded_steps(&plan), 1, "{sizes:?}: {plan}");
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
                assert_eq!(spilled, 0, "{q} {codes} {sizes:?} {architecture:?}");
            }
        }
    }
}

/// Caches are read as codes by one kernel in each layer. No float tensor of a step is as large as
/// the keys of a layer.
#[test]
fn no_step_makes_a_float_cache() {
    for caches in [Caches::of_one(CAPACITY), Caches::of(3, CAPACITY)] {
        for codes in CACHES {
            let plan = planned(&step_of(DType::BF16, Caches { codes: Some(codes), ..caches }));
            assert_eq!(coded_steps(&plan), LAYERS, "{plan}");
            let keys = caches.sequences * 2 * CAPACITY * 64;
            let written =
                plan.steps.iter().filter(|step| !step.prepare).flat_map(|step| &step.writes);
            for slot in written {
                let ty = &plan.slot(*slot).ty;
                let is_code = ty.dtype.bits() == 8;
                assert!(is_code || ty.elements() < keys, "{ty} is made: {plan}");
            }
        }
    }
}

#[test]
fn results_are_those_of_the_definition() {
    let Some(backend) = gpu() else { return };
    for (sizes, turn) in SIZES.into_iter().zip(0..) {
        for codes in CODES {
            for q in [DType::F32, DType::BF16, DType::F16] {
                let [sequences, _, _, keys, depth] = sizes;
                let graph = call(q, codes, sizes, turn % 2 == 0);
                let largest = codes.max_value();
                let fill = |(seed, ty): (u64, &TensorType)| {
                    let count: usize = ty.sizes().iter().product();
                    let drawn = || philox::uniforms(seed, 3).take(count);
                    let values: Vec<f64> = if ty.dtype == codes {
                        drawn().map(|u| (2.0 * u - 1.0) * largest).collect()
                    } else if ty.dtype == DType::I64 {
                        let share = |s| keys * (s + 2) / (sequences + 1);
                        let last = |s| if sequences == 12 { LENGTHS[s] - 1 } else { share(s) };
                        (0..sequences).map(|s| last(s) as f64).collect()
                    } else if ty.sizes().last() == Some(&1) {
                        drawn().map(|u| (0.25 + 2.0 * u) / largest).collect()
                    } else {
                        philox::normals(seed, 4).take(count).collect()
                    };
                    Array::from(&Array::from_f64(ty.dtype, &ty.sizes(), values).to_tensor())
                };
                let types = graph.inputs().iter().map(|port| graph.ty(port.value));
                let given: Vec<Array> = (7..).zip(types).map(fill).collect();
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
                // Exponentials are those of `__expf`, to 2^-21.
                let tolerance = Tolerance::new(q, keys.max(depth), 16.0);
                for (expected, found) in expected.iter().zip(&outputs) {
                    let found = Array::from(&backend.download(found).unwrap());
                    compare(expected, &found, tolerance)
                        .unwrap_or_else(|error| panic!("{q} {codes} {sizes:?}: {error}"));
                }
            }
        }
    }
}

/// Step after step, so that each reads the codes that those before it left: one sequence, several
/// at positions of their own, and in pages.
#[test]
fn steps_over_a_cache_of_codes_compute_what_the_definition_says() {
    const SEQUENCES: usize = 3;
    let Some(backend) = gpu() else { return };
    let (pages, table) = shuffled_pages(SEQUENCES);
    let several = Caches::of(SEQUENCES, CAPACITY);
    let kinds = [
        (Caches::of_one(CAPACITY), None),
        (several, None),
        (Caches { pages: Some(pages), ..several }, Some(&table)),
    ];
    for ((caches, table), codes) in
        kinds.into_iter().flat_map(|kind| CACHES.map(|codes| (kind, codes)))
    {
        let caches = Caches { codes: Some(codes), ..caches };
        let graph = step_of(DType::BF16, caches);
        // A rounding may move a number of a key or a value to the next of its codes. That is by
        // 2^-8 of the largest of its row, or in fp8 by 2^-3 of itself. Most are not near a tie.
        let bound = match codes {
            CacheCodes::Int8 => 8.0,
            CacheCodes::Fp8 => 16.0,
        };
        let inputs = |step: i128| {
            let of = |value: &dyn Fn(i128) -> i128| -> Vec<i128> {
                (0..caches.sequences as i128).map(value).collect()
            };
            let ids = of(&|s| (step * 37 + 90 * s + 11) % 320);
            let ids = Tensor::from_ints(DType::I32, [caches.sequences, 1], &ids);
            let places = of(&|s| step + 5 * s);
            let places = match caches.sequences {
                1 => Tensor::scalar(DType::I64, places[0] as f64),
                all => Tensor::from_ints(DType::I64, [all], &places),
            };
            [ids, places].into_iter().chain(table.cloned()).collect()
        };
        for mode in [Mode::Compile, Mode::Graph] {
            let bound = bound * 2f64.powi(-8);
            steps_agree(&backend, (&graph, mode), &inputs, (bound, &format!("{caches:?}")));
        }
    }
}
