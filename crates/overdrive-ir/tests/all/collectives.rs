//! Collectives over the axes of a mesh: meaning in lockstep, text, types, adjoint of all-to-all.

use overdrive_ir::eval::{States, eval_ranks};
use overdrive_ir::{
    Array, Builder, Channel, DType, Expr, Graph, Mesh, Prim, Reducer, TensorType, gradients,
};

const SIZES: [usize; 3] = [2, 6, 3];

fn mesh() -> Mesh {
    Mesh::new([("data", 2), ("tensor", 3)])
}

fn over(b: &Builder, group: Mesh) -> Channel {
    Channel { id: b.channel(), group }
}

fn tensor() -> Mesh {
    Mesh::new([("tensor", 3)])
}

/// A graph of one function of `x`.
fn of_x(shape: &[usize], f: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>) -> Graph {
    let b = Builder::new("collective");
    let x = b.input("x", TensorType::new(DType::F64, shape.to_vec()));
    b.output("y", f(&b, x));
    b.finish().unwrap()
}

/// A value that tells rank and index.
fn points(shape: &[usize]) -> Vec<Vec<Array>> {
    let array = |rank: usize| {
        Array::build(DType::F64, shape, |at| {
            at.iter().fold(rank as f64 + 1.0, |value, &i| value * 10.0 + i as f64)
        })
    };
    (0..mesh().ranks()).map(|rank| vec![array(rank)]).collect()
}

fn run(graph: &Graph, inputs: &[Vec<Array>]) -> Vec<Array> {
    let mut states = vec![States::new(); mesh().ranks()];
    let outputs = eval_ranks(graph, &mesh(), inputs, &mut states);
    outputs.into_iter().map(|mut of_rank| of_rank.remove(0)).collect()
}

#[test]
fn all_to_all_sends_part_i_to_rank_i_of_the_group() {
    let graph = of_x(&SIZES, |b, x| {
        b.op1(Prim::AllToAll { split: 1, concat: 2, channel: over(b, tensor()) }, &[x])
    });
    let (inputs, outputs) = (points(&SIZES), run(&graph, &points(&SIZES)));
    for (rank, output) in outputs.iter().enumerate() {
        assert_eq!(output.shape, [2, 2, 9]);
        let (first, position) = (rank / 3 * 3, rank % 3);
        let expected = Array::build(DType::F64, &[2, 2, 9], |at| {
            inputs[first + at[2] / 3][0].at(&[at[0], position * 2 + at[1], at[2] % 3])
        });
        assert_eq!(*output, expected, "rank {rank}");
    }
}

#[test]
fn groups_of_an_axis_do_not_hear_the_others() {
    let graph = of_x(&[1], |b, x| {
        let sum = Prim::AllReduce { reducer: Reducer::Sum, channel: over(b, tensor()) };
        let position = b.op1(Prim::RankIndex { along: "data".into() }, &[]);
        b.op1(sum, &[x]) + position.convert(DType::F64) * 1000.0
    });
    let values: Vec<f64> = run(&graph, &points(&[1])).iter().map(|y| y.get(0)).collect();
    assert_eq!(values, [60.0, 60.0, 60.0, 1150.0, 1150.0, 1150.0]);
}

/// The sum over ranks of `<dy, A x>` is that of `<gradient of dy, x>`, for the linear `A`.
#[test]
fn the_gradient_of_all_to_all_is_its_adjoint() {
    let forward = of_x(&SIZES, |b, x| {
        b.op1(Prim::AllToAll { split: 1, concat: 0, channel: over(b, tensor()) }, &[x])
    });
    let b = Builder::new("adjoint");
    let map = b.append(&forward).unwrap();
    let dy = b.input("dy", TensorType::new(DType::F64, vec![6, 2, 3]));
    let wrt = [forward.inputs()[0].value];
    let dx = gradients(&b, &forward, &map, &[(forward.outputs()[0].value, dy)], &wrt)[0].unwrap();
    b.output("y", map[forward.outputs()[0].value.0 as usize]);
    b.output("dx", dx);
    let inner = |a: &Array, b: &Array| -> f64 {
        a.floats().iter().zip(b.floats()).map(|(a, b)| a * b).sum()
    };
    let graph = b.finish().unwrap();
    let (x, weights) = (points(&SIZES), points(&[6, 2, 3]));
    let both: Vec<Vec<Array>> =
        x.iter().zip(&weights).map(|(x, w)| vec![x[0].clone(), w[0].clone()]).collect();
    let mut states = vec![States::new(); mesh().ranks()];
    let results = eval_ranks(&graph, &mesh(), &both, &mut states);
    let left: f64 = results.iter().zip(&both).map(|(r, i)| inner(&r[0], &i[1])).sum();
    let right: f64 = results.iter().zip(&both).map(|(r, i)| inner(&r[1], &i[0])).sum();
    assert_eq!(left, right);
    assert!(left > 0.0);
}

#[test]
fn text_names_the_axes_and_reads_back() {
    let graph = of_x(&SIZES, |b, x| {
        let position = b.op1(Prim::RankIndex { along: "data".into() }, &[]);
        let all = Prim::AllToAll { split: 1, concat: 2, channel: over(b, tensor()) };
        b.op1(all, &[x]) + position.convert(DType::F64)
    });
    let text = graph.to_string();
    assert!(text.contains(r#""group":[["tensor",3]]"#) && text.contains(r#""along":"data""#));
    assert_eq!(text.parse::<Graph>().unwrap(), graph);
    let empty = text.replace(r#"[["tensor",3]]"#, r#"[["tensor",0]]"#);
    let error = empty.parse::<Graph>().unwrap_err().to_string();
    assert!(error.contains("distinct axes of at least one rank each"), "{error}");
    let undivided = text.replace(r#"[["tensor",3]]"#, r#"[["tensor",4]]"#);
    let error = undivided.parse::<Graph>().unwrap_err().to_string();
    assert!(error.contains("an extent of axis 1 that the ranks divide"), "{error}");
}
