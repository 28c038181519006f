//! Products on the GPU against the f64 definition: every candidate, types, strides, batches and
//! epilogues.

mod bed;

use bed::Bed;
use overdrive_cuda::gemm::{GemmCandidate, compile};
use overdrive_cuda::{Device, Error};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{
    Array, Binary, Builder, DType, DotGeneral, Expr, Graph, Overflow, Precision, Prim, TensorType,
    Tuning, Unary,
};
use std::sync::Arc;
use testkit::{Needs, Tolerance, compare};

/// The first GPU; where there is none, the test is skipped.
fn device() -> Option<Arc<Device>> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(matches!(error, Error::Missing { .. } | Error::Driver(_)), "{error}");
            testkit::skip(Needs::Gpu, error);
            None
        }
    }
}

/// A product `[batch..., m, k] x [batch..., k, n]`; `T` in `layout` stores that operand the other
/// way round.
struct Case {
    dtype: DType,
    out: DType,
    batch: Vec<usize>,
    shape: [usize; 3],
    layout: &'static str,
    epilogue: &'static str,
    /// Whether every candidate is checked.
    thorough: bool,
    precision: Precision,
}

fn operand<'b>(b: &'b Builder, name: &str, ty: (DType, &[usize]), transposed: bool) -> Expr<'b> {
    let (dtype, shape) = ty;
    let rank = shape.len();
    let mut stored = shape.to_vec();
    let mut order: Vec<usize> = (0..rank).collect();
    if transposed {
        stored.swap(rank - 1, rank - 2);
        order.swap(rank - 1, rank - 2);
    }
    let input = b.input(name, TensorType::new(dtype, stored));
    if transposed { input.transpose(&order) } else { input }
}

impl Case {
    fn graph(&self) -> Graph {
        let b = Builder::new("product");
        let [m, n, k] = self.shape;
        let with = |rows: usize, columns: usize| [&self.batch[..], &[rows, columns]].concat();
        let lhs = operand(&b, "a", (self.dtype, &with(m, k)), self.layout.starts_with('T'));
        let shared = self.layout.contains('1');
        let right = if shared { vec![k, n] } else { with(k, n) };
        let rhs = operand(&b, "b", (self.dtype, &right), self.layout.ends_with('T'));
        let rank = self.batch.len();
        let batch = if shared { vec![] } else { (0..rank).map(|i| (i, i)).collect() };
        let contract = vec![(rank + 1, right.len() - 2)];
        let accumulate = if self.dtype.is_float() { self.dtype.accumulation() } else { DType::I32 };
        let dot =
            DotGeneral { batch, contract, accumulate, out: self.out, precision: self.precision };
        let sum = b.op1(Prim::DotGeneral(dot), &[lhs, rhs]);
        b.output("y", self.epilogue(&b, sum));
        b.finish().expect("the case is well typed")
    }

    fn epilogue<'b>(&self, b: &'b Builder, sum: Expr<'b>) -> Expr<'b> {
        let shape = sum.ty().shape;
        let bias = |sum: Expr<'b>| {
            let bias = b.input("bias", TensorType::new(self.out, [self.shape[1]]));
            sum.binary(Binary::Add, bias.broadcast_in(&shape, &[sum.rank() - 1]))
        };
        let gelu = |x: Expr<'b>| {
            let half = x.binary(Binary::Mul, x.constant(0.5));
            let erf = x
                .binary(Binary::Mul, x.constant(std::f64::consts::FRAC_1_SQRT_2))
                .unary(Unary::Erf);
            half.binary(Binary::Mul, erf.binary(Binary::Add, erf.constant(1.0)))
        };
        let residual = |x: Expr<'b>| x.binary(Binary::Add, b.input("r", x.ty()));
        match self.epilogue {
            "" => sum,
            "bias" => bias(sum),
            "bias+gelu" => gelu(bias(sum)),
            "bias+relu" => {
                let x = bias(sum);
                x.max(x.constant(0.0))
            }
            "residual" => residual(bias(sum)),
            "tanh" => bias(sum).gelu(Approximation::Tanh),
            // A value that the backward pass reads again is a result too.
            "before+tanh" => {
                let before = bias(sum);
                b.output("before", before);
                before.gelu(Approximation::Tanh)
            }
            // The gradient of the op through a GELU.
            "slope" => {
                let x = b.input("before", sum.ty()).convert(DType::F32);
                let cubic =
                    |factor: f64| x * (x * x * factor + 1.0) * (2.0 * 0.797_884_560_802_865_4);
                let twice = cubic(0.044715);
                let [left, right] = [twice, -twice].map(|u| u.unary(Unary::Logistic));
                let slope = left + cubic(3.0 * 0.044715) * left * right;
                (sum.convert(DType::F32) * slope).convert(self.out)
            }
            "rows" => {
                let scale = b.input("scale", TensorType::new(DType::F32, [self.shape[0]]));
                let x = sum.convert(DType::F32);
                let scaled = x.binary(Binary::Mul, scale.broadcast_in(&shape, &[sum.rank() - 2]));
                scaled.convert(DType::BF16)
            }
            // Layers of training on codes. Sums are rounded before anything is added.
            "scaled" | "scaled+bias" | "scaled+residual" | "scaled+added" => {
                let scale = |name| b.input(name, TensorType::scalar(DType::F32));
                let scaled = (sum * (scale("x_scale") * scale("w_scale"))).convert(DType::BF16);
                let bias = TensorType::new(DType::BF16, [self.shape[1]]);
                let biased = || scaled + b.input("bias", bias).broadcast_to(&shape);
                match self.epilogue {
                    "scaled" => scaled,
                    "scaled+bias" => biased(),
                    "scaled+added" => residual(scaled),
                    _ => residual(biased().convert(DType::F32)),
                }
            }
            "bool" => sum.compare(overdrive_ir::Compare::Gt, sum.constant(0.0)),
            other => panic!("no epilogue `{other}`"),
        }
    }
}

/// About normal numbers, of the type.
fn random(ty: &TensorType, seed: u64) -> Array {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    let scale = if ty.dtype.is_float() { 1.7 } else { 12.0 };
    let values = (0..ty.elements()).map(|_| {
        let sum = uniform() + uniform() + uniform() + uniform();
        ty.dtype.round(sum * scale, Overflow::Ieee)
    });
    Array::from_f64(ty.dtype, &ty.sizes(), values.collect())
}

fn check(device: &Arc<Device>, case: &Case, seed: u64) {
    let graph = case.graph();
    let inputs: Vec<Array> = graph
        .inputs()
        .iter()
        .enumerate()
        .map(|(i, port)| random(graph.ty(port.value), seed * 64 + i as u64 + 1))
        .collect();
    let expected = eval(&graph, &inputs, &mut States::new());
    let mut bed = Bed::new(device, &graph);
    bed.write(&inputs.iter().map(Array::to_tensor).collect::<Vec<_>>());
    let tuning = Tuning::default();
    let call = bed.call().clone();
    let name = format!("{call}");
    let mut candidates = vec![GemmCandidate::Plain];
    if case.shape.iter().all(|&extent| extent > 0) && !case.batch.contains(&0) {
        let all = GemmCandidate::all(&bed.site(&tuning), &call).expect("candidates are listed");
        // If little differs from another case, one of each kind is enough.
        let kept = |c: &GemmCandidate| match c {
            GemmCandidate::Vendor(0) | GemmCandidate::VendorStaged(0) => true,
            GemmCandidate::Skinny(_) => case.thorough || case.dtype.bits() == 8,
            _ => case.thorough,
        };
        candidates.extend(all.into_iter().filter(kept));
    } else {
        candidates.clear();
    }
    let mut ran: Vec<String> = Vec::new();
    for candidate in candidates.into_iter().map(Some).chain([None]) {
        let launch = match candidate {
            Some(candidate) => match candidate.compile(&bed.site(&tuning), &call) {
                Ok(Some(launch)) => launch,
                Ok(None) => continue,
                Err(error) => panic!("{candidate} of {name}: {error}"),
            },
            None => compile(&bed.site(&tuning), &call).unwrap_or_else(|e| panic!("{name}: {e}")),
        };
        bed.poison();
        let addresses = bed.addresses(launch.as_ref());
        launch
            .launch(device.stream(), &addresses)
            .unwrap_or_else(|e| panic!("{candidate:?} of {name}: {e}"));
        device.stream().synchronize().unwrap_or_else(|e| panic!("{candidate:?} of {name}: {e}"));
        let k = case.shape[2];
        // Some candidates leave out the rounding of a layer before something is added.
        let is_rounded = case.epilogue.starts_with("scaled");
        let rounded_to = if is_rounded { DType::BF16 } else { case.out };
        let mut tolerance = Tolerance::new(rounded_to, k, (k as f64).sqrt().max(4.0) + 4.0);
        if case.precision == Precision::Tf32 {
            // Operands keep eleven digits; their errors add up like a random walk.
            tolerance.absolute += 4.0 * 2f64.powi(-11) * (k as f64).sqrt();
        }
        for (expected, found) in expected.iter().zip(bed.read()) {
            if let Err(error) = compare(expected, &Array::from(&found), tolerance) {
                panic!("{candidate:?} of {name}: {error}");
            }
        }
        ran.extend(candidate.map(|c| c.to_string()));
    }
    eprintln!(
        "ok {} {:?} {:?} {} {}: {}",
        case.dtype,
        case.batch,
        case.shape,
        case.layout,
        case.epilogue,
        ran.join(", ")
    );
}

fn cases() -> Vec<Case> {
    let case = |dtype, batch: &[usize], shape, layout, epilogue| {
        let out = match dtype {
            DType::I8 => DType::I32,
            DType::F8E4M3 | DType::F8E5M2 => DType::BF16,
            other => other,
        };
        Case {
            dtype,
            out,
            batch: batch.to_vec(),
            shape,
            layout,
            epilogue,
            thorough: false,
            precision: Precision::Exact,
        }
    };
    let mut all = Vec::new();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for layout in ["NN", "NT", "TN", "TT"] {
            all.push(case(dtype, &[], [128, 256, 128], layout, "bias+gelu"));
            all.push(case(dtype, &[], [67, 129, 35], layout, ""));
        }
        all.push(case(dtype, &[], [200, 72, 136], "NN", "residual"));
        all.push(case(dtype, &[2, 3], [33, 17, 40], "NN", "bias"));
        all.push(case(dtype, &[6], [64, 80, 64], "N1T", "bias+relu"));
        all.push(case(dtype, &[], [1, 300, 64], "NN", "bias"));
        all.push(case(dtype, &[], [300, 1, 64], "NN", ""));
        all.push(case(dtype, &[], [5, 7, 0], "NN", "bias"));
        all.push(case(dtype, &[], [0, 7, 3], "NN", "bias"));
    }
    let every = |case| Case { thorough: true, ..case };
    for (shape, layout, epilogue) in [
        ([32, 512, 2048], "NN", "bias+gelu"),
        ([32, 10, 2048], "NT", "bias"),
        ([32, 10, 2048], "NN", "bias+gelu"),
        ([33, 16, 300], "NN", "residual"),
        ([320, 264, 192], "NN", "bias+gelu"),
        ([320, 264, 192], "TT", ""),
        ([130, 520, 200], "NT", "residual"),
        // Whole tiles and few steps: blocks that leave room.
        ([256, 384, 192], "NN", "bias+gelu"),
        ([32, 10, 2000], "NT", "bias+gelu"),
        ([70, 200, 1104], "NN", "bias"),
    ] {
        all.push(every(case(DType::BF16, &[], shape, layout, epilogue)));
    }
    all.push(every(case(DType::F16, &[3], [160, 272, 96], "NN", "residual")));
    // Two results; whole tiles, edges of them, batches.
    for (batch, shape) in
        [(&[][..], [256, 512, 128]), (&[][..], [320, 264, 192]), (&[3][..], [160, 272, 96])]
    {
        all.push(every(case(DType::BF16, batch, shape, "NN", "before+tanh")));
        let wide = case(DType::BF16, batch, shape, "NT", "residual");
        all.push(every(Case { out: DType::F32, ..wide }));
    }
    // Few rows: fewer tiles of the contracted index than share it, more than are in flight, and
    // edges of everything.
    for (shape, layout, epilogue) in [
        ([1, 200, 520], "NT", "bias"),
        ([13, 328, 1104], "NN", "residual"),
        ([64, 264, 2048], "NT", "bias+gelu"),
        ([32, 72, 8192], "NN", "bias+gelu"),
        ([48, 64, 64], "NN", ""),
    ] {
        all.push(every(case(DType::BF16, &[], shape, layout, epilogue)));
    }
    all.push(every(case(DType::F16, &[], [25, 136, 4104], "NT", "residual")));
    // Few rows by weights that stream. There are fewer outputs than warps and more, and rows of one
    // piece and of many. Some end within a piece, and one x is too long for two launches at a time.
    for (dtype, shape, epilogue) in [
        (DType::BF16, [1, 40, 8], "bias"),
        (DType::BF16, [1, 2048, 2048], "residual"),
        (DType::BF16, [4, 5000, 768], "bias+gelu"),
        (DType::F16, [3, 333, 5640], "before+tanh"),
        (DType::F32, [1, 777, 1028], "bias"),
        (DType::F32, [2, 3000, 8192], "residual"),
    ] {
        all.push(every(case(dtype, &[], shape, "NT", epilogue)));
    }
    // Few columns, as of adapters.
    for (dtype, shape, layout, epilogue) in [
        (DType::BF16, [300, 8, 520], "NT", "rows"),
        (DType::BF16, [768, 8, 4096], "TT", "residual"),
        (DType::F16, [200, 33, 1104], "TT", "bias+gelu"),
    ] {
        all.push(every(case(dtype, &[], shape, layout, epilogue)));
    }
    all.push(case(DType::BF16, &[], [96, 64, 64], "NT", "bool"));
    all.push(case(DType::BF16, &[], [96, 64, 64], "NT", "tanh"));
    all.push(case(DType::F16, &[], [96, 64, 64], "NT", "tanh"));
    all.push(case(DType::F16, &[], [96, 64, 64], "NT", "slope"));
    all.push(every(case(DType::BF16, &[], [320, 264, 192], "NT", "slope")));
    all.push(Case {
        precision: Precision::Tf32,
        ..case(DType::F32, &[], [128, 96, 64], "NT", "bias")
    });
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        all.push(every(case(dtype, &[], [128, 256, 256], "NT", "")));
        all.push(case(dtype, &[], [128, 256, 128], "NT", "rows"));
        all.push(case(dtype, &[], [48, 80, 96], "NN", ""));
    }
    all.push(case(DType::I8, &[], [128, 256, 128], "NT", ""));
    all.push(case(DType::I8, &[], [33, 17, 65], "NN", ""));
    // Few rows of codes, for which the skinny kernel has instructions of several widths.
    for (dtype, shape) in [
        (DType::I8, [1, 256, 768]),
        (DType::I8, [31, 64, 256]),
        (DType::F8E4M3, [8, 130, 1040]),
        (DType::F8E4M3, [31, 64, 256]),
        (DType::F8E5M2, [3, 200, 2048]),
    ] {
        all.push(case(dtype, &[], shape, "NT", "bias"));
    }
    all.push(case(DType::I32, &[], [33, 17, 65], "NN", ""));
    all
}

/// Layers of training on codes, whose sums are in f32 before their epilogue.
fn layers_on_codes() -> Vec<Case> {
    let mut all = Vec::new();
    for epilogue in ["scaled", "scaled+bias", "scaled+residual", "scaled+added"] {
        for shape in [[256, 384, 256], [96, 80, 64]] {
            all.push(Case {
                dtype: DType::F8E4M3,
                out: DType::F32,
                batch: vec![],
                shape,
                layout: "NT",
                epilogue,
                thorough: true,
                precision: Precision::Exact,
            });
        }
    }
    all
}

#[test]
fn every_candidate_computes_the_product() {
    let Some(device) = device() else { return };
    for (seed, case) in cases().iter().enumerate() {
        check(&device, case, seed as u64 + 1);
    }
}

#[test]
fn every_candidate_computes_layers_on_codes() {
    let Some(device) = device() else { return };
    for (seed, case) in layers_on_codes().iter().enumerate() {
        check(&device, case, seed as u64 + 1);
    }
}

#[test]
fn every_case_plans_to_one_product() {
    for case in cases().into_iter().chain(layers_on_codes()) {
        let plan = overdrive_passes::plan(
            &case.graph(),
            overdrive_ir::Mode::Compile,
            &bed::target(),
            &Tuning::default(),
        );
        let plan = plan.expect("the graph is bound");
        assert_eq!(plan.steps.len(), 1, "{plan}");
    }
}
