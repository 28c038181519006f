//! Every op against its specification, from its own samples.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::quantized_linear::{Activations, QuantizedLinear};
use overdrive_ir::ops::{FakeQuantize, Float8Linear, OPS, QuantizeRows};
use overdrive_ir::{
    Array, Builder, Compare, DType, Graph, Op, Operation, Overflow, Tensor, TensorType, Types,
    Unary,
};
use overdrive_passes::differentiate;
use testkit::{Case, Gradients, Tolerance, check_expansion, compare, derivative};

#[test]
fn every_expansion_agrees_with_eval() {
    let mut failures = Vec::new();
    for op in OPS {
        let samples = (op.samples)();
        assert!(!samples.is_empty(), "`{}` has no sample", op.name);
        let cases: Vec<Case> =
            samples.iter().flat_map(|s| Case::all(s).unwrap_or_else(|e| panic!("{e}"))).collect();
        // A sample may hold one operand in 16 bits beside others in f32: not each takes f64.
        for dtype in [DType::F32, DType::F64] {
            let takes = cases.iter().any(|case| case.dtype == dtype);
            assert!(takes, "`{}` takes no {dtype}", op.name);
        }
        failures.extend(cases.iter().filter_map(|case| check_expansion(case, 7).err()));
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn names_are_inferred_through_and_ops_survive_their_attributes() {
    for op in OPS {
        assert!(
            op.source.starts_with(&format!("//! `{}", op.name)),
            "{}: open with the formula",
            op.name
        );
        for sample in (op.samples)() {
            let operands: Vec<_> =
                sample.operands.iter().map(|operand| operand.ty.clone()).collect();
            let types = Types { operands: &operands, regions: &sample.regions };
            let results = sample.op.infer(&types);
            assert!(results.is_ok(), "{:?} of named dimensions: {results:?}", sample.op);
            let parsed = Operation::parse(op.name, sample.op.attributes());
            assert_eq!(parsed.as_ref(), Ok(&sample.op), "attributes of `{}`", op.name);
        }
    }
    assert!(OPS.windows(2).all(|pair| pair[0].name < pair[1].name), "OPS is sorted");
}

/// Ops whose gradient is by design not that of their values; each has a test of its own below.
const STRAIGHT_THROUGH: [&str; 5] =
    ["fake_quantize", "float8_linear", "quantize_rows", "quantized_linear", "straight_through"];

/// The f64 cases of every op that has the gradient of its values.
fn smooth_cases() -> impl Iterator<Item = Case> {
    let samples =
        OPS.iter().filter(|op| !STRAIGHT_THROUGH.contains(&op.name)).flat_map(|op| (op.samples)());
    let cases = samples.flat_map(|sample| Case::all(&sample).unwrap_or_else(|e| panic!("{e}")));
    cases.filter(|case| case.dtype == DType::F64)
}

#[test]
fn every_gradient_agrees_with_central_differences() {
    let check = |case: Case| Gradients::at(&case.graph(), &case.inputs(3), 11)?.check(23);
    let failures: Vec<String> = smooth_cases()
        .filter_map(|case| check(case.clone()).err().map(|e| format!("{}: {e}", case.describe())))
        .collect();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_derivative_of_a_gradient_is_checked_like_any_other() {
    let mut failures = Vec::new();
    for op in OPS.iter().filter(|op| !STRAIGHT_THROUGH.contains(&op.name)) {
        for sample in (op.samples)() {
            let cases = Case::all(&sample).unwrap_or_else(|e| panic!("{e}"));
            // The first binding: small distinct sizes.
            let Some(case) = cases.iter().find(|case| case.dtype == DType::F64) else { continue };
            let second = derivative(&case.graph(), &case.inputs(3), 11)
                .and_then(|(graph, point)| Gradients::at(&graph, &point, 31)?.check(47));
            failures.extend(second.err().map(|e| format!("{}: {e}", case.describe())));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn zeroed_and_sign_flipped_gradients_are_rejected() {
    let mut corrupted = 0;
    for case in smooth_cases() {
        let honest =
            Gradients::at(&case.graph(), &case.inputs(3), 11).unwrap_or_else(|e| panic!("{e}"));
        for operand in 0..honest.grads.len() {
            // A gradient that is zero, as that of an empty operand, is the same zeroed or flipped.
            if honest.grads[operand].1.floats().iter().all(|g| *g == 0.0) {
                continue;
            }
            for factor in [0.0, -1.0] {
                let mut wrong = honest.clone();
                wrong.grads[operand].1 = wrong.grads[operand].1.map(|g| g * factor);
                assert!(
                    wrong.check(23).is_err(),
                    "{}: operand {operand} times {factor} passes",
                    case.describe()
                );
                corrupted += 1;
            }
        }
    }
    assert!(corrupted > 100, "only {corrupted} gradients could be corrupted");
}

/// `fake_quantize` with its rounding error, and what clips, frozen at a point: the function whose
/// gradient is the straight-through one.
fn frozen(case: &Case, point: &[Array]) -> Graph {
    let op = case.sample.op.composite::<FakeQuantize>().expect("a sample of fake_quantize");
    let b = Builder::new("frozen");
    let inputs: Vec<_> =
        case.types().into_iter().enumerate().map(|(i, ty)| b.input(&format!("x{i}"), ty)).collect();
    let fixed: Vec<_> = point.iter().map(|array| b.constant(array.to_tensor())).collect();
    let quotient = fixed[0] / fixed[1];
    let code = quotient.unary(Unary::Round) + fixed[2];
    let clamped = code.max(code.constant(op.qmin as f64)).min(code.constant(op.qmax as f64));
    let inside = code.compare(Compare::Eq, clamped);
    let rounded = inputs[0] / inputs[1] + (quotient.unary(Unary::Round) - quotient);
    b.output("y", inside.select(rounded, clamped - inputs[2]) * inputs[1]);
    b.finish().expect("the frozen function is well typed")
}

#[test]
fn the_straight_through_gradient_is_that_of_the_frozen_rounding() {
    for sample in FakeQuantize::samples() {
        for case in Case::all(&sample).unwrap().iter().filter(|case| case.dtype == DType::F64) {
            let point = case.inputs(3);
            let found = Gradients::at(&case.graph(), &point, 11).unwrap();
            let expected = Gradients::at(&frozen(case, &point), &point, 11).unwrap();
            expected.check(23).unwrap();
            for ((_, found), (_, expected)) in found.grads.iter().zip(&expected.grads) {
                let tolerance = Tolerance::new(DType::F64, found.len(), 100.0);
                compare(expected, found, tolerance)
                    .unwrap_or_else(|e| panic!("{}: {e}", case.describe()));
            }
        }
    }
}

#[test]
fn quantized_rows_are_steps_without_a_gradient() {
    for sample in QuantizeRows::samples() {
        for case in Case::all(&sample).unwrap().iter().filter(|case| case.dtype == DType::F64) {
            let found = Gradients::at(&case.graph(), &case.inputs(3), 11).unwrap();
            let flat = found.grads.iter().all(|(_, grad)| grad.floats().iter().all(|g| *g == 0.0));
            assert!(flat, "{}", case.describe());
        }
    }
}

#[test]
fn a_straight_through_gradient_goes_along_its_path_alone() {
    let b = Builder::new("path");
    let ty = TensorType::new(DType::F64, [5usize]);
    let [value, path] = ["value", "path"].map(|name| b.input(name, ty.clone()));
    // The value's own gradient would be 1, the path's is 2 path.
    b.output("y", value.straight_through(path * path));
    let graph = b.finish().unwrap();
    let point = [[1.0, -2.0, 3.0, 0.5, 7.0], [0.3, -0.7, 1.1, -2.0, 0.0]]
        .map(|values| Array::from(&Tensor::from_f64(DType::F64, [5usize], &values)));
    let derived = differentiate(
        &graph,
        &[graph.outputs()[0].value],
        &graph.inputs().iter().map(|p| p.value).collect::<Vec<_>>(),
    );
    let ones = Array::from(&Tensor::from_f64(DType::F64, [5usize], &[1.0; 5]));
    let results =
        eval(&derived.unwrap(), &[point[0].clone(), point[1].clone(), ones], &mut States::new());
    assert_eq!(results[0].floats(), point[0].floats());
    assert_eq!(results[1].floats(), [0.0; 5]);
    let expected: Vec<f64> = point[1].floats().iter().map(|x| 2.0 * x).collect();
    assert_eq!(results[2].floats(), expected);
}

#[test]
fn the_gradient_of_quantized_activations_is_that_of_float_ones() {
    for sample in QuantizedLinear::samples() {
        for case in Case::all(&sample).unwrap().iter().filter(|case| case.dtype == DType::F64) {
            let op = *case
                .sample
                .op
                .composite::<QuantizedLinear>()
                .expect("a sample of quantized_linear");
            let point = case.inputs(3);
            let mut plain = case.clone();
            let float = QuantizedLinear { activations: Activations::Float, ..op };
            plain.sample.op = float.into();
            plain.sample.operands.truncate(float.operands().len());
            let expected =
                Gradients::at(&plain.graph(), &point[..float.operands().len()], 11).unwrap();
            expected.check(23).unwrap_or_else(|e| panic!("{}: {e}", case.describe()));
            let found = Gradients::at(&case.graph(), &point, 11).unwrap();
            // The scale of static activations has none.
            for ((_, found), (_, expected)) in found.grads.iter().zip(&expected.grads) {
                let tolerance = Tolerance::new(DType::F64, found.len(), 100.0);
                // Rounding x changes the gradients of the scales, not that of x.
                if found.shape == point[0].shape {
                    compare(expected, found, tolerance)
                        .unwrap_or_else(|e| panic!("{}: {e}", case.describe()));
                }
            }
        }
    }
}

/// The largest magnitude of a matrix.
fn largest(a: &Array) -> f64 {
    a.floats().iter().fold(0.0, |most: f64, x| most.max(x.abs()))
}

/// A matrix as codes of fp8 hold it, by the formula: `s round(a / s)`, with this scale or the least
/// power of two that keeps the largest magnitude in range.
fn as_fp8(a: &Array, to: DType, given: Option<f64>) -> Array {
    let mut least = 2f64.powi(-126);
    while largest(a) / least > to.max_value() {
        least *= 2.0;
    }
    let scale = given.unwrap_or(least);
    a.map(|x| scale * to.round(x / scale, Overflow::Saturate))
}

/// The product of two matrices, either of them read turned.
fn multiplied([a, b]: [&Array; 2], turned: [bool; 2]) -> Vec<f64> {
    let extents = |x: &Array, turned: bool| {
        if turned { [x.shape[1], x.shape[0]] } else { [x.shape[0], x.shape[1]] }
    };
    let at =
        |x: &Array, turned: bool, [i, j]: [usize; 2]| x.at(&if turned { [j, i] } else { [i, j] });
    let ([m, k], [_, n]) = (extents(a, turned[0]), extents(b, turned[1]));
    let element = |i: usize, j: usize| {
        (0..k).map(|l| at(a, turned[0], [i, l]) * at(b, turned[1], [l, j])).sum::<f64>()
    };
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

#[test]
fn the_gradients_of_fp8_products_are_products_of_fp8_gradients() {
    // The given scale of x clips its range [-3, 3]; that of w is far too large.
    let given = [2f64.powi(-8), 2f64.powi(-5), 2f64.powi(-20)];
    for gradient in [DType::F8E4M3, DType::F8E5M2] {
        for given in [None, Some(given)] {
            gradients_of_fp8_products(gradient, given);
        }
    }
}

fn gradients_of_fp8_products(gradient: DType, given: Option<[f64; 3]>) {
    let granularity = Float8Granularity::Tensor;
    let formats = Float8Linear { forward: DType::F8E4M3, gradient, granularity };
    let (m, k, n) = (5, 7, 3);
    let b = Builder::new("product");
    let x = b.input("x", TensorType::new(DType::F64, [m, k]));
    let w = b.input("w", TensorType::new(DType::F64, [k, n]));
    let scale = |name| b.input(name, TensorType::scalar(DType::F32));
    let scales = given.map(|_| ["scale_x", "scale_w", "scale_dy"].map(scale));
    b.output("y", x.float8_linear(w, scales, formats));
    let graph = b.finish().unwrap();
    let wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    let derived = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let drawn = |shape: [usize; 2], seed: usize, size: f64| {
        let value = |i: usize| size * ((i * 37 + seed * 11) % 101) as f64 / 50.0 - size;
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(value).collect();
        Array::from(&Tensor::from_f64(DType::F64, shape, &values))
    };
    let (x, w, dy) = (drawn([m, k], 1, 3.0), drawn([k, n], 2, 0.02), drawn([m, n], 3, 1e-4));
    let number = |value: f64| Array::from_f64(DType::F32, &[], vec![value]);
    let scales = given.into_iter().flatten().map(number);
    let inputs = [x.clone(), w.clone()].into_iter().chain(scales).chain([dy.clone()]);
    let found = eval(&derived, &inputs.collect::<Vec<_>>(), &mut States::new());
    let most = largest(&dy);
    let forward = [(x, 0), (w, 1)].map(|(a, i)| as_fp8(&a, DType::F8E4M3, given.map(|s| s[i])));
    let ([x, w], dy) = (forward, as_fp8(&dy, gradient, given.map(|s| s[2])));
    let mut expected = vec![
        multiplied([&x, &w], [false, false]),
        multiplied([&dy, &w], [false, true]),
        multiplied([&x, &dy], [true, false]),
    ];
    if given.is_some() {
        // The scales of x and w have no gradient. The cotangent of dy's scale is the magnitude that
        // the next scale follows from.
        let rounded = DType::F32.round(most, Overflow::Ieee);
        expected.extend([vec![0.0], vec![0.0], vec![rounded]]);
    }
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * (1.0 + b.abs());
        assert!(found.floats().iter().zip(expected).all(near), "{found:?} {expected:?}");
    }
}
