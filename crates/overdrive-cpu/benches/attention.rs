//! Attention of 12 heads of 64 channels in f32, and its gradients. Prints GFLOP/s, counting only
//! products that the mask leaves. Also prints GFLOP per second of processor time, which other
//! programs disturb less (Linux), and its share of the multiply-add peak measured here. `plain` is
//! causal and full, `window` a mask function, `bias` a score function. `expanded` compares each
//! with its expansion, alternating in one process: medians, and means of processor seconds.
//!
//! `few` has the last queries of T keys alone, and prints the bytes of keys and values that a
//! second reads, of each once.
//!
//! `cargo bench -p overdrive-cpu --bench attention [-- THREADS] [plain|window|bias|few] [expanded]
//! [T...]`
// A program; vector intrinsics for the peak.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use std::time::Instant;

use overdrive_cpu::CpuBackend;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad};
use overdrive_ir::{
    Backend, Buffer, Builder, Compare, DType, Graph, Mode, State, Tensor, TensorType, Tuning,
};

const HEADS: usize = 12;
const CHANNELS: usize = 64;
/// Keys before a query that it sees through a window.
const WINDOW: f64 = 256.0;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let numbers: Vec<usize> = args.iter().filter_map(|a| a.parse().ok()).collect();
    let threads = numbers.first().copied().unwrap_or(1);
    let has = |word: &str| args.iter().any(|a| a == word);
    let lengths = match numbers.get(1..) {
        Some(given @ [_, ..]) => given.to_vec(),
        _ => vec![512, 1024, 2048, 4096, 8192],
    };
    let backend = CpuBackend::new(Some(threads)).unwrap();
    let peak = peak();
    println!("{threads} thread(s), multiply-adds of one reach {peak:.0} GFLOP/s");
    if has("few") {
        for &t in &lengths {
            for queries in [1, 2, 4, 6, 8, 9, 12, 16, 32] {
                measure_few(&backend, (queries, t));
            }
        }
        return;
    }
    let forms: &[&str] = match (has("window"), has("bias")) {
        (true, _) => &["window"],
        (_, true) => &["bias"],
        _ => &["causal", "full"],
    };
    for form in forms {
        for &t in &lengths {
            measure(&backend, (form, t), peak, has("expanded"));
        }
    }
}

/// GFLOP/s of a thread, of multiply-adds on registers.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx2,fma")]
        fn chains(steps: usize) -> f32 {
            let mut sums = [_mm256_set1_ps(0.5); 12];
            let (a, b) = (_mm256_set1_ps(0.999), _mm256_set1_ps(0.001));
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            sums.into_iter().map(|sum| _mm256_cvtss_f32(sum)).sum()
        }
        if std::arch::is_x86_feature_detected!("fma") {
            const STEPS: usize = 1 << 20;
            let rates = (0..20).map(|_| {
                let start = Instant::now();
                // SAFETY: the processor has the instructions.
                std::hint::black_box(unsafe { chains(std::hint::black_box(STEPS)) });
                (STEPS * 12 * 16) as f64 / start.elapsed().as_secs_f64() / 1e9
            });
            return rates.fold(0.0, f64::max);
        }
    }
    f64::NAN
}

/// Attention and its gradients, or one of them.
fn graphs(form: &str, t: usize) -> [Graph; 2] {
    let mask = if form == "full" { Mask::Full } else { Mask::Causal };
    let attention = Attention { mask, ..Attention::FULL };
    let regions = match form {
        "window" => vec![
            mask_region(&[], |[_, _, q, k], _| (q - k).compare(Compare::Lt, q.constant(WINDOW)))
                .unwrap(),
        ],
        "bias" => vec![
            score_region(DType::F32, &[], |score, [_, h, q, k], _| {
                let slope = (h.convert(DType::F32) + 1.0) * -0.05;
                score + slope * (q - k).convert(DType::F32)
            })
            .unwrap(),
        ],
        _ => vec![],
    };
    let rows = TensorType::new(DType::F32, [1, HEADS, t, CHANNELS]);
    let numbers = TensorType::new(DType::F32, [1, HEADS, t]);
    let forward = Builder::new("attention");
    let [q, k, v] = ["q", "k", "v"].map(|name| forward.input(name, rows.clone()));
    let [out, lse] = q.attention_with([k, v], attention, regions.clone(), &[]);
    forward.output("out", out);
    forward.output("lse", lse);
    let backward = Builder::new("attention_grad");
    let types = [&rows, &rows, &rows, &numbers, &rows, &numbers];
    let names = ["q", "k", "v", "lse", "dout", "delta"];
    let inputs: Vec<_> =
        names.iter().zip(types).map(|(name, ty)| backward.input(name, ty.clone())).collect();
    let results = backward.node(AttentionGrad { attention }, &inputs, regions);
    ["dq", "dk", "dv"].iter().zip(results).for_each(|(name, result)| backward.output(name, result));
    [forward, backward].map(|b| b.finish().unwrap())
}

/// Causal attention of the last queries of T keys.
fn measure_few(backend: &CpuBackend, (queries, t): (usize, usize)) {
    let b = Builder::new("attention");
    let rows = |count| TensorType::new(DType::F32, [1, HEADS, count, CHANNELS]);
    let q = b.input("q", rows(queries));
    let [k, v] = ["k", "v"].map(|name| b.input(name, rows(t)));
    b.output("out", q.attention(k, v, Attention::CAUSAL)[0]);
    let mut session = Session::new(backend, &b.finish().unwrap());
    let mut times: Vec<f64> = (0..60).map(|_| session.seconds()[0]).collect();
    times.sort_by(f64::total_cmp);
    let (median, bytes) = (times[times.len() / 2], (2 * HEADS * t * CHANNELS * 4) as f64);
    println!(
        "{queries:>3} of {t:>5}: {:>8.1} us, {:>5.1} GB/s, {:>6.1} us a query",
        1e6 * median,
        bytes / median / 1e9,
        1e6 * median / queries as f64
    );
}

struct Session {
    compiled: Box<dyn overdrive_ir::Session>,
    state: State,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
}

impl Session {
    fn new(backend: &CpuBackend, graph: &Graph) -> Self {
        let compiled = backend.compile(graph, Mode::Compile, &Tuning::default()).unwrap();
        let compiled = compiled.session().unwrap();
        let mut seed = 1u32;
        let inputs = graph.inputs().iter().map(|port| {
            let ty = graph.ty(port.value);
            let values: Vec<f64> = (0..ty.elements())
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    f64::from(seed >> 8) / f64::from(1 << 23) - 1.0
                })
                .collect();
            // Log-sum-exps of rows whose weights add up to about one.
            let raise = if port.name == "lse" { (ty.sizes()[2] as f64).ln() } else { 0.0 };
            let values: Vec<f64> = values.iter().map(|x| x + raise).collect();
            backend.upload(&Tensor::from_f64(ty.dtype, ty.sizes(), &values)).unwrap()
        });
        let inputs = inputs.collect();
        let outputs = graph.outputs().iter();
        let outputs = outputs.map(|port| backend.output(graph.ty(port.value)).unwrap()).collect();
        let state = State::initial(graph, backend).unwrap();
        Self { compiled, state, inputs, outputs }
    }

    /// Seconds on the wall and of processors.
    fn seconds(&mut self) -> [f64; 2] {
        let (start, before) = (Instant::now(), busy());
        let call = self.state.with(&self.inputs, &mut self.outputs);
        self.compiled.run(call).unwrap().wait().unwrap();
        [start.elapsed().as_secs_f64(), busy() - before]
    }
}

/// Seconds that processors have spent on the threads of this process; 0 where nobody counts them.
fn busy() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let spent = |path: std::path::PathBuf| -> Option<f64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    tasks.filter_map(|task| spent(task.ok()?.path())).sum::<f64>() / 1e9
}

fn measure(backend: &CpuBackend, (form, t): (&str, usize), peak: f64, expanded: bool) {
    let pairs = |query: usize| match form {
        "full" => t,
        "window" => (query + 1).min(WINDOW as usize),
        _ => query + 1,
    };
    let pairs = HEADS as f64 * (0..t).map(pairs).sum::<usize>() as f64;
    for (graph, products) in graphs(form, t).iter().zip([2.0, 5.0]) {
        let mut sessions = vec![Session::new(backend, graph)];
        if expanded {
            let expansion = overdrive_passes::to_primitives(graph).unwrap();
            sessions.push(Session::new(backend, &expansion));
        }
        let rounds = ((1e10 / pairs / products / CHANNELS as f64) as usize).clamp(3, 31);
        let mut times = vec![Vec::new(); sessions.len()];
        for round in 0..=rounds {
            for (times, session) in times.iter_mut().zip(&mut sessions) {
                let seconds = session.seconds();
                if round > 0 {
                    times.push(seconds);
                }
            }
        }
        // Processors are counted by the tick, which single calls may be shorter than.
        let mean = |times: &[[f64; 2]]| times.iter().map(|t| t[1]).sum::<f64>() / rounds as f64;
        let wall = |times: &[[f64; 2]]| median(times.iter().map(|t| t[0]).collect());
        let found: Vec<[f64; 2]> = times.iter().map(|times| [wall(times), mean(times)]).collect();
        let work = pairs * products * 2.0 * CHANNELS as f64 / 1e9;
        let [rate, busy_rate] = found[0].map(|seconds| work / seconds);
        print!(
            "{:>14} {form:>6} {t:>5} {:>9.2} ms {rate:>6.1} GFLOP/s, of a processor \
             {busy_rate:>6.1}, {:>4.1} %",
            graph.name(),
            found[0][0] * 1e3,
            100.0 * busy_rate / peak
        );
        match found.get(1) {
            Some([wall, busy]) => println!(
                "   expanded {:>8.2} ms, {:.2}x; of processors {:.2}x",
                wall * 1e3,
                wall / found[0][0],
                busy / found[0][1]
            ),
            None => println!(),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
