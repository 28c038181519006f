//! Compiling, filling and timing graphs.

use overdrive_cuda::CudaBackend;
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::{
    Backend, Buffer, DType, Graph, Mode, Port, Session, State, Tensor, TensorType, Tuning,
};

/// Timed calls.
const SAMPLES: u32 = 41;

pub(crate) struct Bench<'a> {
    pub(crate) backend: &'a CudaBackend,
    /// Bytes read plus bytes written.
    pub(crate) copy_bytes_per_ns: f64,
}

/// A median with an interval of 95 % from order statistics, in ns.
#[derive(Clone, Copy)]
pub(crate) struct Time {
    pub(crate) median: f64,
    pub(crate) interval: [f64; 2],
}

impl Time {
    fn of(mut ns: Vec<f64>) -> Self {
        ns.sort_by(f64::total_cmp);
        let (n, half) = (ns.len(), ns.len() as f64 / 2.0);
        let low = (half - 0.98 * (n as f64).sqrt()).floor().max(0.0) as usize;
        Self { median: ns[n / 2], interval: [ns[low], ns[n - 1 - low]] }
    }

    pub(crate) fn per(self, calls: usize) -> Self {
        let each = |ns: f64| ns / calls as f64;
        Self { median: each(self.median), interval: self.interval.map(each) }
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, high] = self.interval;
        write!(f, "{:9.2} us [{:.2}, {:.2}]", self.median / 1e3, low / 1e3, high / 1e3)
    }
}

/// Random bytes before they begin again.
const PERIOD: usize = 4 << 20;

/// Random bytes that are numbers of about unit size in the type.
pub(crate) fn noise(ty: &TensorType, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = vec![0u8; ty.bytes().next_multiple_of(8).min(PERIOD)];
    for word in bytes.as_chunks_mut::<8>().0 {
        let bits = next();
        *word = match ty.dtype {
            // A random sign and mantissa under exponents from 2^-3 to 2^0.
            DType::BF16 => (bits & 0x81ff_81ff_81ff_81ff | 0x3e00_3e00_3e00_3e00).to_le_bytes(),
            DType::F32 => (bits & 0x81ff_ffff_81ff_ffff | 0x3e00_0000_3e00_0000).to_le_bytes(),
            DType::F8E4M3 | DType::F8E5M2 => {
                (bits & 0x9f9f_9f9f_9f9f_9f9f | 0x2020_2020_2020_2020).to_le_bytes()
            }
            _ => bits.to_le_bytes(),
        };
    }
    bytes = bytes.repeat(ty.bytes().div_ceil(bytes.len()));
    bytes.truncate(ty.bytes());
    Tensor::from_bytes(ty.clone(), bytes).expect("the bytes of the type")
}

/// A tensor of one number.
pub(crate) fn all(ty: &TensorType, number: f64) -> Tensor {
    let one = Tensor::scalar(ty.dtype, number);
    assert_eq!(ty.dtype.bits() % 8, 0, "whole bytes");
    Tensor::from_bytes(ty.clone(), one.bytes().repeat(ty.elements()))
        .expect("the bytes of the type")
}

/// Elements of a tensor of rank two at these places, as numbers, without the rest of it.
pub(crate) fn line(tensor: &Tensor, first: usize, step: usize, count: usize) -> Vec<f64> {
    let dtype = tensor.ty().dtype;
    let width = dtype.bits() / 8;
    let picked =
        (0..count).flat_map(|i| &tensor.bytes()[(first + i * step) * width..][..width]).copied();
    let picked: Vec<u8> = picked.collect();
    Tensor::from_bytes(TensorType::new(dtype, [count]), picked).expect("as many elements").to_f64()
}

/// The norm of the difference over the norm of the expected values; pairs of found and expected.
pub(crate) fn error(pairs: &[(f64, f64)]) -> f64 {
    let sum = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>();
    (sum(|(found, expected)| (found - expected).powi(2)) / sum(|(_, expected)| expected.powi(2)))
        .sqrt()
}

impl<'a> Bench<'a> {
    pub(crate) fn new(backend: &'a CudaBackend) -> Self {
        let mut bench = Self { backend, copy_bytes_per_ns: 0.0 };
        let ty = TensorType::new(DType::F32, [1usize << 28]);
        let b = overdrive_ir::Builder::new("copy");
        let x = b.input("x", ty.clone());
        b.output("y", -x);
        let graph = b.finish().expect("well typed");
        let (time, _) = bench.time(&graph, &[bench.upload(&noise(&ty, 1))], CacheState::Cold);
        bench.copy_bytes_per_ns = 2.0 * ty.bytes() as f64 / time.median;
        bench
    }

    pub(crate) fn upload(&self, tensor: &Tensor) -> Buffer {
        self.backend.upload(tensor).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Choices of the tuner for a graph.
    pub(crate) fn tuned(&self, graph: &Graph) -> Tuning {
        let mut tuning = Tuning::default();
        self.backend.tune(graph, Mode::Graph, &mut tuning).unwrap_or_else(|e| panic!("{e}"));
        tuning
    }

    /// Compiles after tuning and times it; the results are those of the last call.
    pub(crate) fn time(
        &self,
        graph: &Graph,
        inputs: &[Buffer],
        cache: CacheState,
    ) -> (Time, Vec<Buffer>) {
        self.time_as(&self.tuned(graph), graph, inputs, cache)
    }

    /// The same with choices given.
    pub(crate) fn time_as(
        &self,
        tuning: &Tuning,
        graph: &Graph,
        inputs: &[Buffer],
        cache: CacheState,
    ) -> (Time, Vec<Buffer>) {
        let mut session = self.compile(graph, tuning);
        let ports = graph.outputs().iter();
        let output = |port: &Port| {
            self.backend.output(graph.ty(port.value)).unwrap_or_else(|e| panic!("{e}"))
        };
        let mut outputs: Vec<Buffer> = ports.map(output).collect();
        let mut state = State::initial(graph, self.backend).unwrap_or_else(|e| panic!("{e}"));
        let protocol = Protocol { samples: SAMPLES, calls_per_sample: 1, cache };
        let samples = session.sample(state.with(inputs, &mut outputs), protocol);
        let samples = samples.unwrap_or_else(|e| panic!("{e}"));
        (Time::of(samples.iter().filter_map(|sample| sample.device_ns).collect()), outputs)
    }

    /// The steps of a plan, the kernels of its products, and its description of itself.
    pub(crate) fn plan(&self, graph: &Graph, tuning: &Tuning) -> String {
        let session = self.compile(graph, tuning);
        let plan = session.plan();
        let steps: Vec<String> = plan.steps.iter().map(|step| step.name.clone()).collect();
        let chosen: Vec<&str> =
            tuning.choices.values().map(|choice| choice.candidate.as_str()).collect();
        let notes: Vec<String> = plan.notes.iter().map(|note| format!("{note:?}")).collect();
        format!(
            "    steps {}; products by {}; notes {}",
            steps.join(", "),
            chosen.join(", "),
            notes.join("; ")
        )
    }

    fn compile(&self, graph: &Graph, tuning: &Tuning) -> Box<dyn Session> {
        let executable = self.backend.compile(graph, Mode::Graph, tuning);
        executable.and_then(|executable| executable.session()).unwrap_or_else(|e| panic!("{e}"))
    }

    pub(crate) fn download(&self, buffer: &Buffer) -> Tensor {
        self.backend.download(buffer).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Bytes that a call must move, as a share of the bytes that a copy moves in its time.
    pub(crate) fn share(&self, bytes: usize, time: Time) -> f64 {
        100.0 * bytes as f64 / time.median / self.copy_bytes_per_ns
    }
}
