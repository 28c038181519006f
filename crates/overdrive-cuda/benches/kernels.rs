//! Device times of the named kernels at the shapes of the built-in models and of long sequences:
//! medians of captured, warm calls, with TFLOP/s by each plan's own cost.
//!
//! `cargo bench -p overdrive-cuda --bench kernels [-- PART_OF_A_NAME]`
#![allow(missing_docs, clippy::unwrap_used)] // A program.

use overdrive_cuda::{CudaBackend, gpus};
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::attention::Mask;
use overdrive_ir::ops::{Attention, Conv2d};
use overdrive_ir::{Backend, Builder, DType, Expr, Graph, Mode, State, Tensor, TensorType, Tuning};

const SAMPLES: u32 = 21;

fn main() {
    let part = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    if gpus() == 0 {
        println!("SKIPPED: no GPU was found");
        return;
    }
    let backend = CudaBackend::new(0).unwrap();
    println!("{:>44} {:>10} {:>10}", "kernel", "us", "TFLOP/s");
    for graph in convolutions().into_iter().chain(attentions()).chain(indexed()) {
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
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), ty.clone())).collect();
    b.output("y", f(&args));
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
            let op = Attention { scale: None, mask };
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

fn indexed() -> Vec<Graph> {
    use overdrive_ir::{Order, Prim, Reducer};
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
            x[0].builder().node(Prim::Sort { axis: 1, order: Order::Descending }, x, vec![])[1]
        }),
    ]
}

/// Random numbers; integers spread over 0..50304.
fn values(ty: &TensorType, site: u64) -> Tensor {
    let count = ty.elements();
    let values: Vec<f64> = if ty.dtype.is_float() {
        // A short period: what is drawn once is drawn often enough.
        let some: Vec<f64> = philox::normals(1, site).take(count.min(65_521)).collect();
        (0..count).map(|i| some[i % some.len()]).collect()
    } else {
        philox::uniforms(1, site).take(count).map(|u| (u * 50304.0).floor()).collect()
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
    let protocol = Protocol { samples: SAMPLES, calls_per_sample: 1, cache: CacheState::Warm };
    let samples = session.sample(state.with(&inputs, &mut outputs), protocol).unwrap();
    let mut times: Vec<f64> = samples.iter().filter_map(|sample| sample.device_ns).collect();
    times.sort_by(f64::total_cmp);
    let median_ns = times[times.len() / 2];
    let flops = session.plan().cost().flops as f64;
    println!("{:>44} {:>10.2} {:>10.1}", graph.name(), median_ns / 1e3, flops / median_ns / 1e3);
}
