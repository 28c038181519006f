//! Products and convolutions of narrow types against the reference, through plans, in every mode.

use crate::support::{EXACT, Session, check, graph, random};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::plan::{StepKind, WindowDimension};
use overdrive_ir::{Array, Builder, Convolution, DType, DotGeneral, Expr, Mode, Prim, TensorType};
use testkit::Tolerance;

#[test]
fn products_of_types_without_a_multiplier_run_wider() {
    let types = [
        (DType::I8, DType::I8, DType::I32),
        (DType::U8, DType::U8, DType::I32),
        (DType::I32, DType::I32, DType::I32),
        (DType::F8E4M3, DType::F8E5M2, DType::F32),
    ];
    for (lhs, rhs, out) in types {
        let b = Builder::new("narrow");
        let x = b.input("x", TensorType::new(lhs, [5usize, 7]));
        let w = b.input("w", TensorType::new(rhs, [7usize, 3]));
        let (batch, contract) = (vec![], vec![(1, 0)]);
        let dot =
            DotGeneral { batch, contract, accumulate: out, out, precision: Default::default() };
        b.output("y", b.op1(Prim::DotGeneral(dot), &[x, w]));
        let inputs = [random(lhs, &[5, 7], 1), random(rhs, &[7, 3], 2)];
        check(&b.finish().unwrap(), &inputs, Tolerance::new(out, 7, 64.0));
    }
}

/// Bytes of the whole range, extremes among them.
fn bytes(shape: &[usize], seed: u64) -> Array {
    let count = shape.iter().product();
    let values = philox::uniforms(seed, 3)
        .take(count)
        .map(|u| ((u * 384.0).floor() - 192.0).clamp(-128.0, 127.0));
    Array::from_f64(DType::I8, shape, values.collect())
}

#[test]
fn products_of_i8_are_exact_and_take_an_epilogue() {
    // Weights in both orders, so many k that blocks of them are summed, and few rows.
    for (m, k, n) in [(3, 700, 40), (70, 1300, 35), (5, 0, 4)] {
        for (weights, contract) in [([n, k], 1), ([k, n], 0)] {
            // Sums stay below 2^24, and powers of two scale them without rounding.
            let scales = Array::build(DType::F32, &[n], |at| [0.5, -2.0][at[0] % 2]);
            let inputs = [bytes(&[m, k], 1), bytes(&weights, 2), scales];
            let scaled = graph("scaled", &inputs, |b, x| {
                let dot = DotGeneral {
                    batch: vec![],
                    contract: vec![(1, contract)],
                    accumulate: DType::I32,
                    out: DType::I32,
                    precision: Default::default(),
                };
                let sums = b.op1(Prim::DotGeneral(dot), &[x[0], x[1]]);
                vec![sums.convert(DType::F32) * x[2], sums]
            });
            check(&scaled, &inputs, EXACT);
        }
    }
}

#[test]
fn convolutions_of_i8_are_exact() {
    let dimension = |stride| WindowDimension {
        stride,
        pad_low: 1,
        pad_high: 1,
        input_dilation: 1,
        kernel_dilation: 1,
    };
    for stride in [1, 2] {
        let inputs = [bytes(&[2, 9, 11, 13], 1), bytes(&[35, 9, 3, 3], 2)];
        let convolution = graph("convolution", &inputs, |b, x| {
            let convolution = Convolution {
                window: vec![dimension(stride); 2],
                groups: 1,
                accumulate: DType::I32,
                out: DType::I32,
            };
            vec![b.op1(Prim::Convolution(convolution), x)]
        });
        check(&convolution, &inputs, EXACT);
    }
}

fn by_codes<'b>(x: &[Expr<'b>]) -> Expr<'b> {
    x[0].quantized_linear(QuantizedLinear::default(), &x[1..3])
}

/// The epilogue of a product by codes, for few rows and for many, in rows that collapse and in rows
/// that do not.
#[test]
fn products_by_codes_take_their_epilogue() {
    let shapes: [&[usize]; 5] = [&[32], &[5, 32], &[2, 3, 32], &[3, 7, 32], &[2, 2, 2, 9, 32]];
    for (dtype, relative) in [(DType::F32, 1e-5), (DType::BF16, 1e-2)] {
        for x in shapes {
            let rows = &x[..x.len() - 1];
            let inputs = [
                random(dtype, x, 1),
                random(DType::I8, &[20, 32], 2),
                random(DType::F32, &[20, 2], 3),
                random(dtype, &[20], 4),
                random(dtype, &[rows, &[20]].concat(), 5),
            ];
            let tolerance = Tolerance { absolute: 40.0 * relative, relative };
            let residual =
                graph("residual", &inputs, |_, x| vec![(by_codes(x) + x[3]).relu() + x[4]]);
            check(&residual, &inputs, tolerance);
            let both =
                graph("two results", &inputs, |_, x| vec![by_codes(x) + x[3], -by_codes(x).relu()]);
            check(&both, &inputs, tolerance);
            let last_first: Vec<usize> = [x.len() - 1].into_iter().chain(0..x.len() - 1).collect();
            let turned =
                graph("turned", &inputs, |_, x| vec![(by_codes(x) + x[4]).transpose(&last_first)]);
            check(&turned, &inputs, tolerance);
            let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
            let session = Session::new(&residual, Mode::Compile, 1, &tensors).unwrap();
            let kinds: Vec<_> =
                session.compiled.plan().steps.iter().map(|step| &step.kind).collect();
            assert!(matches!(kinds[..], [StepKind::Kernel(_)]), "{}", session.compiled.plan());
        }
    }
}
