//! Products of codes against the same products written out in i32.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::plan::WindowDimension;
use overdrive_ir::{
    Builder, Codes, Convolution, DType, DotGeneral, Expr, Graph, Precision, Prim, Tensor,
    TensorType,
};

/// Codes over the whole range of their type.
fn random(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let (low, high) = dtype.int_range().unwrap();
    let values = philox::uniforms(seed, 0).take(shape.iter().product());
    let values: Vec<f64> =
        values.map(|u| (low as f64 + u * (high - low + 1) as f64).floor()).collect();
    Tensor::from_f64(dtype, shape.to_vec(), &values)
}

/// A side: its codes, and its zero point where it has one.
type Side = (DType, Vec<usize>, Option<Vec<usize>>);

/// Both sides as inputs of a graph, and the tensors for them.
fn given<'b>(b: &'b Builder, sides: &[Side; 2]) -> ([Codes<'b>; 2], Vec<Tensor>) {
    let mut tensors = Vec::new();
    let mut input = |dtype: DType, shape: &[usize]| {
        let name = format!("x{}", tensors.len());
        tensors.push(random(dtype, shape, 7 + tensors.len() as u64));
        b.input(&name, TensorType::new(dtype, shape.to_vec()))
    };
    let codes = sides.each_ref().map(|(dtype, shape, zero)| Codes {
        codes: input(*dtype, shape),
        zero: zero.as_ref().map(|zero| input(*dtype, zero)),
    });
    (codes, tensors)
}

/// `codes - zero` in i32.
fn numbers(of: Codes<'_>) -> Expr<'_> {
    let wide = of.codes.convert(DType::I32);
    of.zero.map_or(wide, |zero| wide - zero.convert(DType::I32).broadcast_to(&wide.shape()))
}

fn agree(graph: &Graph, tensors: &[Tensor], what: &str) {
    let [by_codes, written_out] = &eval_tensors(graph, tensors)[..] else { panic!("two outputs") };
    assert_eq!(by_codes.to_ints(), written_out.to_ints(), "{what}");
}

#[test]
fn products_of_codes_are_products_of_what_they_stand_for() {
    let (batch, contract) = ([(1, 0)], [(2, 1)]);
    let zeros = |z: &[usize]| Some(z.to_vec());
    // One zero point, one for each row, one for each column.
    for (left, right) in [
        ((DType::I8, None), (DType::I8, None)),
        ((DType::U8, zeros(&[1, 1, 1])), (DType::I8, None)),
        ((DType::U8, None), (DType::U8, zeros(&[1, 1, 7]))),
        ((DType::I8, zeros(&[3, 2, 1])), (DType::U8, zeros(&[2, 1, 1]))),
        ((DType::I8, zeros(&[1, 1, 1])), (DType::I4, zeros(&[2, 1, 7]))),
    ] {
        let sides = [(left.0, vec![3, 2, 5], left.1), (right.0, vec![2, 5, 7], right.1)];
        let b = Builder::new("dot");
        let ([x, w], tensors) = given(&b, &sides);
        b.output("codes", x.dot(w, &batch, &contract));
        let dot = DotGeneral {
            batch: batch.to_vec(),
            contract: contract.to_vec(),
            accumulate: DType::I32,
            out: DType::I32,
            precision: Precision::Exact,
        };
        b.output("numbers", b.op1(Prim::DotGeneral(dot), &[numbers(x), numbers(w)]));
        agree(&b.finish().unwrap(), &tensors, &format!("{sides:?}"));
    }
}

#[test]
fn convolutions_of_codes_see_zeros_around_what_they_stand_for() {
    let dimension = |stride, pad: [i64; 2], input_dilation, kernel_dilation| WindowDimension {
        stride,
        pad_low: pad[0],
        pad_high: pad[1],
        input_dilation,
        kernel_dilation,
    };
    let windows = [
        [dimension(1, [1, 1], 1, 1), dimension(2, [0, 2], 1, 2)],
        [dimension(1, [2, 1], 2, 1), dimension(1, [-1, 0], 1, 1)],
    ];
    for (window, groups) in windows.into_iter().zip([1, 2]) {
        for (x, w) in [
            ((DType::U8, Some(vec![1; 4])), (DType::I8, None)),
            ((DType::I8, None), (DType::U8, Some(vec![6, 1, 1, 1]))),
            ((DType::U8, Some(vec![1; 4])), (DType::U8, Some(vec![1; 4]))),
        ] {
            let sides = [(x.0, vec![2, 4, 6, 7], x.1), (w.0, vec![6, 4 / groups, 3, 2], w.1)];
            let b = Builder::new("convolution");
            let ([x, w], tensors) = given(&b, &sides);
            let window = window.to_vec();
            let conv = Convolution { window, groups, accumulate: DType::I32, out: DType::I32 };
            b.output("codes", x.convolve(w, &conv));
            b.output("numbers", b.op1(Prim::Convolution(conv), &[numbers(x), numbers(w)]));
            agree(&b.finish().unwrap(), &tensors, &format!("{sides:?} {groups} groups"));
        }
    }
}

#[test]
fn codes_of_shapes_that_do_not_fit_are_an_error_with_their_scope() {
    let b = Builder::new("wrong");
    let ([x, w], _) = given(&b, &[(DType::I8, vec![3, 4], None), (DType::I8, vec![5, 2], None)]);
    b.output("y", x.dot(w, &[], &[(1, 0)]));
    let refused: String = b.finish().unwrap_err().to_string();
    assert!(refused.contains("equal extents"), "{refused}");
}
