//! Device times of the named kernels at the shapes of the built-in models and of long sequences.
//! The figures are medians of captured, warm calls, with TFLOP/s by each plan's own cost.
//!
//! `cargo bench -p overdrive-cuda --bench kernels [-- PART_OF_A_NAME]`
#![allow(missing_docs, clippy::unwrap_used)] // A program.

use overdrive_cuda::{CudaBackend, gpus};
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Conv2d};
use overdrive_ir::{
    Backend, Builder, Compare, DType, Expr, Graph, Mode, State, Tensor, TensorType, Tuning,
};

const SAMPLES: u32 = 21;
/// Samples of a call that takes longer than `LONG_FLOPS`.
const FEW_SAMPLES: u32 = 7;
const LONG_FLOPS: u64 = 10_000_000_000_000;
/// Random integers lie in 0..INTEGERS.
const INTEGERS: f64 = 50_304.0;
/// Queries and keys of a tile of a block-sparse mask.
const TILE: usize = 128;

fn main() {
    let part = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    if gpus() == 0 {
        println!("SKIPPED: no GPU was found");
        return;
    }
    let backend = CudaBackend::new(0).unwrap();
    println!("{:>44} {:>10} {:>10}", "kernel", "us", "TFLOP/s");
    let attentions = attentions().into_iter().chain(variants()).chain(long_gradients());
    for graph in convolutions().into_iter().chain(attentions).chain(indexed()) {
        if graph.name().contains(&part) {
            measure(&backend, &graph);
        }
    }
}

fn graph(
    name: &str,
    inputs: &[TensorType],
    f: impl for<'b> FnOnce(&[Expr<'b>]) -> Expr<'b>,
) -> Graph {
    graph_of(name, inputs, |x| vec![f(x)])
}

fn graph_of(
    name: &str,
    inputs: &[TensorType],
    f: impl for<'b> FnOnce(&[Expr<'b>]) -> Vec<Expr<'b>>,
) -> Graph {
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), ty.clone())).collect();
    f(&args).into_iter().enumerate().for_each(|(i, y)| b.output(&format!("y{i}"), y));
    b.finish().unwrap()
}

fn convolutions() -> Vec<Graph> {
    let shapes = [[32, 3, 64, 64, 1], [32, 64, 64, 128, 2], [32, 128, 32, 128, 1]];
    let types = [DType::BF16, DType::F32];
    let each = types.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape)));
    each.map(|(dtype, [n, c, size, o, stride])| {
        let inputs = [
            TensorType::new(dtype, [n, c, size, size]),
            TensorType::new(dtype, [o, c, 3, 3]),
            TensorType::new(DType::F32, [o]),
        ];
        graph(&format!("conv {dtype} {n}x{c}x{size}x{size} to {o} by {stride}"), &inputs, |x| {
            let sums = x[0].conv2d(x[1], None, Conv2d::new(stride, 1)).convert(DType::F32);
            let bias = x[2].broadcast_in(&sums.shape(), &[1]);
            (sums + bias).relu().convert(dtype)
        })
    })
    .collect()
}

fn attentions() -> Vec<Graph> {
    let shapes = [
        [8, 8, 128, 64],
        [16, 16, 1024, 64],
        [4, 16, 4096, 64],
        [1, 8, 8192, 64],
        [2, 16, 8192, 128],
    ];
    let mut graphs = Vec::new();
    for [b, h, t, d] in shapes {
        for mask in [Mask::Causal, Mask::Full] {
            let ty = TensorType::new(DType::BF16, [b, h, t, d]);
            let name = format!("attention bf16 {b}x{h}x{t}x{d} {mask:?}");
            let op = Attention { mask, ..Attention::FULL };
            graphs.push(graph(&name, &[ty.clone(), ty.clone(), ty], |x| {
                x[0].attention(x[1], x[2], op)[0]
            }));
        }
    }
    let ty = TensorType::new(DType::F32, [8usize, 8, 128, 64]);
    graphs.push(graph("attention f32 8x8x128x64 Causal", &[ty.clone(), ty.clone(), ty], |x| {
        x[0].attention(x[1], x[2], Attention::CAUSAL)[0]
    }));
    graphs
}

/// Attention with score and mask functions, forward and backward, beside plain ones. All keys of a
/// causal variant are seen, so that its work is that of the plain one. Block-sparse ones have the
/// FLOPs of full attention, though they skip a share of them.
fn variants() -> Vec<Graph> {
    let mut graphs = Vec::new();
    for [b, h, t, d] in [[4, 16, 4096, 128], [1, 16, 16_384, 128], [2, 16, 8192, 64]] {
        let heads = TensorType::new(DType::BF16, [b, h, t, d]);
        let row = TensorType::new(DType::F32, [b, h, t]);
        let slopes = TensorType::new(DType::F32, [h]);
        let table = TensorType::new(DType::F32, [h, 2 * t]);
        let documents = TensorType::new(DType::I32, [b, t]);
        let capped = score_region(DType::F32, &[], |score, _, _| (score / 50.0).tanh() * 50.0);
        let alibi = score_region(
            DType::F32,
            std::slice::from_ref(&slopes),
            |score, [_, h, q, k], captures| {
                score + captures[0].at(&[h]) * (k - q).convert(DType::F32)
            },
        );
        let relative = score_region(
            DType::F32,
            std::slice::from_ref(&table),
            |score, [_, h, q, k], captures| {
                score + captures[0].at(&[h, k - q + k.constant(t as f64)])
            },
        );
        let same = mask_region(std::slice::from_ref(&documents), |[b, _, q, k], captures| {
            let document = |at| {
                let id = captures[0].at(&[b, at]);
                id / id.constant(INTEGERS)
            };
            document(q).compare(Compare::Eq, document(k))
        });
        // The number of results of the gradient. Those after the third are of captures.
        let variants = [
            ("plain", None, vec![], 3),
            ("soft-cap", Some(capped), vec![], 3),
            ("alibi", Some(alibi.clone()), vec![slopes.clone()], 3),
            ("learnt alibi", Some(alibi), vec![slopes], 4),
            ("documents", Some(same), vec![documents], 3),
            ("learnt relative", Some(relative), vec![table], 4),
        ];
        let causal = variants.map(|(name, region, captures, results)| {
            (name.to_owned(), Attention::CAUSAL, region, captures, results)
        });
        // Masks that hide so many percent of the tiles of each head, beside full attention.
        let tiles = TensorType::new(DType::I32, [h, t / TILE, t / TILE]);
        let sparse = [0, 50, 75, 90].map(|percent| {
            let mask = mask_region(std::slice::from_ref(&tiles), |[_, h, q, k], captures| {
                let [row, column] = [q, k].map(|at| at / at.constant(TILE as f64));
                let drawn = captures[0].at(&[h, row, column]);
                let least = (INTEGERS * f64::from(percent) / 100.0).floor();
                drawn.compare(Compare::Ge, drawn.constant(least))
            });
            let (mask, captures) =
                if percent == 0 { (None, vec![]) } else { (Some(mask), vec![tiles.clone()]) };
            let name = match percent {
                0 => "full".to_owned(),
                _ => format!("block-sparse {percent} %"),
            };
            (name, Attention::FULL, mask, captures, 3)
        });
        for (name, attention, region, captures, results) in causal.into_iter().chain(sparse) {
            let regions: Vec<Graph> = region.into_iter().map(Result::unwrap).collect();
            let inputs = [vec![heads.clone(); 3], captures.clone()].concat();
            let title = |pass: &str| format!("{name}, {pass}, {b}x{h}x{t}x{d}");
            if results == 3 {
                graphs.push(graph(&title("forward"), &inputs, |x| {
                    let [q, k, v] = [x[0], x[1], x[2]];
                    q.attention_with([k, v], attention, regions.clone(), &x[3..])[0]
                }));
            }
            let rows = [heads.clone(), heads.clone(), heads.clone(), row.clone(), heads.clone()];
            let inputs = [&rows[..], std::slice::from_ref(&row), &captures].concat();
            graphs.push(graph_of(&title("backward"), &inputs, |x| {
                let op = AttentionGrad { attention };
                x[0].builder().node(op, x, regions.clone()).into_iter().take(results).collect()
            }));
        }
    }
    graphs
}

/// Gradients of sequences whose queries do not fit in the L2.
fn long_gradients() -> Vec<Graph> {
    let causal = [32, 64, 128].map(|thousands| (Attention::CAUSAL, thousands << 10));
    let cases = causal.into_iter().chain([(Attention::FULL, 64 << 10)]);
    let graph = |(attention, t): (Attention, usize)| {
        let heads = TensorType::new(DType::BF16, [1, 16, t, 128]);
        let row = TensorType::new(DType::F32, [1, 16, t]);
        let [q, k, v, dout] = std::array::from_fn(|_| heads.clone());
        let inputs = [q, k, v, row.clone(), dout, row];
        let title = format!("long, {:?}, backward, 1x16x{t}x128", attention.mask);
        graph_of(&title, &inputs, |x| {
            x[0].builder()
                .node(AttentionGrad { attention }, x, vec![])
                .into_iter()
                .take(3)
                .collect()
        })
    };
    cases.map(graph).collect()
}

fn indexed() -> Vec<Graph> {
    use overdrive_ir::{Prim, Reducer, SortOrder};
    let table = TensorType::new(DType::F32, [50304usize, 768]);
    let rows = TensorType::new(DType::I32, [8192usize, 1]);
    let updates = TensorType::new(DType::F32, [8192usize, 768]);
    let line = TensorType::new(DType::F32, [64usize, 50304]);
    vec![
        graph("gather 8192 of 50304x768", &[table.clone(), rows.clone()], |x| {
            x[0].gather(x[1], &[0])
        }),
        graph("scatter 8192 to 50304x768", &[table, rows, updates], |x| {
            x[0].builder().op1(Prim::Scatter { axes: vec![0], reducer: Some(Reducer::Sum) }, x)
        }),
        graph("sort 64x50304", &[line], |x| {
            x[0].builder().node(Prim::Sort { axis: 1, order: SortOrder::Descending }, x, vec![])[1]
        }),
    ]
}

/// Random numbers; integers spread over 0..INTEGERS.
fn values(ty: &TensorType, site: u64) -> Tensor {
    let count = ty.elements();
    let values: Vec<f64> = if ty.dtype.is_float() {
        // A short period, so that a number that is drawn once is drawn often enough.
        let some: Vec<f64> = philox::normals(1, site).take(count.min(65_521)).collect();
        (0..count).map(|i| some[i % some.len()]).collect()
    } else {
        philox::uniforms(1, site).take(count).map(|u| (u * INTEGERS).floor()).collect()
    };
    Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)
}

fn measure(backend: &CudaBackend, graph: &Graph) {
    let executable = backend.compile(graph, Mode::Compile, &Tuning::default());
    let mut session = match executable.and_then(|executable| executable.session()) {
        Ok(session) => session,
        Err(refused) => return println!("{:>44} {refused}", graph.name()),
    };
    let mut state = State::initial(graph, backend).unwrap();
    let types = graph.inputs().iter().map(|port| graph.ty(port.value));
    let inputs: Vec<_> =
        types.enumerate().map(|(i, ty)| backend.upload(&values(ty, i as u64)).unwrap()).collect();
    let outputs = graph.outputs().iter().map(|port| backend.output(graph.ty(port.value)).unwrap());
    let mut outputs: Vec<_> = outputs.collect();
    let samples = if session.plan().cost().flops > LONG_FLOPS { FEW_SAMPLES } else { SAMPLES };
    let protocol = Protocol { samples, calls_per_sample: 1, cache: CacheState::Warm };
    let samples = session.sample(state.with(&inputs, &mut outputs), protocol).unwrap();
    let mut times: Vec<f64> = samples.iter().filter_map(|sample| sample.device_ns).collect();
    times.sort_by(f64::total_cmp);
    let median_ns = times[times.len() / 2];
    let flops = session.plan().cost().flops as f64;
    println!("{:>44} {:>10.2} {:>10.1}", graph.name(), median_ns / 1e3, flops / median_ns / 1e3);
}
