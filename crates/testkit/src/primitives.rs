//! Samples of the primitives, by family, for the same checks that composites pass.
//!
//! Invariant (`family` is an exhaustive match, and a test asks for each family): a primitive that
//! is added gets samples here. Collectives are not among them: they are evaluated over ranks.

use overdrive_ir::plan::WindowDimension;
use overdrive_ir::{
    Binary, Builder, Compare, Convolution, DType, DotGeneral, Expr, Fill, Graph, Overflow, Pad,
    Precision, Prim, Reducer, Sample, Shape, SortOrder, Tensor, TensorType, Unary, Window,
};

/// Every family that has samples.
pub const FAMILIES: [&str; 23] = [
    "binary",
    "bitcast",
    "broadcast",
    "compare",
    "concat",
    "constant",
    "contraction",
    "convert",
    "convolution",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "if",
    "iota",
    "pad",
    "random_bits",
    "reduce",
    "reduce_window",
    "scatter",
    "select",
    "shape",
    "sort",
    "unary",
];

/// The family of a primitive; `None` for those that only ranks or the graph evaluator can run.
pub fn family(prim: &Prim) -> Option<&'static str> {
    Some(match prim {
        Prim::Constant { .. } => "constant",
        Prim::Unary { .. } => "unary",
        Prim::Binary { .. } => "binary",
        Prim::Compare { .. } => "compare",
        Prim::Select => "select",
        Prim::Convert { .. } => "convert",
        Prim::Bitcast { .. } => "bitcast",
        Prim::Broadcast { .. } => "broadcast",
        Prim::Reshape { .. } | Prim::Transpose { .. } | Prim::Slice { .. } => "shape",
        Prim::Pad { .. } => "pad",
        Prim::Concat { .. } => "concat",
        Prim::Iota { .. } => "iota",
        Prim::Reduce { .. } => "reduce",
        Prim::ReduceWindow { .. } => "reduce_window",
        Prim::DotGeneral(_) => "contraction",
        Prim::Convolution(_) => "convolution",
        Prim::Gather { .. } => "gather",
        Prim::Scatter { .. } => "scatter",
        Prim::DynamicSlice { .. } => "dynamic_slice",
        Prim::DynamicUpdateSlice => "dynamic_update_slice",
        Prim::Sort { .. } => "sort",
        Prim::RandomBits { .. } => "random_bits",
        Prim::If | Prim::While { .. } => "if",
        Prim::RankIndex { .. }
        | Prim::AllReduce { .. }
        | Prim::AllGather { .. }
        | Prim::ReduceScatter { .. }
        | Prim::AllToAll { .. }
        | Prim::Permute { .. } => return None,
    })
}

/// Samples of every family.
pub fn prim_samples() -> Vec<Sample> {
    [elementwise(), movement(), folds(), products(), indexing(), rest()].concat()
}

fn values(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> (TensorType, Fill) {
    (TensorType::new(dtype, shape), Fill::Values(values.to_vec()))
}

fn with(sample: Sample, operands: impl IntoIterator<Item = (TensorType, Fill)>) -> Sample {
    operands.into_iter().fold(sample, |sample, (ty, fill)| sample.operand(ty, fill))
}

fn elementwise() -> Vec<Sample> {
    use Unary::*;
    let unary = |kind| Sample::new(Prim::Unary { kind });
    let binary = |kind| Sample::new(Prim::Binary { kind });
    let mut samples = Vec::new();
    for kind in [Neg, Abs, Sign, Exp, Expm1, Sin, Cos, Tanh, Erf, Logistic, Floor, Ceil, Round] {
        samples.push(unary(kind).normal(["M", "N"]));
    }
    // Away from the poles, and close to where cancellation would show.
    for kind in [Log, Sqrt, Rsqrt, Reciprocal, Log1p] {
        samples.push(unary(kind).uniform(["M", "N"], 0.1, 9.0));
    }
    samples.push(unary(Log1p).uniform([9usize], -1e-3, 1e-3));
    samples.push(unary(Expm1).uniform([9usize], -1e-3, 1e-3));
    for kind in [Neg, Abs, Sign, Not] {
        samples.push(with(
            unary(kind),
            [values(DType::I8, [5usize], &[-128.0, -1.0, 0.0, 1.0, 127.0])],
        ));
    }
    samples.push(with(unary(Not), [values(DType::Bool, [3usize], &[0.0, 1.0, 1.0])]));
    for kind in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min] {
        samples.push(binary(kind).normal(["M", "N"]).normal(["M", "N"]));
    }
    for kind in [Binary::Div, Binary::Rem, Binary::Pow] {
        samples.push(binary(kind).uniform(["N"], 1.5, 3.0).uniform(["N"], 0.5, 1.2));
    }
    // Wrap-around, division by zero, truncation toward zero, shifts by the width and more.
    for kind in
        [Binary::Add, Binary::Mul, Binary::Div, Binary::Rem, Binary::Shl, Binary::Shr, Binary::Xor]
    {
        let left = values(DType::I32, [6usize], &[-7.0, 2147483647.0, 5.0, -1.0, 0.0, 9.0]);
        let right = values(DType::I32, [6usize], &[2.0, 2.0, 0.0, 31.0, 32.0, 3.0]);
        samples.push(with(binary(kind), [left, right]));
    }
    for kind in [Binary::And, Binary::Or, Binary::Xor] {
        let pair =
            [[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]].map(|v| values(DType::Bool, [4usize], &v));
        samples.push(with(binary(kind), pair));
    }
    for kind in [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge] {
        let sample = || Sample::new(Prim::Compare { kind });
        let special =
            [&[0.0, 1.0, f64::NAN, f64::INFINITY, 2.0], &[-0.0, 2.0, f64::NAN, f64::INFINITY, 1.0]];
        samples.push(with(sample(), special.map(|v| values(DType::F32, [5usize], v))));
        samples.push(with(
            sample(),
            [&[3.0, 200.0], &[3.0, 100.0]].map(|v| values(DType::U8, [2usize], v)),
        ));
    }
    let choice = (TensorType::new(DType::Bool, ["M", "N"]), Fill::Index(2));
    samples.push(with(Sample::new(Prim::Select), [choice]).normal(["M", "N"]).normal(["M", "N"]));
    for (to, overflow) in [
        (DType::F32, Overflow::Ieee),
        (DType::BF16, Overflow::Ieee),
        (DType::F16, Overflow::Saturate),
        (DType::F8E4M3, Overflow::Saturate),
        (DType::I8, Overflow::Saturate),
        (DType::Bool, Overflow::Ieee),
    ] {
        samples.push(Sample::new(Prim::Convert { to, overflow }).uniform([9usize], -200.0, 200.0));
    }
    let codes = values(DType::I32, [4usize], &[-3.0, 0.0, 7.0, 100000.0]);
    samples.push(with(
        Sample::new(Prim::Convert { to: DType::F32, overflow: Overflow::Ieee }),
        [codes],
    ));
    samples.push(Sample::new(Prim::Bitcast { to: DType::I32 }).normal([9usize]));
    samples
}

fn movement() -> Vec<Sample> {
    let pads = vec![Pad { low: 1, high: -1, interior: 2 }, Pad { low: -2, high: 3, interior: 0 }];
    let slice = Prim::Slice { start: vec![1, 0], limit: vec![4, 7], stride: vec![1, 3] };
    let broadcast = |shape: &[usize], dims: &[usize]| {
        Sample::new(Prim::Broadcast { shape: Shape::from(shape), dims: dims.to_vec() })
    };
    vec![
        broadcast(&[2, 3, 5], &[1]).normal([3usize]),
        broadcast(&[4, 3, 5], &[0, 2]).normal([1usize, 5]),
        broadcast(&[2, 0], &[]).normal(Shape::default()),
        Sample::new(Prim::Reshape { shape: [3usize, 10].into() }).normal([5usize, 6]),
        Sample::new(Prim::Transpose { perm: vec![2, 0, 1] }).normal(["A", "B", "C"]),
        Sample::new(slice).normal([5usize, 7]),
        with(
            Sample::new(Prim::Pad { pads }).normal([3usize, 5]),
            [values(DType::F32, Shape::default(), &[0.5])],
        ),
        Sample::new(Prim::Concat { axis: 1 })
            .normal([2usize, 3])
            .normal([2usize, 1])
            .normal([2usize, 0]),
    ]
}

fn folds() -> Vec<Sample> {
    let reduce =
        |reducer, axes: &[usize]| Sample::new(Prim::Reduce { reducer, axes: axes.to_vec() });
    let window = |size, stride, dilation, [pad_low, pad_high]: [usize; 2]| Window {
        size,
        stride,
        dilation,
        pad_low,
        pad_high,
    };
    let windows = vec![window(3, 2, 1, [1, 0]), window(2, 1, 2, [0, 1])];
    let flags = (TensorType::new(DType::Bool, [4usize, 3]), Fill::Index(2));
    let mut samples = Vec::new();
    for reducer in [Reducer::Sum, Reducer::Prod, Reducer::Max, Reducer::Min] {
        samples.push(reduce(reducer, &[1]).normal(["M", "N"]));
        samples.push(reduce(reducer, &[0, 2]).normal([3usize, 4, 2]));
        samples.push(
            Sample::new(Prim::ReduceWindow { reducer, windows: windows.clone() })
                .normal([7usize, 5]),
        );
    }
    for reducer in [Reducer::And, Reducer::Or] {
        samples.push(with(reduce(reducer, &[0]), [flags.clone()]));
    }
    samples
}

fn products() -> Vec<Sample> {
    let dot = |batch: &[(usize, usize)], contract: &[(usize, usize)]| {
        let (accumulate, out, precision) = (DType::F32, DType::F32, Precision::Exact);
        Sample::new(Prim::DotGeneral(DotGeneral {
            batch: batch.to_vec(),
            contract: contract.to_vec(),
            accumulate,
            out,
            precision,
        }))
    };
    let dimension =
        |stride, [pad_low, pad_high]: [i64; 2], [input_dilation, kernel_dilation]: [usize; 2]| {
            WindowDimension { stride, pad_low, pad_high, input_dilation, kernel_dilation }
        };
    let convolution = |window: Vec<WindowDimension>, groups| {
        Sample::new(Prim::Convolution(Convolution {
            window,
            groups,
            accumulate: DType::F32,
            out: DType::F32,
        }))
    };
    vec![
        dot(&[], &[(1, 0)]).normal(["M", "K"]).normal(["K", "N"]),
        dot(&[(0, 1)], &[(2, 0), (1, 2)]).normal([2usize, 3, 5]).normal([5usize, 2, 3, 4]),
        dot(&[], &[]).normal([3usize]).normal([2usize]),
        convolution(vec![dimension(1, [1, 1], [1, 1]); 2], 1)
            .normal([2usize, 3, 5, 4])
            .normal([4usize, 3, 3, 3]),
        // Transposed (dilated input), cropped by negative padding, grouped.
        convolution(vec![dimension(1, [2, -1], [2, 1])], 2)
            .normal([1usize, 4, 5])
            .normal([6usize, 2, 3]),
    ]
}

fn indexing() -> Vec<Sample> {
    // Beyond both ends, and the same place twice.
    let rows = || values(DType::I32, [4usize, 1], &[2.0, -3.0, 9.0, 2.0]);
    let cells = || values(DType::I64, [3usize, 2], &[0.0, 1.0, 4.0, 2.0, 1.0, 0.0]);
    let apart = || values(DType::I32, [3usize, 1], &[4.0, 0.0, 2.0]);
    let starts = || values(DType::I64, [2usize], &[3.0, -1.0]);
    let scatter =
        |reducer| Sample::new(Prim::Scatter { axes: vec![0], reducer }).normal([5usize, 3]);
    let sort = |order, shape: Shape| Sample::new(Prim::Sort { axis: 1, order }).normal(shape);
    let mut samples = vec![
        with(Sample::new(Prim::Gather { axes: vec![0] }).normal([5usize, 3]), [rows()]),
        with(Sample::new(Prim::Gather { axes: vec![0, 2] }).normal([5usize, 2, 3]), [cells()]),
        with(scatter(None), [apart()]).normal([3usize, 3]),
        with(Sample::new(Prim::DynamicSlice { sizes: vec![2, 3] }).normal([4usize, 5]), [starts()]),
        with(
            Sample::new(Prim::DynamicUpdateSlice).normal([4usize, 5]).normal([2usize, 3]),
            [starts()],
        ),
        sort(SortOrder::Ascending, ["M", "N"].into()),
        sort(SortOrder::Descending, [3usize, 9].into()),
    ];
    for reducer in [Reducer::Sum, Reducer::Max, Reducer::Min] {
        samples.push(with(scatter(Some(reducer)), [rows()]).normal([4usize, 3]));
    }
    samples
}

fn rest() -> Vec<Sample> {
    let number = TensorType::new(DType::F32, [3usize]);
    let region = |name: &str, f: &dyn for<'b> Fn(Expr<'b>) -> Expr<'b>| -> Graph {
        let b = Builder::new(name);
        b.output("y", f(b.input("x", TensorType::new(DType::F32, [3usize]))));
        b.finish().expect("the sample's regions are well typed")
    };
    let branches = [region("then", &|x| x.exp()), region("else", &|x| x * x)];
    let branch = |flag: f64| {
        let sample = with(Sample::new(Prim::If), [values(DType::Bool, Shape::default(), &[flag])]);
        branches.iter().cloned().fold(sample.operand(number.clone(), Fill::Normal), Sample::region)
    };
    let condition =
        region("condition", &|x| x.sum(&[0]).compare(Compare::Lt, x.sum(&[0]).constant(20.0)));
    let body = region("body", &|x| x * 1.5 + 0.25);
    let repeat =
        Sample::new(Prim::While { carried: 1, max_trips: Some(8) }).uniform([3usize], 0.5, 1.0);
    let seed = || values(DType::U64, Shape::default(), &[12345.0]);
    vec![
        Sample::new(Prim::Constant {
            value: Tensor::from_f64(DType::I32, [3usize], &[1.0, -2.0, 3.0]),
        }),
        Sample::new(Prim::Iota { dtype: DType::I32, shape: [2usize, 5].into(), axis: 1 }),
        with(Sample::new(Prim::RandomBits { shape: [3usize, 7].into(), site: 5 }), [seed()]),
        branch(1.0),
        branch(0.0),
        repeat.region(condition).region(body),
    ]
}
