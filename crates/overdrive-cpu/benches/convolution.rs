//! Convolutions with batch norm and ReLU behind them, layer by layer, as plans of the back end:
//! medians.
//!
//! `cargo bench -p overdrive-cpu --bench convolution [-- THREADS [NUMBER OF A LAYER]]`
#![allow(missing_docs, clippy::unwrap_used)] // A program.

use std::num::NonZeroUsize;

use overdrive_cpu::CpuBackend;
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::{Backend, Builder, DType, Graph, Init, Mode, Prim, State, TensorType, Tuning};

/// A layer: images, channels in and out, side of the image, taps a side, stride.
struct Layer {
    images: usize,
    channels: [usize; 2],
    side: usize,
    taps: usize,
    stride: usize,
}

const fn layer(
    images: usize,
    channels: [usize; 2],
    side: usize,
    taps: usize,
    stride: usize,
) -> Layer {
    Layer { images, channels, side, taps, stride }
}

/// Both layers of the model `conv`, and some of ResNet-50.
const LAYERS: [Layer; 7] = [
    layer(32, [3, 64], 64, 3, 1),
    layer(32, [64, 128], 64, 3, 2),
    layer(4, [3, 64], 224, 7, 2),
    layer(4, [64, 64], 56, 3, 1),
    layer(4, [256, 64], 56, 1, 1),
    layer(4, [256, 256], 14, 3, 1),
    layer(4, [512, 512], 7, 3, 1),
];

impl Layer {
    /// The type of the input and of the output.
    fn graph(&self, dtype: DType) -> Graph {
        let b = Builder::new("layer");
        let [inputs, outputs] = self.channels;
        let f32s = |shape: &[usize]| TensorType::new(DType::F32, shape.to_vec());
        let x = b.input("x", TensorType::new(dtype, [self.images, inputs, self.side, self.side]));
        let std = Init::Normal { std: 0.1, seed: 1 };
        let w = b.state("w", f32s(&[outputs, inputs, self.taps, self.taps]), std.clone());
        let mut convolution = Conv2d::new(self.stride, self.taps / 2).convolution(dtype);
        convolution.out = DType::F32;
        let y = b.op1(Prim::Convolution(convolution), &[x, w.convert(dtype)]);
        let [scale, bias, mean] =
            ["scale", "bias", "mean"].map(|name| b.state(name, f32s(&[outputs]), std.clone()));
        let variance = b.state("variance", f32s(&[outputs]), Init::Constant(0.5));
        b.output("y", y.batch_norm([scale, bias, mean, variance], 1e-5).relu().convert(dtype));
        b.finish().unwrap()
    }

    fn flops(&self) -> f64 {
        let pixels = self.side.div_ceil(self.stride).pow(2) * self.images;
        let [inputs, outputs] = self.channels;
        2.0 * (pixels * inputs * outputs * self.taps * self.taps) as f64
    }
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let backend = CpuBackend::new(Some(given.first().copied().unwrap_or(all))).unwrap();
    println!("{:>28} {:>6} {:>9} {:>9}", "layer", "", "ms", "GFLOP/s");
    let chosen = given.get(1).map_or(0..LAYERS.len(), |&one| one..one + 1);
    for layer in &LAYERS[chosen] {
        for dtype in [DType::F32, DType::BF16] {
            let Layer { images, channels: [inputs, outputs], side, taps, stride } = layer;
            let ms = median_ms(&backend, &layer.graph(dtype));
            let name = format!("{images}x{inputs}x{side}^2 {taps}^2/{stride} to {outputs}");
            println!("{name:>28} {dtype:>6} {ms:>9.3} {:>9.1}", layer.flops() / ms / 1e6);
        }
    }
}

fn median_ms(backend: &CpuBackend, graph: &Graph) -> f64 {
    let mut session =
        backend.compile(graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    let ports = |ports: &[overdrive_ir::Port]| {
        ports.iter().map(|port| backend.output(graph.ty(port.value)).unwrap()).collect::<Vec<_>>()
    };
    let (mut inputs, mut outputs) = (ports(graph.inputs()), ports(graph.outputs()));
    for input in &mut inputs {
        let values = (0..input.ty.elements()).map(|i| (i * 37 % 101) as f64 / 50.0 - 1.0).collect();
        let array = overdrive_ir::Array::from_f64(input.ty.dtype, &input.ty.sizes(), values);
        backend.write(input, &array.to_tensor()).unwrap();
    }
    let protocol = |samples| Protocol { samples, calls_per_sample: 2, cache: CacheState::Warm };
    session.sample(state.with(&inputs, &mut outputs), protocol(3)).unwrap();
    let samples = session.sample(state.with(&inputs, &mut outputs), protocol(15)).unwrap();
    let mut times: Vec<f64> = samples.iter().map(|sample| sample.host_ns / 1e6).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
