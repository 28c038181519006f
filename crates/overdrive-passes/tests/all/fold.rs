//! The results of folding and merging on small graphs, written down one by one.

use overdrive_ir::{
    Binary, Builder, Channel, Compare, DType, Expr, Graph, Mesh, Prim, Reducer, TensorType, verify,
};
use overdrive_passes::{cse, dce, fold};

/// Names of the nodes that `fold` leaves of a function of one f32 `[2, 3]` input.
fn left(f: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>) -> Vec<String> {
    let b = Builder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 3]));
    b.output("y", f(&b, x));
    let folded = fold(&b.finish().unwrap()).unwrap();
    verify(&folded).unwrap();
    folded.nodes().iter().map(|n| n.op.name()).collect()
}

#[test]
fn neutral_elements_go() {
    assert_eq!(left(|_, x| (x * 1.0 + 0.0 - 0.0) / 1.0), [""; 0]);
    assert_eq!(left(|_, x| 1.0 * (0.0 + x)), [""; 0]);
    assert_eq!(left(|_, x| -(-x)), [""; 0]);
    assert_eq!(left(|_, x| x.max(x.constant(f64::NEG_INFINITY))), [""; 0]);
    assert_eq!(left(|_, x| x.binary(Binary::Pow, x.constant(2.0))), ["mul"]);
    assert_eq!(left(|_, x| x / 4.0), ["constant", "broadcast", "mul"]);
}

#[test]
fn what_is_not_an_identity_in_floating_point_stays() {
    assert_eq!(left(|_, x| x * 0.0), ["constant", "broadcast", "mul"]);
    assert_eq!(left(|_, x| x / 3.0), ["constant", "broadcast", "div"]);
    assert_eq!(left(|_, x| (x + 1.0) + 2.0).iter().filter(|name| *name == "add").count(), 2);
    assert_eq!(left(|_, x| x.convert(DType::BF16).convert(DType::F32)), ["convert", "convert"]);
}

#[test]
fn movement_cancels_and_merges() {
    assert_eq!(left(|_, x| x.t().t()), [""; 0]);
    assert_eq!(left(|_, x| x.reshape([6usize]).reshape([3usize, 2])), ["reshape"]);
    assert_eq!(left(|_, x| x.reshape([3usize, 2]).reshape([2usize, 3])), [""; 0]);
    assert_eq!(left(|_, x| x.slice_axis(1, 0, 3)), [""; 0]);
    assert_eq!(left(|_, x| x.convert(DType::F64).convert(DType::F32)), [""; 0]);
    assert_eq!(left(|_, x| x.convert(DType::F64).convert(DType::BF16)), ["convert"]);
    let twice = left(|_, x| {
        let wide = x.reshape([1usize, 2, 3]).broadcast_in(&[4usize, 2, 3].into(), &[0, 1, 2]);
        wide.broadcast_in(&[5usize, 4, 2, 3].into(), &[1, 2, 3])
    });
    assert_eq!(twice, ["reshape", "broadcast"]);
}

#[test]
fn what_is_known_is_computed_and_broadcasts_stay_broadcasts() {
    assert_eq!(
        left(|b, _| b.iota(DType::F32, [2usize, 3], 1).reduce(Reducer::Sum, &[1])),
        ["iota", "reduce"]
    );
    assert_eq!(
        left(|b, _| b.full(DType::F32, [2000usize], 2.0).exp() * 3.0),
        ["constant", "broadcast"]
    );
    assert_eq!(left(|_, x| x * (x.constant(2.0) - 1.0)), [""; 0]);
    assert_eq!(
        left(|b, _| b.full(DType::F32, [9usize, 9], 0.0).sum(&[0])),
        ["constant", "broadcast"]
    );
    assert_eq!(left(|b, x| x * b.full(DType::F32, [2000usize], 5e-4).sum(&[0])), [""; 0]);
    let chosen =
        left(|_, x| x.constant(1.0).compare(Compare::Gt, x.constant(0.0)).select(x, x.exp()));
    assert_eq!(chosen, [""; 0]);
}

#[test]
fn a_known_branch_is_inlined() {
    let taken = left(|b, x| {
        let branch = |name: &str, factor: f64| {
            let b = Builder::new(name);
            let x = b.input("0", TensorType::new(DType::F32, [2usize, 3]));
            b.output("0", if factor == 1.0 { x } else { x.tanh() });
            b.finish().unwrap()
        };
        let no = x.constant(1.0).compare(Compare::Lt, x.constant(0.0));
        b.if_else(no, &[x], [branch("then", 1.0), branch("else", 2.0)])[0]
    });
    assert_eq!(taken, ["tanh"]);
}

fn nodes(graph: &Graph) -> usize {
    graph.nodes().len()
}

#[test]
fn equal_work_merges_but_draws_and_collectives_keep_their_identity() {
    let b = Builder::new("f");
    let x = b.input("x", TensorType::new(DType::F32, [4usize]));
    let y = b.input("y", TensorType::new(DType::F32, [4usize]));
    let seed = b.input("seed", TensorType::scalar(DType::U64));
    b.output("sum", (x * y).exp() + (y * x).exp());
    let draw = |site: u64| b.op1(Prim::RandomBits { shape: [4usize].into(), site }, &[seed]);
    b.output("draws", b.concat(&[draw(1), draw(2), draw(1)], 0));
    let reduce = |id: u64| {
        b.op1(
            Prim::AllReduce {
                reducer: Reducer::Sum,
                channel: Channel { id, group: Mesh::default() },
            },
            &[x],
        )
    };
    b.output("ranks", reduce(1) + reduce(2));
    let graph = b.finish().unwrap();
    // mul, exp, add; two draws, concat; two collectives, add.
    assert_eq!(nodes(&cse(&graph).unwrap()), 9);
    assert_eq!(nodes(&dce(&graph).unwrap()), nodes(&graph));
}

/// Who compares graphs until nothing changes would never end where NaN differed from itself.
#[test]
fn attributes_and_constants_that_are_nan_settle() {
    let b = Builder::new("nan");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 4]));
    let row = |value: f64| b.full(DType::F32, [4usize], value);
    let normal = x.layer_norm(row(1.0), row(f64::NAN), f64::NAN).rms_norm(row(1.0), f64::NAN);
    let same = x.layer_norm(row(1.0), row(f64::NAN), f64::NAN);
    let joined = b.concat(&[row(f64::NAN), row(f64::NAN)], 0);
    b.output("y", normal);
    b.output("z", same);
    b.output("w", joined);
    let folded = cse(&fold(&b.finish().unwrap()).unwrap()).unwrap();
    verify(&folded).unwrap();
    assert_eq!(folded, folded.clone());
    // The two layers with one epsilon are one, and what NaN fills is a broadcast.
    let names: Vec<String> = folded.nodes().iter().map(|n| n.op.name()).collect();
    assert_eq!(names.iter().filter(|name| *name == "layer_norm").count(), 1, "{names:?}");
    assert!(!names.contains(&"concat".to_owned()), "{names:?}");
}

#[test]
fn zeros_of_different_sign_are_different() {
    let b = Builder::new("zeros");
    let half = |value: f64| b.full(DType::F32, [2000usize], value);
    b.output("y", b.concat(&[half(0.0), half(-0.0)], 0));
    let folded = fold(&b.finish().unwrap()).unwrap();
    assert!(folded.nodes().iter().any(|node| node.op.name() == "concat"));
}

/// A window over four numbers may be more work than the model.
#[test]
fn few_elements_that_are_much_work_are_left_to_the_device() {
    let b = Builder::new("window");
    let x = b.constant(overdrive_ir::Tensor::from_f32([4usize], &[1.0, 2.0, 3.0, 4.0]));
    let pad = 1usize << 30;
    let window =
        overdrive_ir::Window { size: pad, stride: pad, dilation: 1, pad_low: pad, pad_high: pad };
    let windows = vec![window];
    b.output("y", b.op1(Prim::ReduceWindow { reducer: Reducer::Max, windows }, &[x]));
    let folded = fold(&b.finish().unwrap()).unwrap();
    assert!(folded.nodes().iter().any(|node| node.op.name() == "reduce_window"));
}

#[test]
fn products_of_one_number_are_powers() {
    let product = |value: f64, count: usize| {
        let b = Builder::new("product");
        b.output("y", b.full(DType::F64, [count], value).reduce(Reducer::Prod, &[0]));
        let folded = fold(&b.finish().unwrap()).unwrap();
        assert!(folded.nodes().iter().all(|node| node.op.name() != "reduce"));
        overdrive_ir::eval::eval_tensors(&folded, &[])[0].to_f64()[0]
    };
    assert_eq!(product(2.0, 1001), 2f64.powi(1001));
    assert_eq!(product(1.5, 1 << 40), f64::INFINITY);
}
