//! The products of a transformer block's training step.

use crate::bench::{Bench, Time, error, line, noise};
use overdrive_ir::backend::CacheState;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::{
    Buffer, Builder, DType, DotGeneral, Expr, Graph, Overflow, Precision, Prim, Tensor, TensorType,
    Tuning,
};

const TOKENS: usize = 15_872;
const WIDTH: usize = 4096;
const HIDDEN: usize = 16_384;
/// From and to: query, key and value together; projection; both of the feed-forward network.
const LAYERS: [[usize; 2]; 4] =
    [[WIDTH, 3 * WIDTH], [WIDTH, WIDTH], [WIDTH, HIDDEN], [HIDDEN, WIDTH]];

/// The source of scales.
#[derive(Clone, Copy, PartialEq)]
enum Scaling {
    /// A step before: they are inputs.
    Delayed,
    /// The tensor itself, which is read twice.
    Current,
}

struct Layer<'b> {
    x: Expr<'b>,
    w: Expr<'b>,
    dy: Expr<'b>,
}

fn layer<'b>(b: &'b Builder, number: usize) -> Layer<'b> {
    let [from, to] = LAYERS[number];
    let input = |name: &str, shape| {
        b.input(&format!("{name}{number}"), TensorType::new(DType::BF16, shape))
    };
    Layer {
        x: input("x", [TOKENS, from]),
        w: input("w", [to, from]),
        dy: input("dy", [TOKENS, to]),
    }
}

fn plain() -> Graph {
    let b = Builder::new("bf16");
    for number in 0..LAYERS.len() {
        let Layer { x, w, dy } = layer(&b, number);
        b.output(&format!("y{number}"), x.dot_to(w, &[], &[(1, 1)], DType::BF16));
        b.output(&format!("dx{number}"), dy.dot_to(w, &[], &[(1, 0)], DType::BF16));
        b.output(&format!("dw{number}"), dy.dot_to(x, &[], &[(0, 0)], DType::BF16));
    }
    b.finish().expect("well typed")
}

/// A tensor as codes.
struct Cast<'b> {
    codes: Expr<'b>,
    transposed: Expr<'b>,
    scale: Expr<'b>,
}

fn cast<'b>(b: &'b Builder, x: Expr<'b>, name: &str, (to, scaling): (DType, Scaling)) -> Cast<'b> {
    let scale = match scaling {
        Scaling::Delayed => b.input(&format!("{name}_scale"), TensorType::scalar(DType::F32)),
        Scaling::Current => {
            x.block_scale(&[None, None], to, ScaleFormat::Wide).reshape(Vec::<usize>::new())
        }
    };
    let [codes, transposed, largest] = x.cast_transpose(scale, to);
    if scaling == Scaling::Delayed {
        b.output(&format!("{name}_largest"), largest);
    }
    Cast { codes, transposed, scale }
}

fn product<'b>(a: (Expr<'b>, Expr<'b>), w: (Expr<'b>, Expr<'b>), precision: Precision) -> Expr<'b> {
    let (batch, contract) = (vec![], vec![(1, 1)]);
    let dot = DotGeneral { batch, contract, accumulate: DType::F32, out: DType::F32, precision };
    let sums = a.0.builder().op1(Prim::DotGeneral(dot), &[a.0, w.0]);
    (sums * a.1 * w.1).convert(DType::BF16)
}

/// e4m3 forward with sums as the tensor cores keep them, e5m2 gradients with exact ones:
/// Transformer Engine's choices.
fn fp8(scaling: Scaling) -> Graph {
    let b = Builder::new("fp8");
    for number in 0..LAYERS.len() {
        let Layer { x, w, dy } = layer(&b, number);
        let cast = |x, name: &str, to| cast(&b, x, &format!("{name}{number}"), (to, scaling));
        let (x, w, dy) = (
            cast(x, "x", DType::F8E4M3),
            cast(w, "w", DType::F8E4M3),
            cast(dy, "dy", DType::F8E5M2),
        );
        let y = product((x.codes, x.scale), (w.codes, w.scale), Precision::FastFp8);
        let dx = product((dy.codes, dy.scale), (w.transposed, w.scale), Precision::Exact);
        let dw = product((dy.transposed, dy.scale), (x.transposed, x.scale), Precision::Exact);
        for (name, value) in [("y", y), ("dx", dx), ("dw", dw)] {
            b.output(&format!("{name}{number}"), value);
        }
    }
    b.finish().expect("well typed")
}

/// The casts alone.
fn casts() -> Graph {
    let b = Builder::new("casts");
    for number in 0..LAYERS.len() {
        let Layer { x, w, dy } = layer(&b, number);
        for (x, name, to) in
            [(x, "x", DType::F8E4M3), (w, "w", DType::F8E4M3), (dy, "dy", DType::F8E5M2)]
        {
            let cast = cast(&b, x, &format!("{name}{number}"), (to, Scaling::Delayed));
            b.output(&format!("{name}{number}_codes"), cast.codes);
            b.output(&format!("{name}{number}_transposed"), cast.transposed);
        }
    }
    b.finish().expect("well typed")
}

/// The scale of a step before.
const SCALE: f64 = 0.0043;

fn input(graph: &Graph, name: &str) -> Option<Tensor> {
    let at = graph.inputs().iter().position(|port| port.name == name)?;
    let ty = graph.ty(graph.inputs()[at].value);
    Some(if ty.rank() == 0 {
        Tensor::scalar(DType::F32, SCALE)
    } else {
        noise(ty, at as u64 % 3 + 5)
    })
}

fn time(bench: &Bench<'_>, (graph, tuning): (&Graph, &Tuning)) -> (Time, Vec<Buffer>) {
    let ports = graph.inputs().iter();
    let inputs: Vec<_> =
        ports.map(|port| bench.upload(&input(graph, &port.name).expect("an input"))).collect();
    bench.time_as(tuning, graph, &inputs, CacheState::Warm)
}

/// Some results of the square layer against the definition: products of the codes' values, with
/// this scale.
fn check(bench: &Bench<'_>, graph: &Graph, outputs: &[Buffer]) {
    let [x, w, dy] = ["x1", "w1", "dy1"].map(|name| input(graph, name).expect("an input"));
    let rounded = |values: Vec<f64>, to: DType| -> Vec<f64> {
        let coded = |v: f64| to.round(f64::from((v / SCALE) as f32), Overflow::Saturate) * SCALE;
        values.into_iter().map(coded).collect()
    };
    let (e4m3, e5m2) = (DType::F8E4M3, DType::F8E5M2);
    let row = |t: &Tensor, at: usize, to| rounded(line(t, at * WIDTH, 1, WIDTH), to);
    let column = |t: &Tensor, at: usize, to| rounded(line(t, at, WIDTH, t.ty().sizes()[0]), to);
    for name in ["y1", "dx1", "dw1"] {
        let at = graph.outputs().iter().position(|port| port.name == name).expect("an output");
        let found = bench.download(&outputs[at]);
        let mut pairs = Vec::new();
        for (i, j) in (0..24).map(|i| (i * 151 + 3, i * 97 + 11)) {
            let (a, b) = match name {
                "y1" => (row(&x, i, e4m3), row(&w, j, e4m3)),
                "dx1" => (row(&dy, i, e5m2), column(&w, j, e4m3)),
                _ => (column(&dy, i, e5m2), column(&x, j, e4m3)),
            };
            let expected: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            pairs.push((line(&found, i * WIDTH + j, 1, 1)[0], expected));
        }
        let error = error(&pairs);
        println!("    {name}: error {error:.1e}");
        // The tensor cores keep some 14 bits of fast sums.
        assert!(error < 2e-2, "{name} is off by {error:e}");
    }
}

/// With the first algorithm that cuBLASLt offers for every product.
pub(crate) fn run(bench: &Bench<'_>) {
    compare(bench, |_| Tuning::default());
}

/// With the fastest of cuBLASLt's algorithms and our kernels here.
pub(crate) fn run_tuned(bench: &Bench<'_>) {
    compare(bench, |graph| bench.tuned(graph));
}

fn compare(bench: &Bench<'_>, tuning: impl Fn(&Graph) -> Tuning) {
    let elements: usize = LAYERS.iter().map(|[from, to]| from * to).sum();
    let flops = 6.0 * TOKENS as f64 * elements as f64;
    let bytes: usize = LAYERS.iter().map(|[from, to]| 4 * (TOKENS * (from + to) + from * to)).sum();
    let (casts_alone, _) = time(bench, (&casts(), &Tuning::default()));
    println!(
        "casts, both orders {casts_alone}  {:5.1} % of copy, {bytes} B",
        bench.share(bytes, casts_alone)
    );
    let plain = plain();
    let (bf16, _) = time(bench, (&plain, &tuning(&plain)));
    let result = |name: &str, time: Time| {
        let rate = flops / time.median / 1e3;
        println!("{name:<18} {time} {rate:7.1} TFLOP/s, {:.3}x bf16", bf16.median / time.median);
    };
    result("bf16", bf16);
    for (name, scaling) in [("fp8 delayed", Scaling::Delayed), ("fp8 current", Scaling::Current)] {
        let graph = fp8(scaling);
        let tuning = tuning(&graph);
        let (time, outputs) = time(bench, (&graph, &tuning));
        if scaling == Scaling::Delayed {
            check(bench, &graph, &outputs);
        }
        result(name, time);
        println!("{}", bench.plan(&graph, &tuning));
    }
}
