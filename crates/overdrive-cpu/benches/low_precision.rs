//! Products in low precision beside those of f32, in one process, alternating: medians, and medians
//! of the ratios round by round.
//! Long because three kinds of measurement share their setup:
//!
//! - `layers`: linear layers in int8, fp8 and MXFP8, through compiled graphs. Activations are
//!   quantized inside of the time; weights are packed before.
//! - `int8`: the products of int8 layers alone, kernel by kernel, with `rten-gemm` beside them.
//! - `weights`: codes that become numbers in registers or in panels, against f32 that is packed as
//!   it comes. The copies together exceed the last cache.
//!
//! `cargo bench -p overdrive-cpu --bench low_precision [-- layers|int8|weights [THREADS]]`
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)] // A program; bytes that are numbers.

use std::num::NonZeroUsize;
use std::time::Instant;

use overdrive_cpu::CpuBackend;
use overdrive_cpu::gemm::{MicroKernel, ProductOutput, View, ViewMut, gemm};
use overdrive_cpu::memory::AlignedBytes;
use overdrive_cpu::quantized::{self, PackedNumbers, QuantizedMatrix, room_floats};
use overdrive_cpu::threads::Pool;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    Backend, Buffer, Builder, DType, Graph, Init, Mode, State, Tensor, TensorType, Tuning,
};
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |name: &str| arguments.first().is_none_or(|given| given == name);
    let all = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = arguments.get(1).map_or(vec![1, all], |n| vec![n.parse().unwrap()]);
    for threads in threads {
        let pool = Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap();
        println!("{threads} thread(s)");
        if wants("layers") {
            let small = [[128, 128, 128], [128, 512, 128], [128, 128, 512]];
            for shape in small.into_iter().chain([
                [1024; 3],
                [1024, 2048, 512],
                [1024, 512, 2048],
                [32, 2048, 2048],
            ]) {
                layers(threads, shape);
            }
        }
        if wants("int8") {
            let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            [[256; 3], [1024; 3]].iter().for_each(|&shape| rayon.install(|| kernels(&pool, shape)));
        }
        if wants("weights") {
            [1, 4, 8, 12, 13, 16, 32, 64, 256]
                .iter()
                .for_each(|&m| weights(&pool, m, [4096, 4096]));
        }
    }
}

/// Numbers without a pattern, uniform in -1..1.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Seconds of each contender in each round, in alternating order.
fn rounds<const N: usize>(contenders: [&mut dyn FnMut(); N]) -> Vec<[f64; N]> {
    let mut rounds = Vec::new();
    let start = Instant::now();
    while rounds.len() < 17 || (rounds.len() < 200 && start.elapsed().as_secs_f64() < 2.0) {
        let forth = rounds.len() % 2 == 0;
        let mut times = [0.0; N];
        for i in 0..N {
            let i = if forth { i } else { N - 1 - i };
            let start = Instant::now();
            contenders[i]();
            times[i] = start.elapsed().as_secs_f64();
        }
        rounds.push(times);
    }
    rounds.split_off(2)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds<const N: usize>(rounds: &[[f64; N]], i: usize) -> f64 {
    median(rounds.iter().map(|times| times[i]).collect())
}

/// How many times faster contender `i` is than contender 0.
fn gain<const N: usize>(rounds: &[[f64; N]], i: usize) -> f64 {
    median(rounds.iter().map(|times| times[0] / times[i]).collect())
}

/// The form of a layer: its operation, the format of codes and of scales, the codes' scale, and the
/// elements that share one.
#[derive(Clone, Copy)]
struct Layer {
    op: QuantizedLinear,
    codes: DType,
    scales: DType,
    scale: f64,
    group: Option<usize>,
    /// Largest error that rounding of an operand may cause in an element, relative to the largest
    /// element.
    rounding: f32,
}

/// `x w^T`, with weights as a state, so that they are packed once.
fn linear([m, n, k]: [usize; 3], layer: Option<Layer>) -> Graph {
    let b = Builder::new("linear");
    let x = b.input("x", TensorType::new(DType::F32, [m, k]));
    let state =
        |name: &str, tensor: Tensor| b.state(name, tensor.ty().clone(), Init::Value(tensor));
    let w = noise(n * k, 2);
    let y = match layer {
        None => x.dot(state("w", Tensor::from_f32([n, k], &w)), &[], &[(1, 1)]),
        Some(layer) => {
            let of = |w: &f32| f64::from(*w) / layer.scale;
            let of = |w: &f32| if layer.codes.is_int() { of(w).round() } else { of(w) };
            let codes: Vec<f64> = w.iter().map(of).collect();
            let groups = layer.group.map_or(1, |group| k / group);
            let scales =
                Tensor::from_f64(layer.scales, [n, groups], &vec![layer.scale; n * groups]);
            let codes = state("codes", Tensor::from_f64(layer.codes, [n, k], &codes));
            x.quantized_linear(layer.op, &[codes, state("scale", scales)])
        }
    };
    b.output("y", y);
    b.finish().unwrap()
}

/// A compiled graph of one input and one output.
struct Session {
    compiled: Box<dyn overdrive_ir::Session>,
    state: State,
    x: [Buffer; 1],
    y: [Buffer; 1],
}

impl Session {
    fn new(backend: &CpuBackend, graph: &Graph, x: &[f32]) -> Self {
        let sizes = graph.ty(graph.inputs()[0].value).sizes();
        Self {
            compiled: backend
                .compile(graph, Mode::Compile, &Tuning::default())
                .unwrap()
                .session()
                .unwrap(),
            state: State::initial(graph, backend).unwrap(),
            x: [backend.upload(&Tensor::from_f32(sizes, x)).unwrap()],
            y: [backend.output(graph.ty(graph.outputs()[0].value)).unwrap()],
        }
    }

    fn run(&mut self) {
        self.compiled.run(self.state.with(&self.x, &mut self.y)).unwrap().wait().unwrap();
    }
}

fn layers(threads: usize, [m, n, k]: [usize; 3]) {
    let backend = CpuBackend::new(Some(threads)).unwrap();
    let x = noise(m * k, 1);
    let op = |activations| QuantizedLinear { activations, ..QuantizedLinear::default() };
    let (int8, fp8) = (Activations::Dynamic(DType::I8), Activations::Dynamic(DType::F8E4M3));
    let mxfp8 = Activations::Blocks(DType::F8E4M3, ScaleFormat::E8m0Up);
    let wide = Layer {
        op: op(int8),
        codes: DType::I8,
        scales: DType::F32,
        scale: 1.0 / 127.0,
        group: None,
        rounding: 1.0 / 127.0,
    };
    let eight = Layer {
        op: op(fp8),
        codes: DType::F8E4M3,
        scale: 1.0 / 448.0,
        rounding: 1.0 / 16.0,
        ..wide
    };
    let blocks =
        Layer { op: op(mxfp8), scales: DType::E8M0, scale: 1.0 / 256.0, group: Some(32), ..eight };
    let session = |layer| Session::new(&backend, &linear([m, n, k], layer), &x);
    let [mut f32, mut a, mut b, mut c] = [None, Some(wide), Some(eight), Some(blocks)].map(session);
    let rounds = rounds([&mut || f32.run(), &mut || a.run(), &mut || b.run(), &mut || c.run()]);
    let result = |session: &Session| backend.download(&session.y[0]).unwrap().to_f32();
    let rate = |i| 2e-9 * (m * n * k) as f64 / seconds(&rounds, i);
    print!("{:>16}: f32 {:7.1} GFLOP/s", format!("{m}x{n}x{k}"), rate(0));
    let forms = [("int8", &a, wide), ("fp8", &b, eight), ("mxfp8", &c, blocks)];
    for (i, (name, session, layer)) in forms.into_iter().enumerate() {
        let far = result(&f32)
            .iter()
            .zip(result(session))
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        // Two roundings of elements of at most 1, each of k products.
        assert!(far <= 4.0 * (k as f32).sqrt() * layer.rounding, "{name}: {far}");
        print!(", {name} {:7.1} ({:5.2}x)", rate(i + 1), gain(&rounds, i + 1));
    }
    println!();
}

/// Room for a packed matrix, on a cache line.
fn room(bytes: usize) -> AlignedBytes {
    AlignedBytes::filled(bytes, 0).unwrap()
}

/// Products alone: f32, `rten-gemm`'s u8 by i8, and each of our kernels, all with packed weights
/// but rten's.
fn kernels(pool: &Pool, [m, n, k]: [usize; 3]) {
    let (x, w) = (noise(m * k, 1), noise(n * k, 2));
    let bytes = |x: &[f32]| x.iter().map(|x| (x * 127.0) as i8).collect::<Vec<_>>();
    let (x8, w8) = (bytes(&x), bytes(&w));
    let xu: Vec<u8> = x8.iter().map(|&x| x as u8 ^ 0x80).collect();
    let best = MicroKernel::<f32>::best();
    let mut packed = room(best.packed_b_bytes([1, 1, k, n]));
    let packed = best.pack_b(pool, View::matrix(&w, n, k).transposed(), packed.as_mut_slice());
    let rten = GemmExecutor::<u8, i8, i32>::default();
    for kernel in MicroKernel::<i8>::supported() {
        let mut packed8 = room(kernel.packed_b_bytes([1, 1, k, n]));
        let packed8 =
            kernel.pack_b(pool, View::matrix(&w8, n, k).transposed(), packed8.as_mut_slice());
        let (mut y, mut y8, mut yr) = (vec![0f32; m * n], vec![0i32; m * n], vec![0i32; m * n]);
        let rounds = rounds([
            &mut || {
                gemm(
                    pool,
                    View::matrix(&x, m, k),
                    packed,
                    ProductOutput::Store(ViewMut::matrix(&mut y, m, n)),
                )
            },
            &mut || {
                let a = NdTensorView::from_data([m, k], xu.as_slice());
                let b = NdTensorView::from_data([n, k], w8.as_slice());
                rten.gemm(
                    &mut yr,
                    GemmInputA::Unpacked(a),
                    GemmInputB::Unpacked(b.transposed()),
                    GemmOptions::default(),
                )
                .unwrap();
            },
            &mut || {
                gemm(
                    pool,
                    View::matrix(&x8, m, k),
                    packed8,
                    ProductOutput::Store(ViewMut::matrix(&mut y8, m, n)),
                )
            },
        ]);
        let rate = |i| 2e-9 * (m * n * k) as f64 / seconds(&rounds, i);
        println!(
            "{:>16}: f32 {:7.1}, rten u8xi8 {:7.1}, {:>18} {:8.1} GOP/s, {:5.2}x f32, {:5.2}x rten",
            format!("{m}x{n}x{k}"),
            rate(0),
            rate(1),
            kernel.name(),
            rate(2),
            gain(&rounds, 2),
            gain(&rounds, 2) / gain(&rounds, 1)
        );
    }
}

/// Bytes that the copies of each contender's weights have together: beyond the last cache, as far
/// as it is known.
const ROTATED: usize = 640 << 20;

/// Copies of one matrix's bytes, used in turn.
struct Copies {
    bytes: AlignedBytes,
    one: usize,
    turn: usize,
}

impl Copies {
    fn of(matrix: &[u8]) -> Self {
        let one = matrix.len().next_multiple_of(64);
        let mut bytes = room(ROTATED / one * one);
        bytes
            .as_mut_slice()
            .chunks_exact_mut(one)
            .for_each(|copy| copy[..matrix.len()].copy_from_slice(matrix));
        Self { bytes, one, turn: 0 }
    }

    fn next(&mut self) -> &[u8] {
        self.turn = (self.turn + 1) % (self.bytes.len() / self.one);
        &self.bytes.as_slice()[self.turn * self.one..][..self.one]
    }
}

/// A form that weights are kept in.
struct Form {
    codes: Copies,
    format: DType,
    scales: Vec<u8>,
    scale_format: DType,
    group: usize,
    zeros: Option<Vec<u8>>,
}

impl Form {
    fn new(format: DType, [n, k]: [usize; 2], group: usize, zeros: Option<f64>) -> Self {
        let codes: Vec<f64> = noise(n * k, 2).iter().map(|x| f64::from(x * 6.0).round()).collect();
        let codes = Copies::of(Tensor::from_f64(format, [n, k], &codes).bytes());
        let scale_format = if format == DType::F4E2M1 { DType::E8M0 } else { DType::F32 };
        let filled = |dtype, x| {
            Tensor::from_f64(dtype, [n, k / group], &vec![x; n * k / group]).bytes().to_vec()
        };
        let zeros = zeros.map(|zero| filled(DType::F32, zero));
        Self { codes, format, scales: filled(scale_format, 0.25), scale_format, group, zeros }
    }

    fn run(
        &mut self,
        pool: &Pool,
        [n, k]: [usize; 2],
        x: &[f32],
        y: &mut [f32],
        room: &mut Vec<f32>,
    ) {
        let groups = n * k / self.group;
        let scales = PackedNumbers::new(&self.scales, self.scale_format, groups);
        let zeros =
            self.zeros.as_deref().map(|zeros| PackedNumbers::new(zeros, DType::F32, groups));
        let codes = PackedNumbers::new(self.codes.next(), self.format, n * k);
        let weights = QuantizedMatrix::new([n, k], self.group, codes, scales, zeros);
        room.resize(room_floats(x.len() / k, k), 0.0);
        let m = x.len() / k;
        quantized::linear(pool, x, &weights, ProductOutput::Store(ViewMut::matrix(y, m, n)), room);
    }

    /// Bytes that a product reads of the weights.
    fn bytes(&self) -> usize {
        self.codes.one + self.scales.len() + self.zeros.as_ref().map_or(0, Vec::len)
    }
}

/// Bytes a second that the pool's threads read from memory.
fn read_rate(pool: &Pool, copies: &mut Copies) -> f64 {
    let time = |_| {
        let bytes = copies.next();
        let start = Instant::now();
        pool.run(64, |task, _| {
            let part = &bytes[task * bytes.len() / 64..(task + 1) * bytes.len() / 64];
            let sum = part.as_chunks::<8>().0.iter().fold(0, |sum, &x| sum ^ u64::from_le_bytes(x));
            std::hint::black_box(sum);
        });
        bytes.len() as f64 / start.elapsed().as_secs_f64()
    };
    median((0..15).map(time).collect())
}

fn weights(pool: &Pool, m: usize, [n, k]: [usize; 2]) {
    let x = noise(m * k, 1);
    let w = noise(n * k, 2);
    let mut dense = Copies::of(Tensor::from_f32([n, k], &w).bytes());
    let read = read_rate(pool, &mut dense);
    println!("{m} x [{n}, {k}]: memory reads {:.1} GB/s", read / 1e9);
    let forms: [(&str, DType, usize, Option<f64>); 4] = [
        ("int4 g128", DType::I4, 128, None),
        ("int4 g128 zeros", DType::I4, 128, Some(2.0)),
        ("mxfp4", DType::F4E2M1, 32, None),
        ("int8 by rows", DType::I8, k, None),
    ];
    for (name, format, group, zeros) in forms {
        let mut form = Form::new(format, [n, k], group, zeros);
        let (mut y, mut yq, mut scratch) = (vec![0f32; m * n], vec![0f32; m * n], vec![]);
        let rounds = rounds([
            &mut || {
                let bytes = dense.next();
                // SAFETY: copies begin on cache lines, and any bytes are numbers.
                let (_, w, _) = unsafe { bytes.align_to::<f32>() };
                let w = View::matrix(w, n, k).transposed();
                gemm(
                    pool,
                    View::matrix(&x, m, k),
                    w,
                    ProductOutput::Store(ViewMut::matrix(&mut y, m, n)),
                );
            },
            &mut || form.run(pool, [n, k], &x, &mut yq, &mut scratch),
        ]);
        let time = seconds(&rounds, 1);
        println!(
            "{name:>20}: {:8.3} ms, f32 {:8.3} ms, {:5.2}x; {:6.1} GB/s of weights, {:3.0} % of \
             reading",
            time * 1e3,
            seconds(&rounds, 0) * 1e3,
            gain(&rounds, 1),
            form.bytes() as f64 / time / 1e9,
            100.0 * form.bytes() as f64 / time / read
        );
    }
}
