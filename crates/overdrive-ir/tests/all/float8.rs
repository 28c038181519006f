//! `float8_linear` with scales of rows and of blocks, against the formula written out. Each operand
//! of each product is rounded by itself, with rounding and scales worked out here.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Float8Linear;
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::{Array, Builder, DType, Graph, TensorType, gradients};

/// A number to nearest in a float with so many bits of fraction and this least exponent.
fn rounded(x: f64, fraction: i32, least: i32) -> f64 {
    if x == 0.0 {
        return x;
    }
    let step = 2f64.powi((x.abs().log2().floor() as i32).max(least) - fraction);
    (x / step).round_ties_even() * step
}

/// Bits of fraction, least exponent and largest value of a format.
fn format(dtype: DType) -> (i32, i32, f64) {
    if dtype == DType::F8E4M3 { (3, -6, 448.0) } else { (2, -14, 57344.0) }
}

/// A matrix by rows.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..rows * columns).map(|i| f(i / columns, i % columns)).collect();
        Self { rows, columns, values }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.columns + j]
    }

    fn turned(&self) -> Self {
        Self::new(self.columns, self.rows, |i, j| self.at(j, i))
    }

    /// As codes hold it: each block has the least power of two that keeps it in range.
    fn on_codes(&self, [high, wide]: [usize; 2], dtype: DType) -> Self {
        let (fraction, least, most) = format(dtype);
        let mut result = self.clone();
        for top in (0..self.rows).step_by(high) {
            for left in (0..self.columns).step_by(wide) {
                let covered: Vec<usize> = (top..self.rows.min(top + high))
                    .flat_map(|i| (left..self.columns.min(left + wide)).map(move |j| (i, j)))
                    .map(|(i, j)| i * self.columns + j)
                    .collect();
                let largest = covered.iter().fold(0.0, |a: f64, &at| a.max(self.values[at].abs()));
                let mut scale = 2f64.powi(-126);
                while largest / scale > most {
                    scale *= 2.0;
                }
                for at in covered {
                    result.values[at] = scale * rounded(self.values[at] / scale, fraction, least);
                }
            }
        }
        result
    }

    /// The product of rows by rows.
    fn by(&self, other: &Self) -> Self {
        Self::new(self.rows, other.rows, |i, j| {
            (0..self.columns).map(|l| self.at(i, l) * other.at(j, l)).sum()
        })
    }

    fn array(&self, dtype: DType, shape: &[usize]) -> Array {
        Array::float(dtype, shape, self.values.clone())
    }
}

/// y and the gradients of x and w as a graph of x, w and dy; M is cut in two.
fn layer(op: Float8Linear, [m, k, n]: [usize; 3]) -> Graph {
    let b = Builder::new("layer");
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape.to_vec());
    let (x, w) = (b.input("x", ty(&[2, m / 2, k])), b.input("w", ty(&[k, n])));
    let y = x.float8_linear(w, None, op);
    let wrt = [x.value(), w.value()];
    b.output("y", y);
    let graph = b.finish().unwrap();
    let b = Builder::new("gradients");
    let values = b.append(&graph).unwrap();
    let y = graph.outputs()[0].value;
    let dy = b.input("dy", ty(&[2, m / 2, n]));
    let found = gradients(&b, &graph, &values, &[(y, dy)], &wrt);
    b.output("y", values[y.0 as usize]);
    ["dx", "dw"].iter().zip(found).for_each(|(name, d)| b.output(name, d.unwrap()));
    b.finish().unwrap()
}

fn follows_the_formula(granularity: Float8Granularity, [m, k, n]: [usize; 3]) {
    let (of_x, of_w) = match granularity {
        Float8Granularity::Row => ([1, usize::MAX], [1, usize::MAX]),
        Float8Granularity::Mx => ([1, 32], [1, 32]),
        _ => ([1, 128], [128, 128]),
    };
    let (forward, gradient) = (DType::F8E4M3, DType::F8E5M2);
    // Rows and columns of many magnitudes, in f32.
    let drawn = |rows, columns, seed: usize| {
        Matrix::new(rows, columns, |i, j| {
            let digits = ((i * 37 + j * 53 + seed * 11) % 101) as f64 / 32.0 - 1.5;
            digits * 2f64.powi((i * 7 / 16 % 9) as i32 - (j * 5 / 16 % 11) as i32)
        })
    };
    let (x, w, dy) = (drawn(m, k, 1), drawn(k, n, 2), drawn(m, n, 3));
    let on = |a: &Matrix, block, dtype| a.on_codes(block, dtype);
    let expected = [
        on(&x, of_x, forward).by(&on(&w.turned(), of_w, forward)),
        on(&dy, of_x, gradient).by(&on(&w, of_w, forward)),
        on(&x.turned(), of_x, forward).by(&on(&dy.turned(), of_x, gradient)),
    ];
    let op = Float8Linear { forward, gradient, granularity };
    let inputs = [
        x.array(DType::F32, &[2, m / 2, k]),
        w.array(DType::F32, &[k, n]),
        dy.array(DType::F32, &[2, m / 2, n]),
    ];
    let found = eval(&layer(op, [m, k, n]), &inputs, &mut States::new());
    let types = inputs.each_ref().map(Array::ty);
    let expansion = overdrive_ir::Operation::from(op).expansion(&types[..2], &[]);
    let expanded = eval(&expansion, &inputs[..2], &mut States::new()).remove(0);
    let names = ["y", "dx", "dw", "y of the expansion"];
    let expected = expected.iter().chain([&expected[0]]);
    for ((name, found), expected) in names.iter().zip(found.iter().chain([&expanded])).zip(expected)
    {
        assert_eq!(found.len(), expected.values.len(), "{name}");
        for (found, expected) in found.floats().iter().zip(&expected.values) {
            // Values are sums in f64, of which a result in f32 may be rounded.
            let off = (found - expected).abs();
            assert!(off <= 1e-6 * (1.0 + expected.abs()), "{name}: {found}, expected {expected}");
        }
    }
}

#[test]
fn each_product_has_scales_of_rows_along_what_it_contracts() {
    follows_the_formula(Float8Granularity::Row, [6, 200, 10]);
}

#[test]
fn each_product_has_scales_of_blocks_along_what_it_contracts() {
    // A block and a part of one, or a part alone, along each axis.
    follows_the_formula(Float8Granularity::Block, [130, 200, 140]);
    follows_the_formula(Float8Granularity::Block, [6, 256, 24]);
}

#[test]
fn each_product_has_scales_of_32_along_what_it_contracts() {
    follows_the_formula(Float8Granularity::Mx, [70, 100, 36]);
    follows_the_formula(Float8Granularity::Mx, [6, 64, 20]);
}

/// Codes of x turned and of w stand for these numbers, exactly, in blocks of 32 with extremes.
#[test]
fn blocks_of_32_hold_zeros_subnormals_and_what_is_largest() {
    let extreme = |i: usize, j: usize| {
        let digits = ((i * 29 + j * 31) % 61) as f64 / 64.0 - 0.5;
        match (i / 32, j / 32) {
            // Zeros alone.
            (0, 0) => 0.0,
            // The largest e4m3 is in range, and the next number asks for twice the scale.
            (0, 1) if i == j - 32 => 448.0,
            (1, 0) if i - 32 == j => -448.25,
            // Codes below the least normal one beside large ones.
            (0, _) => digits * 2f64.powi(-((i + j) as i32 % 10)),
            // Numbers that f32 holds as subnormal ones, under the least scale.
            (1, 1) => (digits * 64.0).trunc() * 2f64.powi(-140),
            // The largest of f32 beside zeros.
            _ if j.is_multiple_of(3) => 0.0,
            _ => digits * f64::from(f32::MAX),
        }
    };
    let (x, w) = (Matrix::new(70, 80, extreme), Matrix::new(80, 64, |i, j| extreme(j, i)));
    let (forward, gradient) = (DType::F8E4M3, DType::F8E4M3);
    let op = Float8Linear { forward, gradient, granularity: Float8Granularity::Mx };
    let inputs = [x.array(DType::F32, &[70, 80]), w.array(DType::F32, &[80, 64])];
    let types = inputs.each_ref().map(Array::ty);
    let operation = overdrive_ir::Operation::from(op);
    let expanded = eval(&operation.expansion(&types, &[]), &inputs, &mut States::new());
    for results in [operation.eval(&inputs, &[]), expanded] {
        for (codes, scales, of) in [(1, 3, x.turned()), (2, 4, w.clone())] {
            let expected = of.on_codes([1, 32], forward);
            let (codes, scales) = (&results[codes], &results[scales]);
            for i in 0..of.rows {
                for j in 0..of.columns {
                    let found = codes.at(&[i, j]) * scales.at(&[i, j / 32]);
                    assert_eq!(found, expected.at(i, j), "{i}, {j} of {}", of.at(i, j));
                }
            }
        }
    }
}

#[test]
fn only_a_scale_for_each_tensor_may_be_given() {
    let b = Builder::new("layer");
    let input = |name, shape: &[usize]| b.input(name, TensorType::new(DType::F32, shape.to_vec()));
    let scales = ["sx", "sw", "sdy"].map(|name| input(name, &[]));
    let granularity = Float8Granularity::Row;
    let op = Float8Linear { forward: DType::F8E4M3, gradient: DType::F8E5M2, granularity };
    b.output("y", input("x", &[4, 8]).float8_linear(input("w", &[8, 4]), Some(scales), op));
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("only a scale for each tensor may come from steps before"), "{error}");
}
