//! Products through the whole stack (graph, plan, tuner, executable) beside cuBLASLt called directly by its best
//! algorithm, in alternation, cold: `cargo run --release --example stack`.

use overdrive_cuda::CudaBackend;
use overdrive_cuda::gemm;
use overdrive_cuda::launch::Site;
use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Backend, Builder, DType, Graph, Mode, State, Tensor, TensorType, Tuning, eval::philox};

const MODE: Mode = Mode::Compile;
/// Times that both sides take turns.
const ROUNDS: usize = 5;

fn product(dtype: DType, n: usize) -> Graph {
    let b = Builder::new("product");
    let [x, w] = ["x", "w"].map(|name| b.input(name, TensorType::new(dtype, [n, n])));
    b.output("y", x.matmul(w));
    b.finish().expect("the product is well typed")
}

/// Median of cuBLASLt's fastest algorithm, in ns, as the tuner times it.
fn direct_ns(backend: &CudaBackend, graph: &Graph) -> Option<f64> {
    let tuning = Tuning::default();
    let plan = overdrive_passes::plan(graph, MODE, backend.caps(), &tuning).expect("the graph is bound");
    let [step] = &plan.steps[..] else { panic!("planned as more than a product:\n{plan}") };
    let StepKind::Gemm(call) = &step.kind else { panic!("planned as no product:\n{plan}") };
    let site = Site { plan: &plan, step, device: backend.device(), tuning: &tuning, mode: MODE };
    let (_, choice) = gemm::tune(&site, call).ok()??;
    let vendor = choice.timings_ns.iter().filter(|(name, _)| name.starts_with("cublaslt"));
    vendor.map(|(_, ns)| *ns).min_by(f64::total_cmp)
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
    for (dtype, n) in [(DType::BF16, 4096), (DType::BF16, 8192), (DType::BF16, 16384), (DType::F32, 4096)] {
        let graph = product(dtype, n);
        let mut tuning = Tuning::default();
        backend.tune(&graph, MODE, &mut tuning).expect("the product has candidates");
        let mut executable = backend.compile(&graph, MODE, &tuning).expect("the product compiles");
        let draw = |site: u64| {
            let values: Vec<f64> = philox::normals(1, site).take(n).collect();
            let rows: Vec<f64> = (0..n)
                .flat_map(|i| (0..n).map(move |j| (i, j)))
                .map(|(i, j)| values[(i * 31 + j) % n])
                .collect();
            Tensor::from_f64(dtype, [n, n], &rows)
        };
        let inputs = [0, 1].map(|site| backend.upload(&draw(site)).expect("the operand fits"));
        let mut outputs = [backend.output(&TensorType::new(dtype, [n, n])).expect("the result fits")];
        let protocol = Protocol { samples: 9, calls_per_sample: 1, cache: CacheState::Cold };
        let (mut direct, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.extend(direct_ns(&backend, &graph));
            let samples = executable.sample(&mut State::default(), &inputs, &mut outputs, protocol);
            let samples = samples.expect("the product runs");
            ours.push(median(samples.iter().filter_map(|s| s.device_ns).collect()));
        }
        let chosen = tuning.choices.values().next().map_or("the only candidate", |c| c.candidate.as_str());
        let (direct, ours) = (median(direct), median(ours));
        println!(
            "{dtype} {n}: cuBLASLt {:.1} us, whole stack {:.1} us ({chosen}), {:.3}x its speed",
            direct / 1e3,
            ours / 1e3,
            direct / ours
        );
    }
}
