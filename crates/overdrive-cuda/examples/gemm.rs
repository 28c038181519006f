//! Times every candidate of some products, cold, with and without an epilogue: `cargo run --release
//! --example gemm`.

use overdrive_cuda::launch::Site;
use overdrive_cuda::{Device, Gpu, gemm};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Binary, Builder, DType, Expr, Mode, TensorType, Tuning};

fn biased(y: Expr<'_>, n: usize) -> Expr<'_> {
    let bias = y.builder().input("b", TensorType::new(y.dtype(), [n]));
    y.binary(Binary::Add, bias.broadcast_to(&y.shape()))
}

fn graph(dtype: DType, [m, n, k]: [usize; 3], epilogue: &str) -> overdrive_ir::Graph {
    let b = Builder::new("product");
    let x = b.input("x", TensorType::new(dtype, [m, k]));
    let out = if dtype.bits() == 8 { DType::BF16 } else { dtype };
    let y = if dtype.bits() == 8 {
        let w = b.input("w", TensorType::new(dtype, [n, k]));
        x.dot_to(w, &[], &[(1, 1)], out)
    } else {
        x.matmul(b.input("w", TensorType::new(dtype, [k, n])))
    };
    let y = match epilogue {
        "gelu" => biased(y, n).gelu(Approximation::Erf),
        "bias" => biased(y, n),
        _ => y,
    };
    b.output("y", y);
    b.finish().expect("the product is well typed")
}

fn main() {
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let tuning = Tuning::default();
    let only: Vec<String> = std::env::args().skip(1).collect();
    for (dtype, shape) in [
        (DType::BF16, [32, 2048, 512]),
        (DType::BF16, [32, 2048, 2048]),
        (DType::BF16, [32, 10, 2048]),
        (DType::BF16, [512, 2048, 512]),
        (DType::BF16, [1024, 512, 2048]),
        (DType::BF16, [4096, 4096, 1024]),
        (DType::BF16, [8192, 16384, 4096]),
        (DType::BF16, [8192, 8192, 8192]),
        (DType::F8E4M3, [8192, 8192, 8192]),
    ] {
        let [m, n, k] = shape;
        let name = format!("{dtype} {m}x{k}->{n}");
        if !only.is_empty() && !only.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        for epilogue in ["", "gelu"] {
            let (mode, graph) = (Mode::Compile, graph(dtype, shape, epilogue));
            let plan =
                overdrive_passes::plan(&graph, mode, &Gpu::new(device.properties()), &tuning);
            let plan = plan.expect("the graph is bound");
            let [step] = &plan.steps[..] else { panic!("planned as more than a product:\n{plan}") };
            let StepKind::Gemm(call) = &step.kind else { panic!("planned as no product:\n{plan}") };
            let site = Site { plan: &plan, step, device: &device, tuning: &tuning, mode };
            let choice = match gemm::tune(&site, call) {
                Ok(Some((_, choice))) => choice,
                Ok(None) => continue,
                Err(error) => {
                    println!("{name} {epilogue}: {error}");
                    continue;
                }
            };
            let mut all: Vec<_> = choice.timings_ns.iter().collect();
            all.sort_by(|a, b| a.1.total_cmp(b.1));
            let flops = 2.0 * (m * n * k) as f64;
            let vendor = all.iter().find(|(candidate, _)| candidate.starts_with("cublas"));
            println!(
                "{name} {epilogue}: cublasLt {:.1} us",
                vendor.map_or(f64::NAN, |v| v.1 / 1e3)
            );
            for (candidate, ns) in all.iter().take(7) {
                println!(
                    "    {candidate:<32} {:8.1} us {:7.1} TFLOP/s",
                    *ns / 1e3,
                    flops / *ns / 1e3
                );
            }
        }
    }
}
