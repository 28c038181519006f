//! Times every candidate of some products, cold, with and without an epilogue: `cargo run --release
//! --example gemm`.

use overdrive_cuda::launch::Site;
use overdrive_cuda::{Device, Gpu, gemm};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::StepKind;
use overdrive_ir::{Binary, Builder, DType, Expr, Mode, TensorType, Tuning};

fn biased(y: Expr<'_>) -> Expr<'_> {
    let n = *y.sizes().last().expect("a product has columns");
    let bias = y.builder().input("b", TensorType::new(y.dtype(), [n]));
    y.binary(Binary::Add, bias.broadcast_to(&y.shape()))
}

fn graph(dtype: DType, [m, n, k]: [usize; 3], epilogue: &str) -> overdrive_ir::Graph {
    let b = Builder::new("product");
    let x = b.input("x", TensorType::new(dtype, [m, k]));
    let is_codes = dtype.bits() == 8;
    let w = b.input("w", TensorType::new(dtype, if is_codes { [n, k] } else { [k, n] }));
    let y = match epilogue {
        layer if layer.starts_with("scales") => layer_on_codes(&b, (x, w), layer),
        _ if is_codes => x.dot_to(w, &[], &[(1, 1)], DType::BF16),
        _ => x.matmul(w),
    };
    b.output("y", if epilogue == "gelu" { biased(y).gelu(Approximation::Erf) } else { y });
    b.finish().expect("the product is well typed")
}

/// A layer of training on codes: sums by two scales, rounded. A bias may be added, and a tensor of
/// the type of the result.
fn layer_on_codes<'b>(b: &'b Builder, (x, w): (Expr<'b>, Expr<'b>), epilogue: &str) -> Expr<'b> {
    let sum = x.dot_to(w, &[], &[(1, 1)], DType::F32);
    let scales = ["x_scale", "w_scale"].map(|name| b.input(name, TensorType::scalar(DType::F32)));
    let y = (sum * (scales[0] * scales[1])).convert(DType::BF16);
    let added = |y: Expr<'b>| y + b.input("r", y.ty());
    match epilogue {
        "scales" => y,
        "scales, bias" => biased(y),
        "scales, bias, residual" => added(biased(y).convert(DType::F32)),
        "scales, added" => added(y),
        other => panic!("no epilogue `{other}`"),
    }
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
    const PLAIN: &[&str] = &["", "gelu"];
    const LAYERS: &[&str] = &["scales", "scales, bias", "scales, bias, residual", "scales, added"];
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
        // Layers of gpt-1.3b, 8 x 1,024 tokens, and of gpt-125m, 16 x 1,024.
        (DType::F8E4M3, [8192, 2048, 2048]),
        (DType::F8E4M3, [8192, 8192, 2048]),
        (DType::F8E4M3, [8192, 2048, 8192]),
        (DType::F8E4M3, [16384, 768, 768]),
        (DType::F8E4M3, [16384, 3072, 768]),
        (DType::F8E4M3, [16384, 768, 3072]),
    ] {
        let [m, n, k] = shape;
        let name = format!("{dtype} {m}x{k}->{n}");
        if !only.is_empty() && !only.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        let epilogues = if dtype.bits() == 8 { LAYERS } else { PLAIN };
        for epilogue in epilogues {
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
