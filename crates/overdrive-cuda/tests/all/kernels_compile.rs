//! Kernels that are printed for a graph compile, where NVRTC is found; no GPU is needed. All others
//! are compiled by `cargo xtask kernels`.
//!
//! Long because every family of attention compiles here, from the same helpers.

use std::collections::HashSet;

use overdrive_cuda::compiler::{Architecture, KernelSource, compile, resources};
use overdrive_cuda::loops::PrinterMachine;
use overdrive_cuda::{Error, kernels};
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Dropout};
use overdrive_ir::{
    Builder, Call, Compare, DType, Described, Description, Expr, Graph, Mode, Target, TensorType,
    Tuning,
};
use testkit::{Case, Needs};

/// Panics where a source does not compile; the test is skipped where there is no compiler.
fn compiles(source: &KernelSource, architecture: Architecture) {
    match compile(source, architecture) {
        Ok(code) => assert!(!code.is_empty()),
        Err(missing @ Error::Missing { .. }) => testkit::skip(Needs::Nvrtc, missing),
        Err(error) => panic!("{:?}: {error}\n{}", source.defines, source.text),
    }
}

/// A Hopper that computes products that need no choice of a library.
fn hopper() -> impl Target {
    let description = Description {
        device: "a GPU".to_owned(),
        memory_bytes: 1 << 40,
        contraction_dtypes: [DType::F64, DType::F32, DType::F16, DType::BF16].into(),
        loop_dtypes: DType::ALL.into(),
        ..Description::default()
    };
    let machine = PrinterMachine { multiprocessors: 132, architecture: Architecture::Sm90a };
    let answer = move |call: &Call<'_>| kernels::answer(call, machine);
    Described { description, answer }
}

fn sources_of(graph: &Graph) -> Vec<(KernelSource, &'static [Architecture])> {
    let plan = overdrive_passes::plan(graph, Mode::Compile, &hopper(), &Tuning::default()).unwrap();
    kernels::sources_of(&plan).unwrap_or_else(|refusal| panic!("`{}`: {refusal}", graph.name()))
}

/// Panics where a kernel for Hopper keeps more bytes in memory that it means to have in registers.
fn spills_at_most(bytes: u32, source: &KernelSource, case: &str) {
    spills_at_most_on(Architecture::Sm90a, bytes, source, case);
}

fn spills_at_most_on(architecture: Architecture, bytes: u32, source: &KernelSource, case: &str) {
    match resources(source, architecture) {
        Ok(used) => {
            let spilled: u32 = used.iter().map(|entry| entry.spilled_bytes).sum();
            assert!(spilled <= bytes, "{case}: {spilled} bytes spill");
        }
        Err(missing @ Error::Missing { .. }) => testkit::skip(Needs::Nvrtc, missing),
        Err(error) => panic!("{error}"),
    }
}

/// Causal attention that drops weights, and the seed that it takes.
fn dropping<'b>(b: &'b Builder) -> (Attention, Expr<'b>) {
    let dropout = Some(Dropout { rate: 0.1, site: 0x12_3456_789a });
    (Attention { dropout, ..Attention::CAUSAL }, b.input("seed", Dropout::SEED))
}

/// Attention of Hopper's own kernel compiles for each of its tiles, and keeps all in registers.
#[test]
fn attentions_of_hopper_compile_and_spill_nothing() {
    let captures =
        [TensorType::new(DType::F32, [2, 4096]), TensorType::new(DType::I32, [2, 16_384])];
    let score = score_region(DType::F32, &captures, |score, [_, h, q, k], captures| {
        ((score + captures[0].at(&[h, k - q + k.constant(2048.0)])) * 0.5).tanh() * 2.0
    });
    // A mask of documents, whose ids take the most registers.
    let mask = mask_region(&captures, |[b, _, q, k], captures| {
        captures[1].at(&[b, q]).compare(Compare::Eq, captures[1].at(&[b, k]))
    });
    let regions = [score.unwrap(), mask.unwrap()];
    let shapes = [
        (DType::BF16, [4096, 4096, 64]),
        (DType::F16, [512, 512, 64]),
        (DType::BF16, [2048, 2048, 128]),
        (DType::BF16, [16_384, 16_384, 128]),
        (DType::BF16, [1000, 1000, 192]),
        (DType::BF16, [1000, 1000, 256]),
        (DType::BF16, [1000, 999, 64]),
        (DType::BF16, [1000, 999, 128]),
        (DType::BF16, [1000, 999, 256]),
    ];
    for ((dtype, [queries, keys, d]), turn) in shapes.into_iter().zip(0..) {
        // A compilation takes seconds: some variants come in turn.
        let is_even = turn % 2 == 0;
        let variants = [
            (Some(if is_even { Attention::CAUSAL } else { Attention::FULL }), &[][..]),
            (Some(Attention::CAUSAL), &regions),
            (Some(if is_even { Attention::FULL } else { Attention::CAUSAL }), &regions[1..]),
            (None, if is_even { &regions } else { &[] }),
        ];
        for (attention, regions) in variants {
            let b = Builder::new("attention");
            let (attention, seed) = match attention {
                Some(attention) => (attention, None),
                None => {
                    let (attention, seed) = dropping(&b);
                    (attention, Some(seed))
                }
            };
            let [q, k, v] = [("q", queries), ("k", keys), ("v", keys)]
                .map(|(name, rows)| b.input(name, TensorType::new(dtype, [2, 2, rows, d])));
            let declared = captures.iter().zip(["bias", "ids"]).filter(|_| !regions.is_empty());
            let captures = declared.map(|(ty, name)| b.input(name, ty.clone()));
            let rest: Vec<_> = seed.into_iter().chain(captures).collect();
            b.output("y", q.attention_with([k, v], attention, regions.to_vec(), &rest)[0]);
            let sources = sources_of(&b.finish().unwrap());
            let own =
                sources.iter().find(|(_, architectures)| *architectures == [Architecture::Sm90a]);
            let (source, _) = own.expect("Hopper has a kernel of its own");
            let case = format!("{dtype} {queries} {keys} {d} {attention:?} {}", regions.len());
            spills_at_most(0, source, &case);
        }
    }
}

/// The next token over long caches, in each width, with rows in one task and in several. Score
/// functions, a mask of positions and dropped weights come in turn.
#[test]
fn attentions_over_long_caches_compile_and_spill_nothing() {
    let positions = [TensorType::new(DType::I64, [2])];
    let mask = mask_region(&positions, |[b, _, _, k], captures| {
        k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[b]))
    });
    let score = score_region(DType::F32, &positions, |score, [_, h, _, k], _| {
        score + (h - k).convert(DType::F32) * 0.01
    });
    let regions = [score.unwrap(), mask.unwrap()];
    // Query heads, keys and channels; blocks of a task, and warps on Hopper.
    let shapes = [
        (DType::BF16, [2, 16_384, 64], [32, 8]),
        (DType::F16, [6, 4099, 128], [33, 4]),
        (DType::F16, [16, 1025, 32], [5, 4]),
        (DType::BF16, [18, 2048, 256], [16, 4]),
    ];
    for (turn, (dtype, [heads, keys, d], [split, warps])) in shapes.into_iter().enumerate() {
        let b = Builder::new("attention");
        let (attention, seed) = match turn {
            1 => {
                let (attention, seed) = dropping(&b);
                (attention, Some(seed))
            }
            _ => (Attention::FULL, None),
        };
        let [q, k, v] =
            [("q", [heads, 1]), ("k", [2, keys]), ("v", [2, keys])].map(|(name, [heads, rows])| {
                b.input(name, TensorType::new(dtype, [2, heads, rows, d]))
            });
        let position = b.input("position", positions[0].clone());
        let rest: Vec<_> = seed.into_iter().chain([position]).collect();
        let regions = &regions[usize::from(turn % 2 == 0)..];
        let [out, lse] = q.attention_with([k, v], attention, regions.to_vec(), &rest);
        b.output("out", out);
        b.output("lse", lse);
        let sources = sources_of(&b.finish().unwrap());
        // That of Hopper alone comes last, if it is not the portable one.
        let (source, _) = sources.last().unwrap();
        let case = format!("{dtype} {heads} {keys} {d}");
        for expected in [format!("SPLIT = {split};"), format!("WARPS = {warps},")] {
            assert!(source.text.contains(&expected), "{case}: {}", source.text);
        }
        spills_at_most(0, source, &case);
        compiles(&sources[0].0, Architecture::Sm80);
    }
}

/// With a threshold, attention of Hopper's own kernel compiles and keeps all in registers.
#[test]
fn attention_with_a_threshold_compiles_for_hopper_and_spills_nothing() {
    let ids = TensorType::new(DType::I32, [2, 4096]);
    let mask = mask_region(std::slice::from_ref(&ids), |[b, _, q, k], captures| {
        captures[0].at(&[b, q]).compare(Compare::Eq, captures[0].at(&[b, k]))
    });
    let mask = mask.unwrap();
    for (dtype, [queries, keys, d]) in [
        (DType::BF16, [4096, 4096, 64]),
        (DType::F16, [512, 512, 64]),
        (DType::BF16, [1000, 999, 128]),
        (DType::F16, [4096, 4096, 128]),
    ] {
        for (base, has_mask) in
            [(Attention::CAUSAL, false), (Attention::FULL, false), (Attention::CAUSAL, true)]
        {
            let b = Builder::new("attention");
            let [q, k, v] = [("q", queries), ("k", keys), ("v", keys)]
                .map(|(name, rows)| b.input(name, TensorType::new(dtype, [2, 2, rows, d])));
            let attention = Attention { threshold: Some(0.001), ..base };
            let regions = if has_mask { vec![mask.clone()] } else { vec![] };
            let rest: Vec<_> = has_mask.then(|| b.input("ids", ids.clone())).into_iter().collect();
            let results = q.attention_with([k, v], attention, regions, &rest);
            results.iter().zip(["y", "lse"]).for_each(|(result, name)| b.output(name, *result));
            let sources = sources_of(&b.finish().unwrap());
            let own =
                sources.iter().find(|(_, architectures)| *architectures == [Architecture::Sm90a]);
            let (source, _) = own.expect("Hopper has a kernel of its own");
            spills_at_most(0, source, &format!("{dtype} {queries} {keys} {d} {attention:?}"));
        }
    }
}

/// The portable kernel holds a whole tile of scores, which heads of more than 64 channels have no
/// registers for.
#[test]
fn attention_with_a_threshold_compiles_for_other_gpus() {
    for (d, values, has_score) in [(64, 64, false), (128, 112, false), (128, 128, true)] {
        let b = Builder::new("attention");
        let [q, k, v] = [("q", d), ("k", d), ("v", values)]
            .map(|(name, d)| b.input(name, TensorType::new(DType::BF16, [1, 2, 100, d])));
        let score = score_region(DType::F32, &[], |score, _, _| (score / 4.0).tanh() * 4.0);
        let regions = if has_score { vec![score.unwrap()] } else { vec![] };
        let attention = Attention { threshold: Some(0.001), ..Attention::CAUSAL };
        b.output("y", q.attention_with([k, v], attention, regions, &[])[0]);
        for (source, _) in sources_of(&b.finish().unwrap()) {
            spills_at_most(if d > 64 { 256 } else { 0 }, &source, &format!("{d} {values}"));
            compiles(&source, Architecture::Sm80);
        }
    }
}

/// With a threshold, kernels take heads as tensor cores do; others are expanded.
#[test]
fn attention_with_a_threshold_is_expanded_in_other_formats() {
    for (dtype, d) in [(DType::F32, 64), (DType::BF16, 24), (DType::F16, 144)] {
        let b = Builder::new("attention");
        let q = b.input("q", TensorType::new(dtype, [1, 2, 200, d]));
        let attention = Attention { threshold: Some(0.001), ..Attention::CAUSAL };
        b.output("y", q.attention(q, q, attention)[0]);
        let names = sources_of(&b.finish().unwrap());
        assert!(names.iter().all(|(source, _)| *source.name != *"attention"), "{dtype} {d}");
    }
}

/// A block mask is evaluated once for all pairs that its function cannot tell apart, and for no
/// others.
#[test]
fn cells_of_block_masks_are_as_large_as_their_function_allows() {
    type Visible = for<'b> fn([Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>;
    let captures = [TensorType::new(DType::Bool, [2, 8, 8]), TensorType::new(DType::I32, [2])];
    let functions: [(&str, Visible, [usize; 2]); 6] = [
        (
            "tiles",
            |[_, h, q, k], captures| {
                let side = q.constant(128.0);
                captures[0].at(&[h, q / side, k / side])
            },
            [128, 128],
        ),
        (
            "tiles of tiles",
            |[_, h, q, k], captures| {
                let [row, column] = [q, k].map(|at| at / at.constant(8.0) / at.constant(6.0));
                captures[0].at(&[h, row, column])
            },
            [16, 16],
        ),
        (
            "lengths",
            |[b, _, _, k], captures| k.compare(Compare::Lt, captures[1].at(&[b])),
            [128, 1],
        ),
        (
            "tiles and lengths",
            |[b, h, q, k], captures| {
                let side = q.constant(32.0);
                let is_seen = captures[0].at(&[h, q / side, k / side]);
                is_seen.select(q.compare(Compare::Lt, captures[1].at(&[b])), is_seen)
            },
            [1, 32],
        ),
        // Distances are another for each pair, though they are divided.
        (
            "distances",
            |[_, _, q, k], _| {
                let tiles = (q - k) / q.constant(128.0);
                tiles.compare(Compare::Lt, tiles.constant(2.0))
            },
            [1, 1],
        ),
        // A number of 8 bits begins again at 128.
        (
            "short numbers",
            |[_, _, q, _], _| {
                let tile = q.convert(DType::I8) / q.convert(DType::I8).constant(64.0);
                tile.compare(Compare::Lt, tile.constant(1.0))
            },
            [1, 128],
        ),
    ];
    for (name, visible, [queries, keys]) in functions {
        let mask = mask_region(&captures, visible).unwrap();
        let b = Builder::new(name);
        let [q, k, v] = ["q", "k", "v"]
            .map(|name| b.input(name, TensorType::new(DType::BF16, [2, 2, 512, 64])));
        let rest =
            [("tiles", 0), ("lengths", 1)].map(|(name, i)| b.input(name, captures[i].clone()));
        b.output("y", q.attention_with([k, v], Attention::FULL, vec![mask], &rest)[0]);
        let sources = sources_of(&b.finish().unwrap());
        let expected = format!("CELL_QUERIES = {queries}, CELL_KEYS = {keys},");
        let found = sources.iter().any(|(source, _)| source.text.contains(&expected));
        assert!(found, "{name}: expected {expected}");
        sources.iter().for_each(|(source, architectures)| compiles(source, architectures[0]));
    }
}

/// So do its gradients, but for values that the warps that copy keep from task to task. Beside a
/// mask function they have more registers, and the widest heads keep six numbers for a moment.
/// Dropout leaves no more registers. The gradients of captured tensors keep all, and so do those
/// for every GPU, but for dropout.
#[test]
fn gradients_of_attention_compile_and_spill_little() {
    let captures = [
        TensorType::new(DType::F32, [4]),
        TensorType::new(DType::BF16, [4, 500]),
        TensorType::new(DType::I32, [2, 300]),
    ];
    let capped = score_region(DType::F32, &captures, |score, _, _| (score / 50.0).tanh() * 50.0);
    let alibi = score_region(DType::F32, &captures, |score, [_, h, q, k], captures| {
        score + captures[0].at(&[h]) * (k - q).convert(DType::F32)
    });
    let biased = score_region(DType::F32, &captures, |score, [_, h, q, k], captures| {
        let bias = captures[1].at(&[h, k - q + k.constant(200.0)]).convert(DType::F32);
        ((score + bias) * 0.5).tanh() * 2.0
    });
    let same = mask_region(&captures, |[b, _, q, k], captures| {
        captures[2].at(&[b, q]).compare(Compare::Eq, captures[2].at(&[b, k]))
    });
    let [capped, alibi, biased, same] = [capped, alibi, biased, same].map(Result::unwrap);
    let functions = [vec![same.clone()], vec![capped], vec![alibi], vec![biased, same]];
    let shapes = [
        (DType::BF16, [200, 64, 64]),
        (DType::F16, [200, 64, 64]),
        (DType::BF16, [200, 128, 128]),
        (DType::F16, [200, 128, 128]),
        (DType::BF16, [200, 80, 112]),
        (DType::F16, [200, 32, 128]),
        (DType::BF16, [200, 16, 48]),
        (DType::BF16, [201, 64, 64]),
        (DType::BF16, [201, 128, 128]),
        (DType::BF16, [200, 256, 256]),
    ];
    for ((dtype, [keys, d, values]), turn) in shapes.into_iter().zip(0..) {
        // A compilation takes seconds: each shape has two functions, in turn.
        let function = |after: usize| &functions[(turn + after) % functions.len()][..];
        let variants = [
            (Some(Attention::FULL), &[][..]),
            (Some(Attention::CAUSAL), &[]),
            (Some(Attention::CAUSAL), function(0)),
            (None, if turn % 2 == 0 { function(1) } else { &[] }),
        ];
        for (attention, regions) in variants {
            let b = Builder::new("gradients");
            let (attention, seed) = match attention {
                Some(attention) => (attention, None),
                None => {
                    let (attention, seed) = dropping(&b);
                    (attention, Some(seed))
                }
            };
            let input = |name: &str, heads: usize, t, d| {
                b.input(name, TensorType::new(dtype, [2, heads, t, d]))
            };
            let [q, k, v] =
                [input("q", 4, 300, d), input("k", 2, keys, d), input("v", 2, keys, values)];
            let row = TensorType::new(DType::F32, [2, 4, 300]);
            let [lse, delta] = ["lse", "delta"].map(|name| b.input(name, row.clone()));
            let mut operands = vec![q, k, v, lse, input("dout", 4, 300, values), delta];
            operands.extend(seed);
            let declared = captures.iter().filter(|_| !regions.is_empty()).enumerate();
            operands.extend(declared.map(|(i, ty)| b.input(&format!("c{i}"), ty.clone())));
            let results = b.node(AttentionGrad { attention }, &operands, regions.to_vec());
            for (i, result) in results.iter().enumerate() {
                b.output(&format!("y{i}"), *result);
            }
            let count = results.len();
            let sources = sources_of(&b.finish().unwrap());
            let names_of = |graph: &Graph| graph.name().to_owned();
            let functions: Vec<String> = regions.iter().map(names_of).collect();
            let case = format!("{dtype} {keys} {d} {values} {attention:?} {functions:?}");
            let of_hopper = (d.max(values) <= 128).then_some("attention_grad");
            let of_captures = (count > 3).then_some("attention_captures");
            let expected: Vec<&str> = of_hopper
                .into_iter()
                .chain(["attention_grad_portable"])
                .chain(of_captures)
                .collect();
            let names: Vec<&str> = sources.iter().map(|(source, _)| &*source.name).collect();
            assert_eq!(names, expected, "{case}");
            for (source, architectures) in &sources {
                let has_mask = source.text.contains("#define MASK\n");
                let drops = attention.dropout.is_some();
                let most = match (&*source.name, has_mask) {
                    ("attention_grad_portable", _) if drops => 96,
                    ("attention_grad", true) if drops => 64,
                    ("attention_grad", true) if d + values <= 224 => 0,
                    ("attention_grad", true) => 24,
                    ("attention_grad", _) => 16,
                    _ => 0,
                };
                // One architecture each, in turn.
                let architecture = architectures[turn % architectures.len()];
                spills_at_most_on(architecture, most, source, &case);
            }
        }
    }
}

/// A capture that a score function reads otherwise than element by element has its gradient
/// expanded, and the plan says so.
#[test]
fn gradients_of_captures_that_are_read_in_rows_are_expanded() {
    let captures = [TensorType::new(DType::F32, [128, 8])];
    let score = score_region(DType::F32, &captures, |score, [_, _, q, k], captures| {
        let rows = [q, k].map(|at| captures[0].gather(at.reshape([1usize]), &[0]));
        score + (rows[0] * rows[1]).sum(&[0])
    });
    let b = Builder::new("rows");
    let heads = TensorType::new(DType::BF16, [1, 1, 128, 64]);
    let row = TensorType::new(DType::F32, [1, 1, 128]);
    let types = [&heads, &heads, &heads, &row, &heads, &row, &captures[0]];
    let operands: Vec<_> =
        types.iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), (*ty).clone())).collect();
    let op = AttentionGrad { attention: Attention::FULL };
    for (i, y) in b.node(op, &operands, vec![score.unwrap()]).into_iter().enumerate() {
        b.output(&format!("y{i}"), y);
    }
    let graph = b.finish().unwrap();
    let plan =
        overdrive_passes::plan(&graph, Mode::Compile, &hopper(), &Tuning::default()).unwrap();
    let notes = format!("{:?}", plan.notes);
    assert!(notes.contains("reads of single elements"), "{notes}");
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
    for ((source, architectures), turn) in distinct.iter().zip(0..) {
        compiles(source, architectures[turn % architectures.len()]);
    }
}
