//! Composites that were written out are found again, with their attributes, at any shape and in
//! other spellings.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::{
    Attention, Gelu, LayerNorm, Linear, OPS, Relu, RmsNorm, Silu, Softmax, gelu::Approximation,
};
use overdrive_ir::{
    Binary, Builder, DType, Expr, Graph, Operation, Reducer, TensorType, Unary, verify,
};
use overdrive_passes::{SPELLINGS, recognise};
use testkit::{Case, Tolerance, compare, random_graph, random_inputs};

/// The graph without composites.
fn written_out(graph: &Graph) -> Graph {
    graph
        .rewrite(&mut |b, node, operands| {
            node.op.prim().is_none().then(|| {
                let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
                b.inline(&written_out(&node.op.expansion(&types, &node.regions)), operands)
            })
        })
        .unwrap()
}

fn composites(graph: &Graph) -> Vec<Operation> {
    graph.nodes().iter().filter(|n| n.op.prim().is_none()).map(|n| n.op.clone()).collect()
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape.to_vec())
}

/// One op between other nodes, so that no edge of the graph helps.
fn with_op(
    op: &Operation,
    shapes: &[&[usize]],
    write: impl for<'b> Fn(&'b Builder, &[Expr<'b>]) -> Expr<'b>,
) -> Graph {
    let b = Builder::new(&op.name());
    let args: Vec<Expr<'_>> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| b.input(&format!("x{i}"), f32s(shape)).unary(Unary::Sin))
        .collect();
    let y = write(&b, &args);
    b.output("y", y.unary(Unary::Cos));
    b.finish().unwrap()
}

fn same_meaning(before: &Graph, after: &Graph) {
    verify(after).unwrap();
    let inputs = random_inputs(before, 3);
    let [expected, found] = [before, after].map(|graph| eval(graph, &inputs, &mut States::new()));
    for (e, f) in expected.iter().zip(&found) {
        // Written out, an op's numbers are constants of the graph's type.
        compare(e, f, Tolerance::new(DType::F32, 1 << 6, 1.0)).unwrap();
    }
}

fn cases() -> Vec<(Operation, Vec<Vec<usize>>)> {
    let gelu = |approximation| Operation::from(Gelu { approximation });
    let causal = Attention::CAUSAL;
    let [full, scaled] = [Attention::FULL, Attention { scale: Some(0.3), ..Attention::CAUSAL }];
    vec![
        (gelu(Approximation::Erf), vec![vec![3, 5, 7]]),
        (gelu(Approximation::Tanh), vec![vec![6]]),
        (Silu.into(), vec![vec![2, 9]]),
        (Relu.into(), vec![vec![2, 3, 4, 5]]),
        (Softmax { axis: 0 }.into(), vec![vec![4, 6]]),
        (Softmax { axis: 3 }.into(), vec![vec![2, 3, 4, 5]]),
        (LayerNorm { eps: 1e-5 }.into(), vec![vec![2, 3, 16], vec![16], vec![16]]),
        (LayerNorm { eps: 1e-12 }.into(), vec![vec![4, 7], vec![7], vec![7]]),
        (RmsNorm { eps: 1e-6 }.into(), vec![vec![2, 3, 16], vec![16]]),
        (RmsNorm { eps: 0.25 }.into(), vec![vec![5, 6], vec![6]]),
        (Linear.into(), vec![vec![2, 3, 4], vec![4, 5]]),
        (Linear.into(), vec![vec![3, 4], vec![4, 4], vec![4]]),
        (full.into(), vec![vec![2, 3, 8, 4], vec![2, 3, 8, 4], vec![2, 3, 8, 4]]),
        (causal.into(), vec![vec![2, 3, 8, 4], vec![2, 3, 8, 4], vec![2, 3, 8, 4]]),
        (causal.into(), vec![vec![1, 2, 5, 6], vec![1, 2, 9, 6], vec![1, 2, 9, 7]]),
        (scaled.into(), vec![vec![2, 4, 8, 4], vec![2, 2, 8, 4], vec![2, 2, 8, 4]]),
    ]
}

#[test]
fn what_an_op_expands_to_is_found_again() {
    for (op, shapes) in cases() {
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let graph = with_op(&op, &shapes, |b, args| b.op(op.clone(), args)[0]);
        let plain = written_out(&graph);
        assert!(composites(&plain).is_empty());
        let found = recognise(&plain).unwrap();
        assert_eq!(composites(&found), std::slice::from_ref(&op), "{shapes:?}");
        same_meaning(&plain, &found);
    }
}

#[test]
fn other_spellings_are_found_too() {
    let mut tried = 0;
    for (op, shapes) in cases() {
        for (_, spelling) in SPELLINGS.iter().filter(|(name, _)| *name == op.name()) {
            let b = Builder::new("try");
            let args: Vec<Expr<'_>> =
                shapes.iter().enumerate().map(|(i, s)| b.input(&i.to_string(), f32s(s))).collect();
            if spelling(&op, &args).is_none() {
                continue;
            }
            tried += 1;
            let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
            let graph = with_op(&op, &shapes, |_, args| spelling(&op, args).unwrap());
            let plain = written_out(&graph);
            let found = recognise(&plain).unwrap();
            assert_eq!(composites(&found), std::slice::from_ref(&op), "{shapes:?}");
            same_meaning(&plain, &found);
        }
    }
    assert!(tried >= 1, "{tried} spellings were tried");
}

/// How an exporter may write an op.
type Form = for<'b> fn(&[Expr<'b>]) -> Expr<'b>;

/// Forms that are brought to the op's own by `recognise` itself.
#[test]
fn forms_of_exporters_are_found() {
    let row = |shape: &[usize]| {
        vec![shape.to_vec(), vec![shape[shape.len() - 1]], vec![shape[shape.len() - 1]]]
    };
    let forms: Vec<(Operation, Vec<Vec<usize>>, Form)> = vec![
        (LayerNorm { eps: 1e-5 }.into(), row(&[2, 3, 12]), |x| {
            let centred = x[0] - x[0].mean_keep(&[2]);
            let squares = centred.binary(Binary::Pow, centred.constant(2.0));
            centred / (squares.mean_keep(&[2]) + 1e-5).sqrt() * x[1] + x[2]
        }),
        (RmsNorm { eps: 1e-6 }.into(), row(&[2, 3, 12])[..2].to_vec(), |x| {
            let root = ((x[0] * x[0]).mean_keep(&[2]) + 1e-6).sqrt();
            x[1].broadcast_to(&x[0].shape()) * (x[0] * root.unary(Unary::Reciprocal))
        }),
        (RmsNorm { eps: 1e-6 }.into(), row(&[5, 7])[..2].to_vec(), |x| {
            x[0] / ((x[0] * x[0]).mean_keep(&[1]) + 1e-6).sqrt() * x[1]
        }),
        (Silu.into(), vec![vec![3, 5]], |x| x[0] / (x[0].unary(Unary::Neg).exp() + 1.0)),
        (Gelu { approximation: Approximation::Erf }.into(), vec![vec![3, 5]], |x| {
            x[0] * ((x[0] / std::f64::consts::SQRT_2).unary(Unary::Erf) + 1.0) * 0.5
        }),
        (Gelu { approximation: Approximation::Tanh }.into(), vec![vec![3, 5]], |x| {
            let cube = x[0].binary(Binary::Pow, x[0].constant(3.0));
            x[0] * 0.5 * (((x[0] + cube * 0.044715) * 0.797_884_583_473_205_6).tanh() + 1.0)
        }),
    ];
    for (op, shapes, form) in forms {
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let graph = with_op(&op, &shapes, |_, args| form(args));
        let found = recognise(&graph).unwrap();
        assert_eq!(composites(&found), std::slice::from_ref(&op), "{op:?}");
        same_meaning(&graph, &found);
    }
}

/// Each spelling is the op, by the op's own definition, on all of its samples that the spelling
/// covers.
#[test]
fn spellings_agree_with_the_definition() {
    for (name, spelling) in SPELLINGS {
        let entry = OPS.iter().find(|entry| entry.name == *name).unwrap();
        let mut checked = 0;
        for sample in (entry.samples)().iter().filter(|s| s.regions.is_empty()) {
            for case in Case::all(sample).unwrap().into_iter().filter(|c| c.dtype == DType::F64) {
                let b = Builder::new(name);
                let args: Vec<Expr<'_>> = case
                    .types()
                    .iter()
                    .enumerate()
                    .map(|(i, ty)| b.input(&i.to_string(), ty.clone()))
                    .collect();
                let empty = case.types().iter().any(|ty| ty.elements() == 0);
                let Some(y) = spelling(&sample.op, &args).filter(|_| !empty) else { continue };
                b.output("y", y);
                let inputs = case.inputs(1);
                let expected = case.sample.op.eval(&inputs, &[]).remove(0);
                let found = eval(&b.finish().unwrap(), &inputs, &mut States::new()).remove(0);
                // If the definition overflows to infinity times zero, a spelling may too.
                if found.floats().iter().all(|v| v.is_finite()) {
                    let magnitude = expected.floats().iter().fold(1.0, |m: f64, v| m.max(v.abs()));
                    compare(&expected, &found, Tolerance::new(DType::F64, 1 << 12, magnitude))
                        .unwrap_or_else(|e| panic!("{name}: {e}"));
                    checked += 1;
                }
            }
        }
        assert!(checked > 0, "{name} is checked at least once");
    }
}

/// A pre-norm block as an exporter writes it.
fn block(b: &Builder) {
    let [t, d] = [8usize, 16];
    let weight = |name: &str, shape: &[usize]| {
        b.state(name, f32s(shape), overdrive_ir::Init::Normal { std: 0.2, seed: 5 })
    };
    let x = b.input("x", f32s(&[2, t, d]));
    let normal = |x, name: &str| {
        let norm = LayerNorm { eps: 1e-5 };
        b.op1(norm, &[x, weight(&format!("{name}.w"), &[d]), weight(&format!("{name}.b"), &[d])])
    };
    let h = normal(x, "ln1");
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let y = h.linear(
            weight(&format!("{name}.w"), &[d, d]),
            Some(weight(&format!("{name}.b"), &[d])),
        );
        y.reshape([2usize, 8, 4, 4]).transpose(&[0, 2, 1, 3])
    });
    let mixed = q.attention(k, v, Attention::CAUSAL)[0].transpose(&[0, 2, 1, 3]).reshape([2, t, d]);
    let x = x + mixed.linear(weight("o.w", &[d, d]), Some(weight("o.b", &[d])));
    let h = normal(x, "ln2").linear(weight("up.w", &[d, 64]), Some(weight("up.b", &[64])));
    let h = b.op1(Gelu { approximation: Approximation::Tanh }, &[h]);
    b.output("y", x + h.linear(weight("down.w", &[64, d]), Some(weight("down.b", &[d]))));
}

#[test]
fn a_transformer_block_is_raised_whole() {
    let b = Builder::new("block");
    block(&b);
    let graph = b.finish().unwrap();
    let plain = written_out(&graph);
    let found = recognise(&plain).unwrap();
    let sorted = |graph: &Graph| {
        let mut names: Vec<String> = composites(graph).iter().map(Operation::name).collect();
        names.sort();
        names
    };
    assert_eq!(sorted(&found), sorted(&graph));
    same_meaning(&plain, &found);
}

#[test]
fn what_others_use_is_left_alone() {
    let b = Builder::new("leak");
    let x = b.input("x", f32s(&[3, 4]));
    let shifted = (x - x.reduce_keep(Reducer::Max, &[1])).exp();
    b.output("exp", shifted);
    b.output("y", shifted / shifted.reduce_keep(Reducer::Sum, &[1]));
    let graph = b.finish().unwrap();
    let found = recognise(&graph).unwrap();
    assert_eq!(composites(&found), []);
    same_meaning(&graph, &found);
}

#[test]
fn random_graphs_keep_their_meaning() {
    let mut raised = 0;
    for seed in 0..60 {
        let plain = written_out(&random_graph(seed, DType::F32));
        let found = recognise(&plain).unwrap();
        same_meaning(&plain, &found);
        raised += composites(&found).len();
    }
    assert!(raised > 20, "{raised} composites were found");
}
