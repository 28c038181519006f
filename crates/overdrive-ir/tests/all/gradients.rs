//! Gradients of every primitive, and gradients of gradients, against central differences of the
//! reference evaluator in f64, along random directions.
//!
//! Long because every primitive has its cases here, and all of them share one check.

use overdrive_ir::eval::{States, eval, eval_ranks, philox};
use overdrive_ir::plan::WindowDimension;
use overdrive_ir::{
    Array, Binary, Builder, Channel, Convolution, DType, DotGeneral, Expr, Graph, Mesh, Overflow,
    Pad, Precision, Prim, Reducer, SortOrder, Tensor, TensorType, Unary, Window, gradients, verify,
};

/// The loss `sum(f(x...) * weights)` for fixed random weights: every result element counts
/// differently.
type Function = Box<dyn for<'b> Fn(&'b Builder, &[Expr<'b>]) -> Expr<'b>>;

fn loss<'b>(b: &'b Builder, y: Expr<'b>) -> Expr<'b> {
    let weights: Vec<f64> = philox::normals(7, 1).take(y.ty().elements()).collect();
    let weights = b.constant(Tensor::from_f64(y.dtype(), y.sizes(), &weights));
    let axes: Vec<usize> = (0..y.rank()).collect();
    (y * weights).reduce(Reducer::Sum, &axes)
}

fn build(shapes: &[Vec<usize>], f: &Function) -> Graph {
    let b = Builder::new("function");
    let args: Vec<Expr<'_>> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| b.input(&format!("x{i}"), TensorType::new(DType::F64, shape.clone())))
        .collect();
    let y = loss(&b, f(&b, &args));
    b.output("loss", y);
    b.finish().unwrap()
}

/// The graph whose one output is the derivative of the one output of `graph` along a fixed random
/// direction.
fn along(graph: &Graph, seed: u64) -> Graph {
    let b = Builder::new("along");
    let map = b.append(graph).unwrap();
    let value = graph.outputs()[0].value;
    let one = b.constant(Tensor::scalar(DType::F64, 1.0));
    let wrt: Vec<_> = graph.inputs().iter().map(|p| p.value).collect();
    let found = gradients(&b, graph, &map, &[(value, one)], &wrt);
    let mut sum = b.constant(Tensor::scalar(DType::F64, 0.0));
    for ((dx, direction), port) in found.iter().zip(directions(graph, seed)).zip(graph.inputs()) {
        let Some(dx) = dx else { continue };
        assert_eq!(dx.ty(), *graph.ty(port.value));
        let axes: Vec<usize> = (0..dx.rank()).collect();
        sum = sum + (*dx * b.constant(direction.to_tensor())).sum(&axes);
    }
    b.output("along", sum);
    let graph = b.finish().unwrap();
    verify(&graph).unwrap();
    graph
}

fn directions(graph: &Graph, seed: u64) -> Vec<Array> {
    let draw = |(i, port): (usize, &overdrive_ir::Port)| {
        let ty = graph.ty(port.value);
        let values = philox::normals(seed, i as u64).take(ty.elements()).collect();
        Array::float(DType::F64, &ty.sizes(), values)
    };
    graph.inputs().iter().enumerate().map(draw).collect()
}

fn value(graph: &Graph, point: &[Array]) -> f64 {
    eval(graph, point, &mut States::new())[0].get(0)
}

/// Fails unless the first and second derivatives of `graph` agree with central differences at
/// `point`.
fn check(name: &str, graph: &Graph, point: &[Array]) {
    let mut graph = graph.clone();
    for order in 1..=2 {
        let seed = 100 + order;
        let derivative = along(&graph, seed);
        let step = 1e-5;
        let moved = |sign: f64| -> Vec<Array> {
            let shift = |(x, d): (&Array, &Array)| {
                let values =
                    x.floats().iter().zip(d.floats()).map(|(x, d)| x + sign * step * d).collect();
                Array::float(DType::F64, &x.shape, values)
            };
            point.iter().zip(&directions(&graph, seed)).map(shift).collect()
        };
        let numeric = (value(&graph, &moved(1.0)) - value(&graph, &moved(-1.0))) / (2.0 * step);
        let exact = value(&derivative, point);
        let scale = 1.0 + numeric.abs().max(value(&graph, point).abs());
        assert!(
            (exact - numeric).abs() < 1e-6 * scale,
            "{name}, order {order}: {exact} against {numeric}"
        );
        graph = derivative;
    }
}

/// Checks `f` at random points of these shapes.
fn check_function(
    name: &str,
    shapes: &[&[usize]],
    f: impl for<'b> Fn(&'b Builder, &[Expr<'b>]) -> Expr<'b> + 'static,
) {
    let f: Function = Box::new(f);
    let shapes: Vec<Vec<usize>> = shapes.iter().map(|s| s.to_vec()).collect();
    let graph = build(&shapes, &f);
    let point = directions(&graph, 42);
    check(name, &graph, &point);
}

fn ints<'b>(b: &'b Builder, shape: &[usize], values: &[i128]) -> Expr<'b> {
    b.constant(Tensor::from_ints(DType::I64, shape.to_vec(), values))
}

#[test]
fn elementwise() {
    use Unary::*;
    for kind in
        [Neg, Abs, Sign, Exp, Expm1, Sin, Cos, Tanh, Erf, Logistic, Floor, Ceil, Round, Reciprocal]
    {
        check_function(&format!("{kind:?}"), &[&[2, 3]], move |_, x| x[0].unary(kind));
    }
    for kind in [Log, Log1p, Sqrt, Rsqrt] {
        check_function(&format!("{kind:?}"), &[&[2, 3]], move |_, x| {
            (x[0] * x[0] + 0.5).unary(kind)
        });
    }
    use Binary::*;
    for kind in [Add, Sub, Mul, Div, Rem, Max, Min] {
        check_function(&format!("{kind:?}"), &[&[2, 3], &[2, 3]], move |_, x| {
            x[0].binary(kind, x[1])
        });
    }
    check_function("pow", &[&[2, 3], &[2, 3]], |_, x| (x[0] * x[0] + 0.1).binary(Pow, x[1]));
    check_function("select", &[&[2, 3], &[2, 3]], |_, x| {
        x[0].compare(overdrive_ir::Compare::Gt, x[1]).select(x[0] * x[1], x[1] * x[1])
    });
    check_function("integers stop gradients", &[&[3]], |_, x| {
        x[0].convert(DType::I32).convert(DType::F64)
    });
}

#[test]
fn powers_of_zero_have_finite_gradients() {
    let power: Function = Box::new(|_, x| x[0].binary(Binary::Pow, x[1]));
    let graph = build(&[vec![4], vec![4]], &power);
    let b = Builder::new("gradient");
    let map = b.append(&graph).unwrap();
    let one = b.constant(Tensor::scalar(DType::F64, 1.0));
    let inputs: Vec<_> = graph.inputs().iter().map(|p| p.value).collect();
    for (i, dx) in
        gradients(&b, &graph, &map, &[(graph.outputs()[0].value, one)], &inputs).iter().enumerate()
    {
        b.output(&i.to_string(), dx.unwrap());
    }
    let point = [vec![0.0; 4], vec![0.0, 1.0, 2.0, 3.0]].map(|v| Array::float(DType::F64, &[4], v));
    let found = eval(&b.finish().unwrap(), &point, &mut States::new());
    assert!(found.iter().all(|a| a.floats().iter().all(|v| v.is_finite())), "{found:?}");
    assert!(found[0].get(1) != 0.0 && found[0].get(2) == 0.0, "d(x^1) is 1 and d(x^2) is 0 at 0");
}

#[test]
fn rounding_is_straight_through_and_small_formats_have_f32_cotangents() {
    for to in [DType::BF16, DType::F8E4M3] {
        let b = Builder::new("round");
        let x = b.input("x", TensorType::new(DType::F32, [2usize, 3]));
        let low = b.op1(Prim::Convert { to, overflow: Overflow::Saturate }, &[x]);
        let dot = DotGeneral {
            batch: vec![],
            contract: vec![(1, 1)],
            accumulate: DType::F32,
            out: DType::F32,
            precision: Precision::Exact,
        };
        b.output("y", b.op1(Prim::DotGeneral(dot), &[low, low]));
        let graph = b.finish().unwrap();
        let b = Builder::new("gradient");
        let map = b.append(&graph).unwrap();
        let seed = b.full(DType::F32, [2usize, 2], 1.0);
        let dx = gradients(
            &b,
            &graph,
            &map,
            &[(graph.outputs()[0].value, seed)],
            &[graph.inputs()[0].value],
        )[0];
        b.output("dx", dx.unwrap());
        let graph = b.finish().unwrap();
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let dx = eval(&graph, &[Array::float(DType::F32, &[2, 3], x.to_vec())], &mut States::new());
        assert_eq!(dx[0].floats(), [10.0, 14.0, 18.0, 10.0, 14.0, 18.0], "{to}");
    }
}

#[test]
fn movement() {
    check_function("broadcast", &[&[3, 1]], |_, x| {
        x[0].broadcast_in(&[2usize, 3, 4].into(), &[1, 2])
    });
    check_function("reshape", &[&[3, 4]], |_, x| x[0].reshape([2usize, 6]).exp());
    check_function("transpose", &[&[2, 3, 4]], |_, x| x[0].transpose(&[2, 0, 1]).exp());
    check_function("slice", &[&[5, 7]], |b, x| {
        let slice = Prim::Slice { start: vec![1, 0], limit: vec![4, 6], stride: vec![1, 4] };
        b.op1(slice, &[x[0].exp()])
    });
    check_function("pad", &[&[4, 3], &[]], |b, x| {
        let pads =
            vec![Pad { low: 2, high: -1, interior: 2 }, Pad { low: -1, high: 3, interior: 0 }];
        b.op1(Prim::Pad { pads }, &[x[0].exp(), x[1].exp()])
    });
    check_function("concat", &[&[2, 3], &[2, 1]], |b, x| b.concat(&[x[0].exp(), x[1], x[0]], 1));
}

#[test]
fn reductions() {
    for reducer in [Reducer::Sum, Reducer::Max, Reducer::Min, Reducer::Prod] {
        check_function(&format!("{reducer:?}"), &[&[3, 4, 2]], move |_, x| {
            x[0].reduce(reducer, &[0, 2])
        });
        check_function(&format!("{reducer:?} window"), &[&[7, 6]], move |b, x| {
            let windows = vec![
                Window { size: 3, stride: 2, dilation: 1, pad_low: 1, pad_high: 0 },
                Window { size: 2, stride: 1, dilation: 3, pad_low: 2, pad_high: 2 },
            ];
            b.op1(Prim::ReduceWindow { reducer, windows }, &[x[0].exp()])
        });
    }
    check_function("window that skips the end", &[&[8]], |b, x| {
        let windows = vec![Window { size: 2, stride: 3, dilation: 1, pad_low: 0, pad_high: 0 }];
        b.op1(Prim::ReduceWindow { reducer: Reducer::Sum, windows }, &[x[0].exp()])
    });
}

#[test]
fn a_product_with_zeros_and_a_shared_maximum_are_exact() {
    let gradient = |reducer: Reducer, x: Vec<f64>| {
        let b = Builder::new("f");
        let input = b.input("x", TensorType::new(DType::F64, [x.len()]));
        b.output("y", input.reduce(reducer, &[0]));
        let graph = b.finish().unwrap();
        let b = Builder::new("gradient");
        let map = b.append(&graph).unwrap();
        let one = b.constant(Tensor::scalar(DType::F64, 1.0));
        let seeds = [(graph.outputs()[0].value, one)];
        b.output("dx", gradients(&b, &graph, &map, &seeds, &[graph.inputs()[0].value])[0].unwrap());
        let point = Array::float(DType::F64, &[x.len()], x);
        eval(&b.finish().unwrap(), &[point], &mut States::new())[0].floats().to_vec()
    };
    assert_eq!(gradient(Reducer::Prod, vec![2.0, 0.0, 3.0]), [0.0, 6.0, 0.0]);
    assert_eq!(gradient(Reducer::Prod, vec![2.0, 0.0, 0.0]), [0.0, 0.0, 0.0]);
    assert_eq!(gradient(Reducer::Max, vec![5.0, 1.0, 5.0]), [0.5, 0.0, 0.5]);
}

#[test]
fn contractions() {
    type Pairs = Vec<(usize, usize)>;
    type Case = (Vec<usize>, Vec<usize>, Pairs, Pairs);
    let cases: Vec<Case> = vec![
        (vec![2, 3], vec![3, 4], vec![], vec![(1, 0)]),
        (vec![3, 2], vec![4, 3], vec![], vec![(0, 1)]),
        (vec![5, 2, 3], vec![3, 5, 4], vec![(0, 1)], vec![(2, 0)]),
        (vec![2, 3, 4, 5], vec![5, 6, 3], vec![(1, 2)], vec![(3, 0)]),
        (vec![2, 3, 4], vec![4, 2, 5], vec![], vec![(0, 1), (2, 0)]),
        (vec![2, 3], vec![2, 3], vec![(1, 1), (0, 0)], vec![]),
        (vec![2], vec![3], vec![], vec![]),
    ];
    for (a, b, batch, contract) in cases {
        let name = format!("{a:?} {b:?} {batch:?} {contract:?}");
        check_function(&name, &[&a.clone(), &b.clone()], move |_, x| {
            x[0].exp().dot(x[1].exp(), &batch, &contract)
        });
    }
}

#[test]
fn convolutions() {
    let plain = WindowDimension::PLAIN;
    type Case = (Vec<usize>, Vec<usize>, Vec<WindowDimension>, usize);
    let cases: Vec<Case> = vec![
        (vec![2, 3, 5, 6], vec![4, 3, 3, 2], vec![plain, plain], 1),
        (
            vec![1, 2, 7, 6],
            vec![2, 2, 3, 3],
            vec![
                WindowDimension { stride: 2, pad_low: 1, pad_high: 1, ..plain },
                WindowDimension { stride: 3, pad_low: 2, pad_high: 0, ..plain },
            ],
            1,
        ),
        (
            vec![2, 4, 9],
            vec![6, 2, 3],
            vec![WindowDimension {
                stride: 2,
                kernel_dilation: 2,
                pad_low: 3,
                pad_high: 1,
                ..plain
            }],
            2,
        ),
        (
            vec![1, 3, 4],
            vec![3, 1, 3],
            vec![WindowDimension {
                input_dilation: 2,
                stride: 2,
                pad_low: 1,
                pad_high: 2,
                ..plain
            }],
            3,
        ),
        (
            vec![2, 2, 8],
            vec![3, 2, 2],
            vec![WindowDimension { pad_low: -1, pad_high: -2, stride: 2, ..plain }],
            1,
        ),
        (
            vec![2, 3, 4, 4],
            vec![5, 3, 1, 1],
            vec![WindowDimension { stride: 3, ..plain }, plain],
            1,
        ),
    ];
    for (x, w, window, groups) in cases {
        let name = format!("{x:?} {w:?} {window:?} {groups}");
        check_function(&name, &[&x.clone(), &w.clone()], move |b, args| {
            let window = window.clone();
            let conv = Convolution { window, groups, accumulate: DType::F64, out: DType::F64 };
            b.op1(Prim::Convolution(conv), &[args[0].exp(), args[1].exp()])
        });
    }
}

#[test]
fn indexing() {
    check_function("gather", &[&[4, 3, 5]], |b, x| {
        // One row twice, one out of range (clamped).
        let indices = ints(b, &[3, 2], &[1, 4, 1, 4, 9, -2]);
        x[0].exp().gather(indices, &[0, 2])
    });
    for reducer in [Some(Reducer::Sum), None, Some(Reducer::Max), Some(Reducer::Min)] {
        check_function(&format!("scatter {reducer:?}"), &[&[4, 3], &[3, 3]], move |b, x| {
            let indices = ints(b, &[3, 1], &[2, 0, 2]);
            b.op1(Prim::Scatter { axes: vec![0], reducer }, &[x[0].exp(), indices, x[1].exp()])
        });
    }
    check_function("dynamic_slice", &[&[4, 5]], |b, x| {
        b.op1(Prim::DynamicSlice { sizes: vec![2, 3] }, &[x[0].exp(), ints(b, &[2], &[1, 4])])
    });
    check_function("dynamic_update_slice", &[&[4, 5], &[2, 3]], |b, x| {
        b.op1(Prim::DynamicUpdateSlice, &[x[0].exp(), x[1].exp(), ints(b, &[2], &[1, 4])])
    });
    for (axis, order) in
        [(0, SortOrder::Ascending), (1, SortOrder::Descending), (2, SortOrder::Ascending)]
    {
        check_function("sort", &[&[3, 4, 2]], move |b, x| {
            b.op(Prim::Sort { axis, order }, &[x[0].exp()])[0]
        });
    }
}

fn region(
    name: &str,
    inputs: &[TensorType],
    f: impl for<'r> Fn(&'r Builder, &[Expr<'r>]) -> Vec<Expr<'r>>,
) -> Graph {
    let b = Builder::new(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, ty)| b.input(&i.to_string(), ty.clone())).collect();
    f(&b, &args).iter().enumerate().for_each(|(i, y)| b.output(&i.to_string(), *y));
    b.finish().unwrap()
}

#[test]
fn both_branches_of_an_if() {
    for (name, threshold) in [("then", -100.0), ("else", 100.0)] {
        check_function(name, &[&[3], &[3]], move |b, x| {
            let types: Vec<TensorType> = x.iter().map(|x| x.ty()).collect();
            let yes = region("then", &types, |_, x| vec![x[0] * x[1].exp(), x[1]]);
            let no = region("else", &types, |_, x| vec![x[0] * x[0], x[0]]);
            let sum = x[0].sum(&[0]);
            let condition = sum.compare(overdrive_ir::Compare::Gt, sum.constant(threshold));
            let results = b.if_else(condition, x, [yes, no]);
            results[0] * results[1]
        });
    }
}

/// `x <- tanh(x w) + x` for as long as `n < stop`, at most `max_trips` times.
fn looped<'b>(b: &'b Builder, x: &[Expr<'b>], stop: f64, max_trips: Option<usize>) -> Expr<'b> {
    let counter = b.constant(Tensor::scalar(DType::I32, 0.0));
    let operands = [counter, x[0], x[1]];
    let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
    let condition = region("condition", &types, |_, a| {
        vec![a[0].compare(overdrive_ir::Compare::Lt, a[0].constant(stop))]
    });
    let body = region("body", &types, |_, a| vec![a[0] + 1.0, a[1].matmul(a[2]).tanh() + a[1]]);
    b.node(Prim::While { carried: 2, max_trips }, &operands, vec![condition, body])[1]
}

#[test]
fn bounded_loops() {
    for (stop, max_trips) in [(3.0, 5), (9.0, 3), (0.0, 4), (3.0, 0)] {
        check_function(&format!("while {stop} {max_trips}"), &[&[2, 3], &[3, 3]], move |b, x| {
            looped(b, x, stop, Some(max_trips))
        });
    }
}

#[test]
fn what_cannot_be_differentiated_says_what_to_do() {
    let b = Builder::new("unbounded");
    let x = b.input("x", TensorType::new(DType::F64, [2usize, 3]));
    let w = b.input("w", TensorType::new(DType::F64, [3usize, 3]));
    let y = looped(&b, &[x, w], 3.0, None);
    b.output("y", y);
    let graph = b.finish().unwrap();
    let b = Builder::new("gradient");
    let map = b.append(&graph).unwrap();
    let seed = b.full(DType::F64, [2usize, 3], 1.0);
    let found = gradients(
        &b,
        &graph,
        &map,
        &[(graph.outputs()[0].value, seed)],
        &[graph.inputs()[0].value],
    );
    assert!(found[0].is_none());
    let error = b.finish().unwrap_err().to_string();
    assert!(error.contains("while at grad") && error.contains("max_trips"), "{error}");
}

#[test]
fn collectives_return_cotangents_to_their_ranks() {
    let mesh = Mesh::new([("data", 2), ("tensor", 3)]);
    const RANKS: usize = 6;
    type Collective = fn(Channel) -> Prim;
    let cases: [(&str, Collective); 6] = [
        ("all_reduce", |channel| Prim::AllReduce { reducer: Reducer::Sum, channel }),
        ("all_reduce max", |channel| Prim::AllReduce { reducer: Reducer::Max, channel }),
        ("all_gather", |channel| Prim::AllGather { axis: 0, channel }),
        ("reduce_scatter", |channel| Prim::ReduceScatter {
            reducer: Reducer::Sum,
            axis: 0,
            channel,
        }),
        ("all_to_all", |channel| Prim::AllToAll { split: 0, concat: 0, channel }),
        ("permute", |channel| Prim::Permute { pairs: vec![(0, 2), (1, 0)], channel }),
    ];
    for (name, collective) in cases {
        let f: Function = Box::new(move |b, x| {
            let channel = Channel { id: b.channel(), group: Mesh::new([("tensor", 3)]) };
            b.op1(collective(channel), &[x[0].exp()])
        });
        let graph = build(&[vec![6]], &f);
        let derivative = along(&graph, 5);
        let ids: Vec<u64> = derivative
            .nodes()
            .iter()
            .filter_map(|n| n.op.prim()?.channel())
            .map(|c| c.id)
            .collect();
        let mut unique = ids.clone();
        unique.dedup();
        assert!(ids.len() >= 2 && ids == unique, "{name}: channels {ids:?}");
        // The loss of the whole mesh moves as the sum of what each rank finds along its own
        // direction.
        let point: Vec<Vec<Array>> =
            (0..RANKS as u64).map(|rank| directions(&graph, 50 + rank)).collect();
        let total = |graph: &Graph, point: &[Vec<Array>]| -> f64 {
            let mut states = vec![States::new(); RANKS];
            eval_ranks(graph, &mesh, point, &mut states)
                .iter()
                .map(|outputs| outputs[0].get(0))
                .sum()
        };
        let direction = directions(&graph, 5);
        let moved = |sign: f64| -> Vec<Vec<Array>> {
            let shift = |x: &Vec<Array>| {
                let values = x[0].floats().iter().zip(direction[0].floats());
                vec![Array::float(
                    DType::F64,
                    &[6],
                    values.map(|(x, d)| x + sign * 1e-5 * d).collect(),
                )]
            };
            point.iter().map(shift).collect()
        };
        let numeric = (total(&graph, &moved(1.0)) - total(&graph, &moved(-1.0))) / 2e-5;
        let exact = total(&derivative, &point);
        assert!(
            (exact - numeric).abs() < 1e-6 * (1.0 + numeric.abs()),
            "{name}: {exact} against {numeric}"
        );
    }
}

#[test]
fn composites_by_their_own_rule_and_by_expansion() {
    check_function("linear, softmax, relu", &[&[2, 3], &[3, 4], &[4]], |_, x| {
        x[0].linear(x[1], Some(x[2])).softmax(1).relu()
    });
}

#[test]
fn scopes_name_what_is_differentiated() {
    let b = Builder::new("scoped");
    let x = b.input("x", TensorType::new(DType::F64, [2usize]));
    let y = {
        let _scope = b.scope("block0/mlp");
        x.exp()
    };
    b.output("y", y);
    let graph = b.finish().unwrap();
    let b = Builder::new("gradient");
    let map = b.append(&graph).unwrap();
    let seed = b.full(DType::F64, [2usize], 1.0);
    let dx = gradients(
        &b,
        &graph,
        &map,
        &[(graph.outputs()[0].value, seed)],
        &[graph.inputs()[0].value],
    );
    b.output("dx", dx[0].unwrap());
    let graph = b.finish().unwrap();
    assert_eq!(graph.nodes().last().unwrap().scope.as_ref(), "block0/mlp/grad");
}
