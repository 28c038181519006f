//! The step of a decoder: it is few launches, and these compute the results of the definition.
//!
//! Long because weights in a format and as codes go through the same tests.

use crate::support::llama::{
    CAPACITY, LAYERS, distance, in_format, llama, shuffled_pages, step_of, steps_agree,
};
use crate::support::{gpu, h200, joined};
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::{Error, Gpu, gemm, loops};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, QuantizedLinear};
use overdrive_ir::plan::{Step, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, Compare, DType, Expr, Graph, Init, Mode, Plan, State, Tensor,
    TensorType, Tuning,
};
use overdrive_models::{CacheCodes, Caches, Span};
use overdrive_passes::{Additions, Evidence, Quantization, QuantizationMode, quantize};
use testkit::{Needs, Tolerance, compare};

/// The next token of a small Llama stored in `low`.
fn step(low: DType) -> Graph {
    step_of(low, Caches::of_one(CAPACITY))
}

/// The next token of the same Llama with codes of this mode in its layers.
fn coded_step(mode: &str, low: DType) -> Graph {
    let graph = llama().build(Span::Step { caches: Caches::of_one(CAPACITY) }).unwrap();
    let float = graph.with_initial_values(|_, ty: &TensorType| match ty.rank() {
        2 => Init::Normal { std: 0.9 / (ty.sizes()[1] as f64).sqrt(), seed: 3 },
        1 => Init::Constant(1.25),
        _ => Init::ZEROS,
    });
    let mode = QuantizationMode::find(mode).unwrap();
    let alone = Quantization { additions: Additions::None, ..mode.quantization() };
    in_format(&quantize(&float, &alone, &Evidence::default()).unwrap().graph, low)
}

fn gathered(graph: &Graph) -> (Plan, Vec<Vec<Step>>) {
    let plan =
        overdrive_passes::plan(graph, Mode::Graph, &Gpu::new(&h200()), &Tuning::default()).unwrap();
    let together = joined(&plan);
    (plan, together)
}

/// The six launches: norm with query, key and value; rotations and caches; attention; its output
/// projection. Then norm, gate and the gated product; the last product.
#[test]
fn a_layer_is_six_launches() {
    let (plan, _) = gathered(&step(DType::BF16));
    let in_layers = |step: &&Step| !step.prepare && step.scope.contains("layers");
    assert_eq!(plan.steps.iter().filter(in_layers).count(), 6 * LAYERS, "{plan}");
}

/// Modes whose layers are products of codes: by activations in the format, and by codes of them.
const CODED: [&str; 6] = ["int8-weights", "int4-rtn", "mxfp4", "nvfp4", "int8-dynamic", "fp8"];

/// Codes lose none of the joins: activations become codes in the launch of their products.
#[test]
fn a_layer_of_codes_is_six_launches() {
    for mode in CODED {
        let (plan, _) = gathered(&coded_step(mode, DType::BF16));
        let in_layers = |step: &&Step| !step.prepare && step.scope.contains("layers");
        assert_eq!(plan.steps.iter().filter(in_layers).count(), 6 * LAYERS, "{mode}: {plan}");
    }
}

/// The same step over a cache of these codes.
fn step_over(codes: CacheCodes) -> Graph {
    step_of(DType::BF16, Caches { codes: Some(codes), ..Caches::of_one(CAPACITY) })
}

/// Rotated keys and values become codes and scales in the launch that writes caches. Rotations of
/// queries and keys have a launch each before it.
#[test]
fn a_layer_over_a_cache_of_codes_is_eight_launches() {
    for codes in CacheCodes::ALL {
        let (plan, _) = gathered(&step_over(codes));
        let in_layers = |step: &&Step| !step.prepare && step.scope.contains("layers");
        assert_eq!(plan.steps.iter().filter(in_layers).count(), 8 * LAYERS, "{codes:?}: {plan}");
    }
}

#[test]
fn launches_of_several_steps_compile_and_spill_nothing() {
    let coded = CODED.map(|mode| coded_step(mode, DType::BF16));
    let over_codes = CacheCodes::ALL.map(step_over);
    let graphs = [step(DType::F16)].into_iter().chain(coded).chain(over_codes);
    for steps in graphs.flat_map(|graph| gathered(&graph).1) {
        let steps = &steps;
        let all: Vec<&Step> = steps.iter().collect();
        let source = match loops::bunches(&all) {
            true => loops::source_bunch(steps),
            false => gemm::source_bunch(steps),
        };
        match resources(&source.unwrap(), Architecture::Sm90a) {
            Ok(used) => assert!(used.iter().all(|entry| entry.spilled_bytes == 0), "{used:?}"),
            Err(missing @ Error::Missing { .. }) => return testkit::skip(Needs::Nvrtc, missing),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Contractions in bf16 have scalars of bf16 too. A kernel that took one for f32 would read the two
/// bytes after it, which nobody writes.
#[test]
fn a_tensor_scale_is_read_in_the_type_that_the_plan_gives_it() {
    let (_, together) = gathered(&coded_step("nvfp4", DType::BF16));
    let mut found = 0;
    for steps in &together {
        let calls = steps.iter().filter_map(|step| match &step.kind {
            StepKind::Kernel(call) if call.epilogue.is_some() => Some(call),
            _ => None,
        });
        for call in calls {
            let tensor_scale = &call.operands.last().unwrap().ty;
            assert_eq!(tensor_scale, &TensorType::scalar(DType::BF16));
            let source = gemm::source_bunch(steps).unwrap();
            assert!(source.text.contains("#define TENSOR_SCALE bf16"));
            found += 1;
        }
    }
    // Those of the layers that share a launch, and the head.
    assert_eq!(found, 5 * LAYERS + 1);
}

/// Step after step, so that each reads the values that those before it left in the caches.
#[test]
fn steps_compute_what_the_definition_says() {
    let Some(backend) = gpu() else { return };
    for (low, unit) in [(DType::BF16, 2f64.powi(-8)), (DType::F16, 2f64.powi(-11))] {
        let graph = step(low);
        let inputs = |position: i128| {
            let ids = Tensor::from_ints(DType::I32, [1, 1], &[(position * 37 + 11) % 320]);
            vec![ids, Tensor::scalar(DType::I64, position as f64)]
        };
        for mode in [Mode::Eager, Mode::Compile, Mode::Graph] {
            // A layer rounds to `low` on its way in, after attention and after the gate; so many
            // roundings of one sign are the bound.
            steps_agree(&backend, (&graph, mode), &inputs, (4.0 * unit, low.name()));
        }
    }
}

/// The same of layers with codes, which repeat to the bit.
#[test]
fn steps_with_codes_compute_what_the_definition_says() {
    let Some(backend) = gpu() else { return };
    for mode in CODED {
        let graph = coded_step(mode, DType::BF16);
        let mut sessions: Vec<_> = [Mode::Compile, Mode::Graph]
            .map(|mode| {
                let compiled = backend.compile(&graph, mode, &Tuning::default()).unwrap();
                (compiled.session().unwrap(), State::initial(&graph, &backend).unwrap())
            })
            .into();
        let mut states = States::new();
        for position in 0..6 {
            let ids = Tensor::from_ints(DType::I32, [1, 1], &[(position * 37 + 11) % 320]);
            let at = Tensor::scalar(DType::I64, position as f64);
            let expected = eval(&graph, &[&ids, &at].map(Array::from), &mut states).remove(0);
            let found = sessions.iter_mut().map(|(session, state)| {
                let inputs = [&ids, &at].map(|t| backend.upload(t).unwrap());
                let ty = graph.ty(graph.outputs()[0].value);
                let mut outputs = vec![backend.output(ty).unwrap()];
                session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
                backend.download(&outputs[0]).unwrap().to_f64()
            });
            let found: Vec<Vec<f64>> = found.collect();
            assert_eq!(found[0], found[1], "{mode} {position}");
            // A rounding may move an activation to the next of its codes. In fp8, a bf16 value does
            // so in one case of 16, by 9 % on average. Nine activations in turn make that 7 %.
            let bound = match mode {
                "fp8" => 32.0,
                "int8-dynamic" => 16.0,
                _ => 4.0,
            };
            let error = distance(&found[0], expected.floats());
            assert!(error < bound * 2f64.powi(-8), "{mode} {position}: {error:e}");
        }
    }
}

/// Sequences at positions of their own in one batch, with room of their own and in pages, in every
/// mode.
#[test]
fn steps_of_several_sequences_compute_what_the_definition_says() {
    const SEQUENCES: usize = 3;
    let Some(backend) = gpu() else { return };
    let own = Caches::of(SEQUENCES, CAPACITY);
    let (pages, table) = shuffled_pages(SEQUENCES);
    for (caches, table) in [(own, None), (Caches { pages: Some(pages), ..own }, Some(&table))] {
        let graph = step_of(DType::BF16, caches);
        let inputs = |call: i128| {
            let of = |value: &dyn Fn(i128) -> i128| -> Vec<i128> {
                (0..SEQUENCES as i128).map(value).collect()
            };
            let ids = of(&|s| (call * 37 + 90 * s) % 320);
            let ids = Tensor::from_ints(DType::I32, [SEQUENCES, 1], &ids);
            let places = Tensor::from_ints(DType::I64, [SEQUENCES], &of(&|s| call + 5 * s));
            [ids, places].into_iter().chain(table.cloned()).collect()
        };
        for mode in [Mode::Eager, Mode::Compile, Mode::Graph] {
            let bound = 4.0 * 2f64.powi(-8);
            steps_agree(&backend, (&graph, mode), &inputs, (bound, &format!("{caches:?}")));
        }
    }
}

/// Rows of x under a norm by three weights of different widths, and a gate; `transposed` weights
/// have the contracted index contiguous.
fn bunch([m, k]: [usize; 2], transposed: bool) -> Graph {
    let b = Builder::new("bunch");
    let x = b.input("x", TensorType::new(DType::F32, [m, k]));
    let scale = b.input("scale", TensorType::new(DType::F32, [k]));
    let normed = x.rms_norm(scale, 1e-5).convert(DType::BF16);
    let product = |name: &str, n: usize| {
        let shape = if transposed { [n, k] } else { [k, n] };
        let w = b.input(name, TensorType::new(DType::BF16, shape));
        let w = if transposed { w.t() } else { w };
        normed.dot_to(w, &[], &[(1, 0)], DType::F32)
    };
    output_products(&b, product, [64, 200]);
    b.finish().expect("the graph is well-formed")
}

/// Query, key, value of this width, and a product that a gate of this width opens, each with an
/// epilogue of its own.
fn output_products<'b>(
    b: &'b Builder,
    product: impl Fn(&str, usize) -> Expr<'b>,
    [of_value, of_gate]: [usize; 2],
) {
    let [q, key, value] =
        [("q", 320), ("k", 72), ("v", of_value)].map(|(name, n)| product(name, n));
    let gate = product("gate", of_gate).silu();
    let opened = product("up", of_gate) * gate;
    b.output("q", q);
    b.output("k", key.convert(DType::BF16));
    b.output("v", value + value.constant(1.0));
    b.output("opened", opened.convert(DType::BF16));
}

#[test]
fn products_of_few_rows_are_one_launch_with_their_norm() {
    for m in [1, 3, 8] {
        let (plan, together) = gathered(&bunch([m, 512], true));
        assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [6], "{m}: {plan}");
    }
    let (plan, together) = gathered(&bunch([9, 512], true));
    assert!(together.iter().all(|steps| steps.len() < 6), "{plan}");
}

/// A norm and a gate of a billion parameters' layer: 46 MB of weights, which no block has ahead.
/// One row streams them in one launch. Tiles of many rows would take the room of weights.
#[test]
fn only_few_rows_stream_their_weights_in_one_launch() {
    for (m, launches) in [(1, 1), (4, 1), (8, 3)] {
        let b = Builder::new("gate");
        let x = b.input("x", TensorType::new(DType::F32, [m, 2048]));
        let scale = b.input("scale", TensorType::new(DType::F32, [2048]));
        let normed = x.rms_norm(scale, 1e-5).convert(DType::BF16);
        let [gate, up] = ["gate", "up"].map(|name| {
            let w = b.input(name, TensorType::new(DType::BF16, [5632, 2048]));
            normed.dot_to(w.t(), &[], &[(1, 0)], DType::F32)
        });
        b.output("opened", (gate.silu() * up).convert(DType::BF16));
        let (plan, _) = gathered(&b.finish().unwrap());
        assert_eq!(plan.steps.len(), launches, "{m}: {plan}");
    }
}

/// The same rows by codes of i4, with scales of `group`.
fn coded_bunch([m, k]: [usize; 2], group: usize) -> Graph {
    let b = Builder::new("bunch");
    let x = b.input("x", TensorType::new(DType::F32, [m, k]));
    let scale = b.input("scale", TensorType::new(DType::F32, [k]));
    let normed = x.rms_norm(scale, 1e-5).convert(DType::BF16);
    let product = |name: &str, n: usize| {
        let codes = b.input(name, TensorType::new(DType::I4, [n, k]));
        let scales = TensorType::new(DType::BF16, [n, k / group]);
        let scales = b.input(&format!("{name}_scale"), scales);
        normed.quantized_linear(QuantizedLinear::default(), &[codes, scales]).convert(DType::F32)
    };
    output_products(&b, product, [61, 203]);
    b.finish().expect("the graph is well-formed")
}

#[test]
fn products_of_codes_with_their_norm_compute_what_each_does() {
    let shapes =
        [([1, 64], 64), ([1, 2048], 128), ([2, 224], 32), ([5, 1056], 32), ([8, 4096], 64)];
    for ([m, k], group) in shapes {
        let graph = coded_bunch([m, k], group);
        let (plan, together) = gathered(&graph);
        assert_eq!(together.iter().map(Vec::len).collect::<Vec<_>>(), [6], "{m}, {k}: {plan}");
        computes(&graph, k, &format!("[{m}, {k}] in groups of {group}"));
    }
}

#[test]
fn products_of_few_rows_with_their_norm_compute_what_each_does() {
    // One tile of the contracted index and many; one that no tile divides.
    for [m, k] in [[1, 64], [1, 2048], [2, 200], [4, 4096], [5, 1032], [8, 4096]] {
        for transposed in [true, false] {
            computes(&bunch([m, k], transposed), k, &format!("[{m}, {k}] {transposed}"));
        }
    }
}

/// Runs a graph of products of bf16 over `k` three times in each mode that gathers, against the
/// definition.
fn computes(graph: &Graph, k: usize, case: &str) {
    let Some(backend) = gpu() else { return };
    let tensors = drawn(graph);
    let arrays: Vec<Array> = tensors.iter().map(Array::from).collect();
    let expected = eval(graph, &arrays, &mut States::new());
    let tolerance = Tolerance::new(DType::BF16, k, 16.0 * (k as f64).sqrt());
    for mode in [Mode::Compile, Mode::Graph] {
        let mut session =
            backend.compile(graph, mode, &Tuning::default()).unwrap().session().unwrap();
        let inputs: Vec<_> = tensors.iter().map(|t| backend.upload(t).unwrap()).collect();
        let types = graph.outputs().iter().map(|o| graph.ty(o.value));
        let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
        for _ in 0..3 {
            let mut state = State::default();
            session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
        }
        for (expected, output) in expected.iter().zip(&outputs) {
            let found = Array::from(&backend.download(output).unwrap());
            compare(expected, &found, tolerance).unwrap_or_else(|e| panic!("{case} {mode:?}: {e}"));
        }
    }
}

/// Normal numbers for each input.
fn drawn(graph: &Graph) -> Vec<Tensor> {
    let normal = |(site, port): (usize, &overdrive_ir::Port)| {
        let ty = graph.ty(port.value);
        let normals = overdrive_ir::eval::philox::normals(7, site as u64);
        let draws: Vec<f64> = normals.take(ty.elements()).collect();
        Tensor::from_f64(ty.dtype, ty.sizes(), &draws)
    };
    graph.inputs().iter().enumerate().map(normal).collect()
}

#[test]
fn attention_of_few_queries_computes_what_the_definition_says() {
    let Some(backend) = gpu() else { return };
    // Heads, key heads, queries, keys, channels. The shapes have every width and groups that are no
    // power of two. They have fewer keys than a block takes, more than are read at once, and
    // several sequences. Beyond 1024 keys another kernel cuts keys among blocks, and more than
    // eight rows among tasks.
    let shapes: [[usize; 6]; 16] = [
        [1, 8, 2, 1, 320, 64],
        [1, 32, 4, 1, 2100, 64],
        [1, 3, 1, 1, 77, 32],
        [2, 4, 4, 1, 500, 128],
        [1, 2, 1, 3, 130, 256],
        [1, 8, 1, 1, 1, 128],
        [40, 8, 4, 1, 64, 64],
        [1, 12, 12, 1, 1024, 64],
        [1, 2, 2, 8, 9, 64],
        [1, 4, 4, 1, 9000, 64],
        [2, 16, 2, 1, 6000, 128],
        [1, 3, 1, 1, 4099, 64],
        [1, 16, 1, 1, 1025, 128],
        [2, 2, 2, 1, 2000, 256],
        [1, 4, 2, 3, 1700, 64],
        [70, 2, 2, 1, 1100, 32],
    ];
    for dtype in [DType::BF16, DType::F16] {
        for [batch, heads, shared, queries, keys, d] in shapes {
            for seen in [keys / 3, keys - 1] {
                let b = Builder::new("attention");
                let input = |name, shape: [usize; 4]| b.input(name, TensorType::new(dtype, shape));
                let q = input("q", [batch, heads, queries, d]);
                let [k, v] = ["k", "v"].map(|name| input(name, [batch, shared, keys, d]));
                let last = b.constant(Tensor::scalar(DType::I64, seen as f64));
                let types = [TensorType::scalar(DType::I64)];
                let mask = mask_region(&types, |[_, _, _, k], captures| {
                    k.convert(DType::I64).compare(Compare::Le, captures[0])
                });
                let score = score_region(DType::F32, &types, |score, [_, h, _, k], _| {
                    score + (h - k).convert(DType::F32) * 0.01
                });
                let mut regions = vec![mask.unwrap()];
                if heads == 8 {
                    regions.push(score.unwrap());
                }
                let mask = if queries > 1 { Mask::Causal } else { Mask::Full };
                let attention = Attention { mask, ..Attention::FULL };
                let [out, lse] = q.attention_with([k, v], attention, regions, &[last]);
                b.output("out", out);
                b.output("lse", lse);
                let graph = b.finish().unwrap();
                let case = format!("{dtype} {:?} {seen}", [batch, heads, shared, queries, keys, d]);
                attends(&backend, &graph, (Tolerance::new(dtype, d + keys, 8.0), &case));
            }
        }
    }
}

/// Runs a graph of attention in every mode, against the definition. Calls repeat to the bit, so
/// that each leaves the counters of the kernel as the next expects them.
fn attends(backend: &dyn Backend, graph: &Graph, (tolerance, case): (Tolerance, &str)) {
    let tensors = drawn(graph);
    let arrays: Vec<Array> = tensors.iter().map(Array::from).collect();
    let expected = eval(graph, &arrays, &mut States::new());
    let inputs: Vec<_> = tensors.iter().map(|t| backend.upload(t).unwrap()).collect();
    for mode in [Mode::Compile, Mode::Graph] {
        let mut session =
            backend.compile(graph, mode, &Tuning::default()).unwrap().session().unwrap();
        let types = graph.outputs().iter().map(|o| graph.ty(o.value));
        let mut outputs: Vec<_> = types.map(|ty| backend.output(ty).unwrap()).collect();
        let mut results = (0..3).map(|_| {
            let mut state = State::default();
            session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
            outputs.iter().map(|output| backend.download(output).unwrap()).collect()
        });
        let first: Vec<Tensor> = results.next().unwrap();
        assert!(results.all(|next| next == first), "{case} {mode:?}: calls differ");
        for (expected, found) in expected.iter().zip(&first) {
            compare(expected, &Array::from(found), tolerance)
                .unwrap_or_else(|e| panic!("{case} {mode:?}: {e}"));
        }
    }
}

/// Sequences of one batch whose lengths are at the borders of tiles, of warps and of blocks.
#[test]
fn attention_over_ragged_caches_computes_what_the_definition_says() {
    let Some(backend) = gpu() else { return };
    const LENGTHS: [usize; 13] = [1, 15, 16, 17, 32, 33, 64, 65, 256, 257, 1024, 1025, 2049];
    // Query heads, key heads, keys, channels. The kernel for long caches begins at 1025 keys. Its
    // rows are in one task, or from nine on in several.
    let shapes: [[usize; 4]; 8] = [
        [2, 2, 1024, 64],
        [3, 1, 1025, 64],
        [8, 1, 4100, 64],
        [16, 1, 2050, 128],
        [6, 2, 4096, 128],
        [9, 1, 2049, 256],
        [4, 4, 1300, 32],
        [4, 2, 1100, 80],
    ];
    for dtype in [DType::BF16, DType::F16] {
        for [heads, shared, keys, d] in shapes {
            let lengths = LENGTHS.iter().copied().filter(|&length| length < keys);
            let last: Vec<i128> =
                lengths.chain([keys - 1, keys]).map(|length| length as i128 - 1).collect();
            let b = Builder::new("attention");
            let input = |name, shape: [usize; 4]| b.input(name, TensorType::new(dtype, shape));
            let q = input("q", [last.len(), heads, 1, d]);
            let [k, v] = ["k", "v"].map(|name| input(name, [last.len(), shared, keys, d]));
            let last = Tensor::from_ints(DType::I64, [last.len()], &last);
            let mask = mask_region(&[last.ty().clone()], |[b, _, _, k], captures| {
                k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[b]))
            });
            let last = b.constant(last);
            let regions = vec![mask.unwrap()];
            let [out, lse] = q.attention_with([k, v], Attention::FULL, regions, &[last]);
            b.output("out", out);
            b.output("lse", lse);
            let case = format!("{dtype} {:?}", [heads, shared, keys, d]);
            let tolerance = Tolerance::new(dtype, d + keys, 8.0);
            attends(&backend, &b.finish().unwrap(), (tolerance, &case));
        }
    }
}
