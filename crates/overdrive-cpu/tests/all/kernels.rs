//! The named kernels against the reference, through plans, in every mode.

use crate::support::{EXACT, Session, check, graph, random};
use overdrive_cpu::CpuBackend;
use overdrive_ir::eval::philox;
use overdrive_ir::plan::StepKind;
use overdrive_ir::{
    Array, Backend, Builder, DType, Expr, Mode, Prim, Reducer, SortOrder, TensorType, Tuning,
    Window,
};
use proptest::prelude::*;
use testkit::Tolerance;

fn indices(shape: &[usize], low: i64, high: i64) -> Array {
    let count = shape.iter().product();
    let span = (high - low) as f64;
    let values =
        philox::uniforms(9, 9).take(count).map(|u| (low as f64 + u * span).floor()).collect();
    Array::from_f64(DType::I32, shape, values)
}

/// Weights of fewer than 8 bits become bytes, or numbers, by a kernel: where files bring them so,
/// nothing runs in the reference.
#[test]
fn codes_below_a_byte_are_converted_by_a_kernel() {
    for from in [DType::I4, DType::F4E2M1, DType::F6E2M3, DType::F6E3M2] {
        for to in [DType::I8, DType::I32, DType::BF16, DType::F32] {
            for shape in [&[][..], &[7], &[3, 5], &[257, 129], &[2, 3, 5]] {
                let inputs = [random(from, shape, 1)];
                let last_first: Vec<usize> = shape
                    .len()
                    .checked_sub(1)
                    .into_iter()
                    .chain(0..shape.len().max(1) - 1)
                    .collect();
                let converted = graph("convert", &inputs, |_, x| {
                    vec![x[0].convert(to), x[0].transpose(&last_first).convert(to)]
                });
                check(&converted, &inputs, EXACT);
                let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
                let session = Session::new(&converted, Mode::Compile, 1, &tensors).unwrap();
                let steps = &session.compiled.plan().steps;
                let host = steps.iter().find(|step| matches!(step.kind, StepKind::Host(_)));
                assert!(host.is_none(), "{}", session.compiled.plan());
            }
        }
    }
}

/// Types of every width, and those that only the reference knows.
const TYPES: [DType; 8] = [
    DType::F64,
    DType::F32,
    DType::BF16,
    DType::I64,
    DType::I16,
    DType::U8,
    DType::F8E4M3,
    DType::I4,
];

/// Types that a kernel does not take are a step of the host in the plan itself, which says why.
#[test]
fn what_no_kernel_takes_is_a_step_of_the_host_in_the_plan() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    for (dtype, expected) in [
        (DType::F32, None),
        (DType::F8E4M3, Some("no arithmetic on f8e4m3")),
        (DType::I4, Some("less than a byte, as i4")),
    ] {
        let inputs = [random(dtype, &[4, 6], 1)];
        let sort = Prim::Sort { axis: 1, order: SortOrder::Ascending };
        let graph = graph("sort", &inputs, |b, x| b.node(sort.clone(), x, vec![]));
        let tuning = Tuning::default();
        let plan = overdrive_passes::plan(&graph, Mode::Compile, backend.target(), &tuning);
        let plan = plan.unwrap();
        let host = plan.steps.iter().any(|step| matches!(step.kind, StepKind::Host(_)));
        assert_eq!(host, expected.is_some(), "{plan}");
        assert!(expected.is_none_or(|reason| plan.to_string().contains(reason)), "{plan}");
        assert_eq!(
            Session::new(&graph, Mode::Compile, 1, &[inputs[0].to_tensor()])
                .unwrap()
                .compiled
                .plan(),
            &plan,
            "compiling changes no step"
        );
    }
}

#[test]
fn gather_takes_windows_at_clamped_indices() {
    for dtype in TYPES {
        for (axes, rows) in
            [(vec![0], vec![5]), (vec![1], vec![2, 3]), (vec![0, 2], vec![4]), (vec![2], vec![])]
        {
            let shape: Vec<usize> = rows.iter().copied().chain([axes.len()]).collect();
            let inputs = [random(dtype, &[6, 4, 5], 1), indices(&shape, -2, 8)];
            let gather = graph("gather", &inputs, |_, x| vec![x[0].gather(x[1], &axes)]);
            check(&gather, &inputs, EXACT);
            // The same out of a transposed operand.
            let strided = graph("strided gather", &inputs, |_, x| {
                vec![x[0].transpose(&[2, 0, 1]).transpose(&[1, 2, 0]).gather(x[1], &axes)]
            });
            check(&strided, &inputs, EXACT);
        }
    }
}

#[test]
fn scatter_folds_updates_in_the_order_of_the_indices() {
    for dtype in TYPES {
        for reducer in [None, Some(Reducer::Sum), Some(Reducer::Max)] {
            if reducer.is_some() && dtype.is_float() && !dtype.is_arithmetic_float() {
                continue;
            }
            let updates = random(dtype, &[9, 4], 2);
            let inputs = [random(dtype, &[6, 4], 1), indices(&[9, 1], -1, 7), updates];
            let scatter = graph("scatter", &inputs, |b, x| {
                vec![b.op1(Prim::Scatter { axes: vec![0], reducer }, x)]
            });
            let tolerance = Tolerance::new(dtype, 9, 4.0);
            check(&scatter, &inputs, if reducer == Some(Reducer::Sum) { tolerance } else { EXACT });
        }
    }
}

#[test]
fn dynamic_slices_are_clamped_into_range() {
    for dtype in TYPES {
        for start in [[-3, 0, 2], [1, 3, 1], [9, 9, 9]] {
            let starts = Array::from_f64(DType::I64, &[3], start.map(f64::from).to_vec());
            let inputs = [random(dtype, &[4, 5, 6], 1), random(dtype, &[2, 1, 3], 2), starts];
            let slices = graph("dynamic slices", &inputs, |b, x| {
                let sizes = vec![2, 5, 3];
                let slice = b.op1(Prim::DynamicSlice { sizes }, &[x[0], x[2]]);
                vec![slice, b.op1(Prim::DynamicUpdateSlice, x)]
            });
            check(&slices, &inputs, EXACT);
        }
    }
}

#[test]
fn windows_fold_with_padding_strides_and_dilation() {
    let window = |size, stride, dilation, pad_low, pad_high| Window {
        size,
        stride,
        dilation,
        pad_low,
        pad_high,
    };
    let plain = window(1, 1, 1, 0, 0);
    let cases = [
        vec![plain, window(2, 2, 1, 0, 0), window(2, 2, 1, 0, 0)],
        vec![plain, window(3, 1, 1, 1, 1), window(3, 2, 2, 2, 3)],
        vec![window(2, 1, 1, 1, 0), window(2, 3, 2, 0, 1), window(5, 4, 1, 4, 4)],
    ];
    for dtype in TYPES.into_iter().filter(|d| *d != DType::F8E4M3) {
        for windows in &cases {
            for reducer in [Reducer::Sum, Reducer::Max, Reducer::Min] {
                let inputs = [random(dtype, &[3, 7, 8], 1)];
                let pool = graph("reduce_window", &inputs, |b, x| {
                    vec![b.op1(Prim::ReduceWindow { reducer, windows: windows.clone() }, x)]
                });
                check(&pool, &inputs, Tolerance::new(dtype, 20, 8.0));
            }
        }
    }
}

/// Windows of an operand of one to four dimensions. It lies as it says or with its dimensions
/// reversed.
fn windows() -> impl Strategy<Value = (DType, Reducer, Vec<usize>, Vec<Window>, bool)> {
    let none = Just(Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 });
    let some = (1usize..6, 1usize..4, 1usize..4, 0usize..4, 0usize..4).prop_map(
        |(size, stride, dilation, pad_low, pad_high)| Window {
            size,
            stride,
            dilation,
            pad_low,
            pad_high,
        },
    );
    let axis = (prop_oneof![6 => 1usize..20, 1 => 60usize..90], prop_oneof![1 => none, 2 => some]);
    let axis = axis.prop_filter("the window fits", |(extent, w)| {
        extent + w.pad_low + w.pad_high > (w.size - 1) * w.dilation
    });
    let axes = proptest::collection::vec(axis, 1..5).prop_filter("the reference is slow", |axes| {
        axes.iter().map(|a| a.0).product::<usize>() < 40_000
    });
    let dtypes: Vec<DType> =
        [DType::F16, DType::I32, DType::I8, DType::U64, DType::U32, DType::U16, DType::Bool]
            .into_iter()
            .chain(TYPES)
            .filter(|dtype| dtype.bits() >= 8 && *dtype != DType::F8E4M3)
            .collect();
    (proptest::sample::select(dtypes), 0usize..6, axes, any::<bool>()).prop_map(
        |(dtype, reducer, axes, turned)| {
            let of = match dtype {
                DType::Bool => [Reducer::And, Reducer::Or].as_slice(),
                dtype if dtype.is_float() => {
                    &[Reducer::Max, Reducer::Sum, Reducer::Min, Reducer::Max]
                }
                _ => &[Reducer::Max, Reducer::Sum, Reducer::Min],
            };
            let (extents, windows) = axes.into_iter().unzip();
            (dtype, of[reducer % of.len()], extents, windows, turned)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_window_folds_what_the_definition_says(
        (dtype, reducer, extents, windows, turned) in windows(),
    ) {
        let back: Vec<usize> = (0..extents.len()).rev().collect();
        let shape: Vec<usize> =
            if turned { back.iter().map(|&d| extents[d]).collect() } else { extents };
        let inputs = [random(dtype, &shape, 5)];
        let pool = graph("reduce_window", &inputs, |b, x| {
            let x = if turned { x[0].transpose(&back) } else { x[0] };
            vec![b.op1(Prim::ReduceWindow { reducer, windows: windows.clone() }, &[x])]
        });
        let taps = windows.iter().map(|window| window.size).product();
        let tolerance = if dtype.is_float() { Tolerance::new(dtype, taps, 8.0) } else { EXACT };
        check(&pool, &inputs, tolerance);
    }
}

#[test]
fn sort_is_stable_with_nan_at_its_end() {
    for order in [SortOrder::Ascending, SortOrder::Descending] {
        for dtype in TYPES {
            for axis in 0..2 {
                let mut input = random(dtype, &[33, 5], 3);
                if dtype.is_float() {
                    input = input.map(|x| if x > 1.0 { f64::NAN } else { (x * 2.0).round() });
                }
                let inputs = [Array::from(&input.to_tensor())];
                let sort =
                    graph("sort", &inputs, |b, x| b.node(Prim::Sort { axis, order }, x, vec![]));
                check(&sort, &inputs, EXACT);
                let only = graph("argsort", &inputs, |b, x| {
                    vec![b.node(Prim::Sort { axis, order }, x, vec![])[1]]
                });
                check(&only, &inputs, EXACT);
            }
        }
    }
}

#[test]
fn control_flow_runs_on_the_host() {
    let inputs = [random(DType::F32, &[3, 4], 1), Array::from_f64(DType::I32, &[], vec![5.0])];
    let region =
        |name: &str, f: &dyn for<'b> Fn(&'b Builder, Expr<'b>, Expr<'b>) -> Vec<Expr<'b>>| {
            let b = Builder::new(name);
            let x = b.input("x", TensorType::new(DType::F32, [3usize, 4]));
            let n = b.input("n", TensorType::scalar(DType::I32));
            f(&b, x, n)
                .iter()
                .enumerate()
                .for_each(|(i, result)| b.output(&i.to_string(), *result));
            b.finish().unwrap()
        };
    let condition =
        region("condition", &|_, _, n| vec![n.compare(overdrive_ir::Compare::Gt, n.constant(0.0))]);
    let body = region("body", &|_, x, n| vec![x * 1.5, n - n.constant(1.0)]);
    let looped = graph("while", &inputs, |b, x| {
        b.node(
            Prim::While { carried: 2, max_trips: None },
            x,
            vec![condition.clone(), body.clone()],
        )
    });
    check(&looped, &inputs, Tolerance::new(DType::F32, 8, 10.0));
}
