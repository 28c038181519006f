//! Products through the whole stack (graph, plan, tuner, executable). Beside them cuBLASLt is
//! called directly by its best algorithm, on the same buffers: `cargo run --release --example
//! stack`.
//!
//! Both run twice at a time, in turns (A B B A). The second call is the one that is timed, cold.
//! The turns matter at the power limit of a device. There its speed depends on the run before, and
//! on the numbers that it multiplies. `stack N` multiplies matrices of N alone.

use cudarc::driver::sys::CUevent_flags;
use overdrive_cuda::gemm::GemmCandidate;
use overdrive_cuda::launch::{Addresses, Launch, Site};
use overdrive_cuda::memory::{CudaMemory, DeviceBytes};
use overdrive_cuda::{CudaBackend, Device};
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{
    Backend, Buffer, Builder, DType, Graph, Mode, Session, State, Tensor, TensorType, Tuning,
    eval::philox,
};
use std::sync::Arc;

const MODE: Mode = Mode::Compile;
/// Times that both sides take turns.
const ROUNDS: usize = 20;
/// Times that an algorithm of cuBLASLt is tried before one is taken.
const TRIALS: usize = 5;

fn product(dtype: DType, n: usize) -> Graph {
    let b = Builder::new("product");
    let [x, w] = ["x", "w"].map(|name| b.input(name, TensorType::new(dtype, [n, n])));
    b.output("y", x.matmul(w));
    b.finish().expect("the product is well typed")
}

/// cuBLASLt called directly.
struct Direct {
    device: Arc<Device>,
    addresses: Addresses,
    flush: DeviceBytes,
    _workspace: DeviceBytes,
}

impl Direct {
    /// Its fastest algorithm, by name, on these buffers (operands, result).
    fn new(
        backend: &CudaBackend,
        graph: &Graph,
        buffers: [&Buffer; 3],
    ) -> (Self, String, Box<dyn Launch>) {
        let (device, tuning) = (backend.device(), Tuning::default());
        let plan = overdrive_passes::plan(graph, MODE, backend.target(), &tuning)
            .expect("the graph is bound");
        let [step] = &plan.steps[..] else { panic!("planned as more than a product:\n{plan}") };
        let StepKind::Gemm(call) = &step.kind else { panic!("planned as no product:\n{plan}") };
        let site = Site { plan: &plan, step, device, tuning: &tuning, mode: MODE };
        let all = GemmCandidate::all(&site, call).expect("the product has candidates");
        let algorithms: Vec<(String, Box<dyn Launch>)> = all
            .into_iter()
            .filter(|candidate| matches!(candidate, GemmCandidate::Vendor(_)))
            .filter_map(|c| {
                Some((c.to_string(), c.compile(&site, call).expect("cuBLASLt is there")?))
            })
            .collect();
        let bytes =
            algorithms.iter().map(|(_, launch)| launch.workspace_bytes()).max().unwrap_or(0);
        let block = |bytes| DeviceBytes::new(device, bytes).expect("the device has memory");
        let workspace = block(bytes);
        let mut addresses = Addresses::new(plan.slots.len(), workspace.address());
        for (slot, buffer) in plan.inputs.iter().chain(&plan.outputs).zip(buffers) {
            let memory = buffer
                .memory
                .as_any()
                .downcast_ref::<CudaMemory>()
                .expect("a buffer of the device");
            addresses.set(*slot, memory.block().address());
        }
        let flush = block(2 * device.properties().l2_bytes);
        let direct = Self { device: Arc::clone(device), addresses, flush, _workspace: workspace };
        let time =
            |launch: &dyn Launch| median((0..TRIALS).map(|_| direct.time_ns(launch)).collect());
        let timed =
            algorithms.into_iter().map(|(name, launch)| (time(launch.as_ref()), name, launch));
        let fastest = timed.min_by(|a, b| a.0.total_cmp(&b.0)).expect("cuBLASLt has an algorithm");
        (direct, fastest.1, fastest.2)
    }

    /// Time of the second call, by the device's clock.
    fn time_ns(&self, launch: &dyn Launch) -> f64 {
        let stream = self.device.stream();
        let event = || self.device.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let (start, end) = (event().expect("an event"), event().expect("an event"));
        let call = || launch.launch(stream, &self.addresses).expect("cuBLASLt runs");
        call();
        stream.synchronize().expect("the device works");
        self.flush.fill(0x55).expect("the device works");
        start.record(stream).expect("the device works");
        call();
        end.record(stream).expect("the device works");
        end.synchronize().expect("the device works");
        f64::from(start.elapsed_ms(&end).expect("both events happened")) * 1e6
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let backend = match CudaBackend::new(0) {
        Ok(backend) => backend,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let only: Option<usize> = std::env::args().nth(1).and_then(|n| n.parse().ok());
    for (dtype, n) in
        [(DType::BF16, 4096), (DType::BF16, 8192), (DType::BF16, 16384), (DType::F32, 4096)]
    {
        if only.is_some_and(|only| only != n) {
            continue;
        }
        let graph = product(dtype, n);
        let mut tuning = Tuning::default();
        backend.tune(&graph, MODE, &mut tuning).expect("the product has candidates");
        let executable = backend.compile(&graph, MODE, &tuning).expect("the product compiles");
        let mut session = executable.session().expect("its arena fits");
        // Rows of the same normal numbers, each turned on from the one before.
        let draw = |site: u64| {
            let values: Vec<f64> = philox::normals(1, site).take(n).collect();
            let twice = Tensor::from_f64(dtype, [2 * n], &[values.clone(), values].concat());
            let of_row = n * dtype.bits() / 8;
            let rows =
                (0..n).flat_map(|i| &twice.bytes()[i * 31 % n * dtype.bits() / 8..][..of_row]);
            Tensor::from_bytes(TensorType::new(dtype, [n, n]), rows.copied().collect::<Vec<u8>>())
                .expect("whole rows")
        };
        let inputs = [0, 1].map(|site| backend.upload(&draw(site)).expect("the operand fits"));
        let mut outputs =
            [backend.output(&TensorType::new(dtype, [n, n])).expect("the result fits")];
        let (direct, name, algorithm) =
            Direct::new(&backend, &graph, [&inputs[0], &inputs[1], &outputs[0]]);
        let mut ours_ns = |session: &mut dyn Session| {
            let protocol = Protocol { samples: 1, calls_per_sample: 1, cache: CacheState::Cold };
            let samples = session.sample(State::default().with(&inputs, &mut outputs), protocol);
            samples.expect("the product runs")[0].device_ns.expect("a GPU has a clock")
        };
        ours_ns(session.as_mut());
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                theirs.push(direct.time_ns(algorithm.as_ref()));
                ours.push(ours_ns(session.as_mut()));
            } else {
                ours.push(ours_ns(session.as_mut()));
                theirs.push(direct.time_ns(algorithm.as_ref()));
            }
        }
        let mut ratios: Vec<f64> =
            theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours).collect();
        ratios.sort_by(f64::total_cmp);
        // Ends of the interval of a median that holds in 95 of 100 cases.
        let reach = ((ROUNDS as f64).sqrt() * 0.98).ceil() as usize;
        let [low, high] = [ROUNDS / 2 - reach, ROUNDS / 2 + reach - 1].map(|at| ratios[at]);
        let chosen =
            tuning.choices.values().next().map_or("the only candidate", |c| c.candidate.as_str());
        println!(
            "{dtype} {n}: cuBLASLt ({name}) {:.1} us, whole stack ({chosen}) {:.1} us, {:.3}x its \
             speed [{low:.3}, {high:.3}]",
            median(theirs) / 1e3,
            median(ours) / 1e3,
            median(ratios),
        );
    }
}
