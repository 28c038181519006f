//! Products of products, in every order of operands and axes: the same results, with fewer
//! multiplications where the order allows it.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Builder, DType, Expr, Graph, Prim, TensorType, verify};
use overdrive_passes::{dce, reassociate};
use testkit::{Tolerance, compare, random_inputs};

const LONG: usize = 24;

fn products(graph: &Graph) -> Vec<Vec<usize>> {
    let nodes = graph.nodes().iter();
    nodes
        .filter(|node| matches!(node.op.prim(), Some(Prim::DotGeneral(_))))
        .map(|node| graph.ty(node.results[0]).sizes())
        .collect()
}

/// Fails unless both compute the same.
fn same(what: &str, graph: &Graph, other: &Graph) {
    verify(other).unwrap();
    let inputs = random_inputs(graph, 5);
    let [expected, found] = [graph, other].map(|graph| eval(graph, &inputs, &mut States::new()));
    let close = |(expected, found): (&Array, &Array)| {
        compare(expected, found, Tolerance::new(DType::F32, LONG * LONG, 16.0))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    };
    expected.iter().zip(&found).for_each(close);
}

/// x and dy over two axes of rows, their product, and matrices to multiply it with.
fn inputs<'b>(b: &'b Builder) -> [Expr<'b>; 4] {
    let input =
        |name: &str, sizes: &[usize]| b.input(name, TensorType::new(DType::F32, sizes.to_vec()));
    [input("x", &[4, 6, 10]), input("dy", &[4, 6, 12]), input("a", &[2, 10]), input("b", &[12, 3])]
}

#[test]
fn a_product_that_is_only_multiplied_by_narrow_matrices_is_never_made() {
    for turned in [false, true] {
        for swapped in [[false, false], [false, true], [true, false], [true, true]] {
            let b = Builder::new("gradients");
            let [x, dy, down, up] = inputs(&b);
            let pairs = [(0, 0), (1, 1)];
            let mut wide = if swapped[0] { dy.dot(x, &[], &pairs) } else { x.dot(dy, &[], &pairs) };
            let axis = |of: usize| of ^ usize::from(swapped[0]) ^ usize::from(turned);
            wide = if turned { wide.t() } else { wide };
            if turned {
                wide = wide * -0.5;
            }
            // Over the axis of x, and over that of dy.
            let [first, second] = if swapped[1] {
                [down.dot(wide, &[], &[(1, axis(0))]), up.dot(wide, &[], &[(0, axis(1))])]
            } else {
                [wide.dot(down, &[], &[(axis(0), 1)]), wide.dot(up, &[], &[(axis(1), 0)])]
            };
            b.output("first", first);
            b.output("second", second);
            let graph = b.finish().unwrap();
            let other = dce(&reassociate(&graph).unwrap()).unwrap();
            let what = format!("turned {turned}, swapped {swapped:?}");
            same(&what, &graph, &other);
            let sizes = products(&other);
            assert_eq!(sizes.len(), 4, "{what}: {sizes:?}");
            let most = sizes.iter().map(|sizes| sizes.iter().product::<usize>()).max();
            assert_eq!(most, Some(LONG * 3), "{what}: {sizes:?}");
        }
    }
}

#[test]
fn a_product_that_something_else_reads_and_one_that_is_cheaper_stay() {
    let b = Builder::new("read");
    let [x, dy, down, _] = inputs(&b);
    let wide = x.dot(dy, &[], &[(0, 0), (1, 1)]);
    b.output("product", wide.dot(down, &[], &[(0, 1)]));
    b.output("sum", wide.reduce(overdrive_ir::Reducer::Sum, &[0]));
    let graph = b.finish().unwrap();
    assert_eq!(reassociate(&graph).unwrap(), graph);
    // Behind a bottleneck of two numbers the next matrix is wide.
    let b = Builder::new("narrow");
    let [x, _, down, _] = inputs(&b);
    let wide = b.input("wide", TensorType::new(DType::F32, [2usize, 40]));
    b.output("y", x.dot(down, &[], &[(2, 1)]).dot(wide, &[], &[(2, 0)]));
    let graph = b.finish().unwrap();
    assert_eq!(reassociate(&graph).unwrap(), graph);
}

#[test]
fn chains_of_more_products_keep_what_the_others_need() {
    let b = Builder::new("chain");
    let input = |name: &str, sizes: [usize; 2]| b.input(name, TensorType::new(DType::F32, sizes));
    let names = ["p", "q", "r", "s"];
    let sides = [LONG, LONG, LONG, LONG, 1];
    let parts: Vec<_> = (0..4).map(|i| input(names[i], [sides[i], sides[i + 1]])).collect();
    let all = parts.into_iter().reduce(Expr::matmul).unwrap();
    b.output("y", all);
    let graph = b.finish().unwrap();
    let other = dce(&reassociate(&graph).unwrap()).unwrap();
    same("chain", &graph, &other);
    // (p q) r s is p q (r s), whose second product is not taken apart again at once.
    let next = dce(&reassociate(&other).unwrap()).unwrap();
    same("chain again", &graph, &next);
    assert!(products(&next).iter().all(|sizes| sizes.contains(&1)), "{:?}", products(&next));
}

#[test]
fn a_product_of_two_products_does_without_one_of_them() {
    let b = Builder::new("both");
    let input = |name: &str, sizes: [usize; 2]| b.input(name, TensorType::new(DType::F32, sizes));
    let wide = |names: [&str; 2]| input(names[0], [LONG, 2]).matmul(input(names[1], [2, LONG]));
    b.output("y", wide(["p", "q"]).matmul(wide(["r", "s"])));
    let graph = b.finish().unwrap();
    let other = dce(&reassociate(&graph).unwrap()).unwrap();
    same("both", &graph, &other);
    assert_eq!(products(&other), [[LONG, LONG], [LONG, 2], [LONG, LONG]]);
    // A square reads its product twice.
    let b = Builder::new("square");
    let input = |name: &str, sizes: [usize; 2]| b.input(name, TensorType::new(DType::F32, sizes));
    let wide = input("p", [LONG, 2]).matmul(input("q", [2, LONG]));
    b.output("y", wide.matmul(wide));
    b.output("turned", wide.t().matmul(wide));
    let graph = b.finish().unwrap();
    assert_eq!(reassociate(&graph).unwrap(), graph);
}

#[test]
fn random_graphs_compute_the_same() {
    for seed in 0..200 {
        let graph = testkit::random_graph(seed, DType::F64);
        same(&format!("seed {seed}"), &graph, &reassociate(&graph).unwrap());
    }
}
