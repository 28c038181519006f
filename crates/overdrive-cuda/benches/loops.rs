//! Bandwidth of fused loops beside a plain copy of as many bytes, with the second-level cache
//! flushed before each sample.
//!
//! `cargo bench -p overdrive-cuda --bench loops [FILTER]`: median of events around one launch.
#![allow(unsafe_code, clippy::unwrap_used)] // Raw launches; a benchmark may panic.

#[path = "../tests/all/support/gpu.rs"]
#[allow(dead_code)] // A benchmark takes one GPU.
mod gpu;
#[path = "../tests/all/loops/single.rs"]
#[allow(dead_code)] // A benchmark only launches.
mod single;

use cudarc::driver::result;
use cudarc::driver::sys::CUevent_flags;
use overdrive_cuda::Device;
use overdrive_cuda::memory::DeviceBytes;
use overdrive_ir::plan::{Access, Program, Register};
use overdrive_ir::{Binary, DType, Reducer, TensorType, Unary};
use single::Single;
use std::sync::Arc;
use testkit::programs::{ProgramBuilder, access, by_row, dense};
use testkit::row_programs;

const SAMPLES: usize = 15;
/// More than the second-level cache of any GPU.
const FLUSH_BYTES: usize = 256 << 20;

struct Bench {
    device: Arc<Device>,
    flush: DeviceBytes,
}

impl Bench {
    /// Median time of `launch` in ns.
    fn time_ns(&self, launch: &dyn Fn()) -> f64 {
        let event =
            || self.device.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
        let (start, stop) = (event(), event());
        let mut times: Vec<f64> = (0..SAMPLES + 2)
            .map(|_| {
                self.flush.fill(1).unwrap();
                start.record(self.device.stream()).unwrap();
                launch();
                stop.record(self.device.stream()).unwrap();
                self.device.stream().synchronize().unwrap();
                f64::from(start.elapsed_ms(&stop).unwrap()) * 1e6
            })
            .skip(2)
            .collect();
        times.sort_by(f64::total_cmp);
        times[SAMPLES / 2]
    }

    /// Bandwidth of a loop over slots of these types, in bytes that it must move, beside a copy of
    /// as many.
    fn report(&self, name: &str, program: &Program, types: &[TensorType]) {
        let single = Single::new(&self.device, program, types).unwrap();
        for slot in &single.slots {
            slot.fill(0x3c).unwrap();
        }
        let bytes: usize = types.iter().map(TensorType::bytes).sum();
        let time = self.time_ns(&|| single.launch());
        let half = bytes / 2;
        let [from, to] = [0, 1].map(|_| DeviceBytes::new(&self.device, half).unwrap());
        let stream = self.device.stream().cu_stream();
        // SAFETY: both buffers have `half` bytes.
        let copy = || unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), half, stream).unwrap()
        };
        let copied = self.time_ns(&copy);
        let rate = |ns: f64| bytes as f64 / ns / 1e3;
        println!(
            "{name:<44} {:>9.1} us  {:>6.3} TB/s  copy {:>6.3} TB/s  share {:>5.1} %",
            time / 1e3,
            rate(time),
            rate(copied),
            100.0 * copied / time
        );
    }
}

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, dims.to_vec())
}

/// `y = relu(x * a + b) * x` and the like: eight operations on one stream of elements.
fn chain(n: usize, dtype: DType) -> (Program, Vec<TensorType>) {
    let mut b = ProgramBuilder::new(&[n], 0);
    let x = b.load(dense(0, &[n]), dtype);
    let x = b.convert(x, DType::F32);
    let (a, c) = (b.constant(1.5, DType::F32), b.constant(-0.25, DType::F32));
    let mut y = x;
    for _ in 0..4 {
        y = b.binary(Binary::Mul, y, a);
        y = b.binary(Binary::Add, y, c);
    }
    let y = b.binary(Binary::Max, y, x);
    let y = b.convert(y, dtype);
    b.store(dense(1, &[n]), y);
    (b.0, vec![ty(dtype, &[n]), ty(dtype, &[n])])
}

fn gelu(n: usize, dtype: DType) -> (Program, Vec<TensorType>) {
    let mut b = ProgramBuilder::new(&[n], 0);
    let x = b.load(dense(0, &[n]), dtype);
    let x = b.convert(x, DType::F32);
    let scale = b.constant(std::f64::consts::FRAC_1_SQRT_2, DType::F32);
    let (half, one) = (b.constant(0.5, DType::F32), b.constant(1.0, DType::F32));
    let scaled = b.binary(Binary::Mul, x, scale);
    let erf = b.unary(Unary::Erf, scaled);
    let erf = b.binary(Binary::Add, erf, one);
    let y = b.binary(Binary::Mul, x, erf);
    let y = b.binary(Binary::Mul, y, half);
    let y = b.convert(y, dtype);
    b.store(dense(1, &[n]), y);
    (b.0, vec![ty(dtype, &[n]), ty(dtype, &[n])])
}

fn transpose(m: usize, n: usize, dtype: DType) -> (Program, Vec<TensorType>) {
    let mut b = ProgramBuilder::new(&[m, n], 0);
    let x = b.load(access(0, &[1, m]), dtype);
    b.store(dense(1, &[m, n]), x);
    (b.0, vec![ty(dtype, &[n, m]), ty(dtype, &[m, n])])
}

struct Rows {
    rows: usize,
    n: usize,
    dtype: DType,
}

impl Rows {
    fn begin(&self) -> (ProgramBuilder, Register) {
        let mut b = ProgramBuilder::new(&[self.rows, self.n], 1);
        let x = b.load(dense(0, &[self.rows, self.n]), self.dtype);
        let x = b.convert(x, DType::F32);
        (b, x)
    }

    fn end(
        &self,
        mut b: ProgramBuilder,
        y: Register,
        more: &[TensorType],
    ) -> (Program, Vec<TensorType>) {
        let y = b.convert(y, self.dtype);
        b.store(dense(1, &[self.rows, self.n]), y);
        let whole = ty(self.dtype, &[self.rows, self.n]);
        (b.0, [vec![whole.clone(), whole], more.to_vec()].concat())
    }

    fn softmax(&self) -> (Program, Vec<TensorType>) {
        let extents = [self.rows, self.n];
        let whole = ty(self.dtype, &extents);
        (
            row_programs::softmax(&extents, dense(0, &extents), dense(1, &extents), self.dtype),
            vec![whole.clone(), whole],
        )
    }

    fn layer_norm(&self) -> (Program, Vec<TensorType>) {
        let (mut b, x) = self.begin();
        let f = DType::F32;
        let gamma =
            b.load(Access { slot: overdrive_ir::SlotId(2), ..access(0, &[0, 1]) }, self.dtype);
        let gamma = b.convert(gamma, f);
        let beta =
            b.load(Access { slot: overdrive_ir::SlotId(3), ..access(0, &[0, 1]) }, self.dtype);
        let beta = b.convert(beta, f);
        let scale = b.constant(1.0 / self.n as f64, f);
        let sum = b.reduce(Reducer::Sum, x);
        let mean = b.binary(Binary::Mul, sum, scale);
        let centred = b.binary(Binary::Sub, x, mean);
        let square = b.binary(Binary::Mul, centred, centred);
        let squares = b.reduce(Reducer::Sum, square);
        let variance = b.binary(Binary::Mul, squares, scale);
        let epsilon = b.constant(1e-5, f);
        let shifted = b.binary(Binary::Add, variance, epsilon);
        let rstd = b.unary(Unary::Rsqrt, shifted);
        let y = b.binary(Binary::Mul, centred, rstd);
        let y = b.binary(Binary::Mul, y, gamma);
        let y = b.binary(Binary::Add, y, beta);
        let row = ty(self.dtype, &[self.n]);
        self.end(b, y, &[row.clone(), row])
    }

    fn rms_norm(&self) -> (Program, Vec<TensorType>) {
        let (mut b, x) = self.begin();
        let f = DType::F32;
        let gamma =
            b.load(Access { slot: overdrive_ir::SlotId(2), ..access(0, &[0, 1]) }, self.dtype);
        let gamma = b.convert(gamma, f);
        let scale = b.constant(1.0 / self.n as f64, f);
        let square = b.binary(Binary::Mul, x, x);
        let squares = b.reduce(Reducer::Sum, square);
        let variance = b.binary(Binary::Mul, squares, scale);
        let epsilon = b.constant(1e-5, f);
        let shifted = b.binary(Binary::Add, variance, epsilon);
        let rstd = b.unary(Unary::Rsqrt, shifted);
        let y = b.binary(Binary::Mul, x, rstd);
        let y = b.binary(Binary::Mul, y, gamma);
        self.end(b, y, &[ty(self.dtype, &[self.n])])
    }

    fn cross_entropy(&self) -> (Program, Vec<TensorType>) {
        let row = |dtype| ty(dtype, &[self.rows]);
        let types = vec![
            ty(self.dtype, &[self.rows, self.n]),
            row(DType::I32),
            row(DType::F32),
            row(DType::F32),
        ];
        (row_programs::cross_entropy(self.rows, self.n, self.dtype), types)
    }

    /// Sum of each row.
    fn row_sum(&self) -> (Program, Vec<TensorType>) {
        let (mut b, x) = self.begin();
        let sum = b.reduce(Reducer::Sum, x);
        b.store(by_row(1, &[self.rows, self.n]), sum);
        (b.0, vec![ty(self.dtype, &[self.rows, self.n]), ty(DType::F32, &[self.rows])])
    }

    /// Sum of each column: a bias gradient.
    fn column_sum(&self) -> (Program, Vec<TensorType>) {
        let mut b = ProgramBuilder::new(&[self.n, self.rows], 1);
        let x = b.load(access(0, &[1, self.n]), self.dtype);
        let x = b.convert(x, DType::F32);
        let sum = b.reduce(Reducer::Sum, x);
        b.store(by_row(1, &[self.n, self.rows]), sum);
        (b.0, vec![ty(self.dtype, &[self.rows, self.n]), ty(DType::F32, &[self.n])])
    }
}

fn main() {
    let Some(backend) = gpu::gpu() else { return };
    let device = Arc::clone(backend.device());
    let filter =
        std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let bench = Bench { flush: DeviceBytes::new(&device, FLUSH_BYTES).unwrap(), device };
    let report = |name: String, (program, types): (Program, Vec<TensorType>)| {
        if name.contains(&filter) {
            bench.report(&name, &program, &types);
        }
    };
    for dtype in [DType::F32, DType::BF16] {
        report(format!("chain {dtype} 256 M"), chain(256 << 20, dtype));
        report(format!("chain {dtype} 4 M"), chain(4 << 20, dtype));
        report(format!("gelu {dtype} 256 M"), gelu(256 << 20, dtype));
        report(format!("transpose {dtype} 16384 x 8192"), transpose(16384, 8192, dtype));
    }
    for n in [1, 2, 4, 8, 16, 32, 64, 128].map(|k| k << 10) {
        let rows = Rows { rows: 8192, n, dtype: DType::BF16 };
        report(format!("softmax bf16 8192 x {n}"), rows.softmax());
        report(format!("layer_norm bf16 8192 x {n}"), rows.layer_norm());
        report(format!("rms_norm bf16 8192 x {n}"), rows.rms_norm());
        report(format!("cross_entropy bf16 8192 x {n}"), rows.cross_entropy());
    }
    for (rows, n) in [(8192, 64), (8192, 1000), (8192, 4096), (64, 1 << 20), (1, 256 << 20)] {
        let rows = Rows { rows, n, dtype: DType::BF16 };
        report(format!("row sum bf16 {} x {n}", rows.rows), rows.row_sum());
    }
    for (rows, n) in [(8192, 4096), (65536, 768), (1 << 20, 64), (64, 1 << 20)] {
        let rows = Rows { rows, n, dtype: DType::BF16 };
        report(format!("column sum bf16 {} x {n}", rows.rows), rows.column_sum());
    }
    let few = Rows { rows: 4, n: 8 << 20, dtype: DType::BF16 };
    report("softmax bf16 4 x 8 M".to_owned(), few.softmax());
}
