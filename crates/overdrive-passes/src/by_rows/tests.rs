//! Steps by rows compute what they did, and hold no whole logits.

#![allow(clippy::unwrap_used)]

use super::{PARTS, by_rows, made_by_rows};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::plan::Note;
use overdrive_ir::{Array, Builder, DType, Expr, Graph, Init, Mode, TensorType, Tuning, gradients};
use testkit::{random_graph, random_inputs};

/// Changes the losses of tokens; it gets the labels beside them.
type Scaled = for<'b> fn(Expr<'b>, Expr<'b>) -> Expr<'b>;

/// Samples, tokens, width and words.
const SIZES: [usize; 4] = [4, 6, 8, 96];

/// A training step of a head behind a layer; `scaled` may change the losses of tokens, which it
/// gets beside the labels.
fn step(sizes: [usize; 4], scaled: impl for<'b> Fn(Expr<'b>, Expr<'b>) -> Expr<'b>) -> Graph {
    trained(sizes, false, scaled)
}

fn trained(
    [samples, tokens, width, words]: [usize; 4],
    has_bias: bool,
    scaled: impl for<'b> Fn(Expr<'b>, Expr<'b>) -> Expr<'b>,
) -> Graph {
    let b = Builder::new("head");
    let x = b.input("x", TensorType::new(DType::F64, [samples, tokens, width]));
    let labels = b.input("labels", TensorType::new(DType::I64, [samples, tokens]));
    let state = |name: &str, sizes: [usize; 2], seed| {
        b.state(name, TensorType::new(DType::F64, sizes), Init::Normal { std: 0.3, seed })
    };
    let (layer, head) = (state("layer", [width, width], 1), state("head", [width, words], 2));
    let bias = || b.state("bias", TensorType::new(DType::F64, [words]), Init::Constant(0.1));
    let y = x.matmul(layer).tanh().linear(head, has_bias.then(bias));
    let losses = scaled(y.cross_entropy(labels, None)[0], labels);
    b.output("loss", losses.sum(&[0, 1]));
    with_gradients(&b.finish().unwrap())
}

/// The loss, and its gradients by all states.
fn with_gradients(graph: &Graph) -> Graph {
    let b = Builder::new("step");
    let map = b.append(graph).unwrap();
    let loss = graph.outputs()[0].value;
    let of_loss = map[loss.0 as usize];
    let wrt: Vec<_> = graph.states().iter().map(|state| state.value).collect();
    let found = gradients(&b, graph, &map, &[(loss, of_loss.constant(1.0))], &wrt);
    b.output("loss", of_loss);
    for (state, gradient) in graph.states().iter().zip(found) {
        b.output(&format!("of {}", state.name), gradient.unwrap());
    }
    b.finish().unwrap()
}

/// The same step, whose head has a bias.
fn with_bias(sizes: [usize; 4]) -> Graph {
    trained(sizes, true, |losses, _| losses)
}

/// Elements of the largest value of all tokens.
fn largest(graph: &Graph) -> usize {
    let results = graph.nodes().iter().flat_map(|node| &node.results);
    let sizes = results.map(|&value| graph.ty(value).sizes()).filter(|sizes| sizes.len() == 3);
    sizes.map(|sizes| sizes.iter().product()).max().unwrap()
}

fn assert_same(graph: &Graph, cut: &Graph, inputs: &[Array]) {
    let [expected, found] = [graph, cut].map(|graph| eval(graph, inputs, &mut States::new()));
    for (expected, found) in expected.iter().zip(&found) {
        let close = |(a, b): (f64, f64)| a == b || (a - b).abs() <= 1e-12 * (1.0 + a.abs());
        assert!(expected.to_f64().into_iter().zip(found.to_f64()).all(close), "{graph}\n{cut}");
    }
}

fn inputs([samples, tokens, width, words]: [usize; 4]) -> Vec<Array> {
    let x = Array::build(DType::F64, &[samples, tokens, width], |at| {
        ((at[0] * 5 + at[1] * 7 + at[2] * 3) % 11) as f64 / 7.0 - 0.6
    });
    let labels = Array::build(DType::I64, &[samples, tokens], |at| {
        ((at[0] * 31 + at[1] * 17) % words) as f64
    });
    vec![x, labels]
}

#[test]
fn logits_are_made_and_read_in_parts() {
    let weighed: [(&str, Scaled); 3] = [
        ("mean", |losses, _| losses * (1.0 / 24.0)),
        ("weights of labels", |losses, labels| losses * labels.convert(DType::F64)),
        ("squares", |losses, _| losses * losses),
    ];
    for (name, scaled) in weighed {
        let graph = step(SIZES, scaled);
        let whole: usize = [SIZES[0], SIZES[1], SIZES[3]].iter().product();
        assert!(!made_by_rows(&graph).is_empty() && largest(&graph) == whole, "{name}: {graph}");
        let cut = by_rows(&graph, &mut vec![]).unwrap();
        assert_eq!(largest(&cut), whole / PARTS, "{name}: {cut}");
        assert_same(&graph, &cut, &inputs(SIZES));
    }
}

/// Parts of another dimension serve where samples do not divide.
#[test]
fn tokens_go_in_parts_where_samples_cannot() {
    let sizes = [3, 8, 8, 96];
    let graph = step(sizes, |losses, _| losses);
    let mut notes = vec![];
    let cut = by_rows(&graph, &mut notes).unwrap();
    let [Note::ByRows { op, parts, .. }] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!((op.as_str(), *parts), ("linear", PARTS));
    assert_eq!(largest(&cut), 3 * 8 * 96 / PARTS, "{cut}");
    assert_same(&graph, &cut, &inputs(sizes));
}

/// Few rows: the gradient of the weight is larger than the logits, and has a bias beside it.
#[test]
fn the_logits_are_found_beside_wider_gradients() {
    let sizes = [4, 2, 16, 96];
    let graph = with_bias(sizes);
    let cut = by_rows(&graph, &mut vec![]).unwrap();
    assert_eq!(largest(&cut), 4 * 2 * 96 / PARTS, "{cut}");
    assert_same(&graph, &cut, &inputs(sizes));
}

/// Vocabularies are padded to a multiple of something, and the logits cut after it.
#[test]
fn logits_of_a_padded_vocabulary_go_in_parts() {
    let b = Builder::new("padded");
    let x = b.input("x", TensorType::new(DType::F64, [4usize, 6, 8]));
    let labels = b.input("labels", TensorType::new(DType::I64, [4usize, 6]));
    let head = b.state("head", TensorType::new(DType::F64, [8usize, 96]), Init::Constant(0.1));
    let logits = x.matmul(head).slice_axis(2, 0, 90);
    b.output("loss", logits.cross_entropy(labels, None)[0].sum(&[0, 1]));
    let graph = with_gradients(&b.finish().unwrap());
    let cut = by_rows(&graph, &mut vec![]).unwrap();
    assert_eq!(largest(&cut), 6 * 96, "{cut}");
    assert_same(&graph, &cut, &inputs([4, 6, 8, 90]));
}

/// The tightest budget drops nothing of what is made in parts.
#[test]
fn logits_are_not_computed_again() {
    let graph = step(SIZES, |losses, _| losses);
    let device = overdrive_ir::Description::default();
    let tightest = (crate::Rematerialize::Budget { saved_bytes: 0 }, &device);
    let again = crate::rematerialize(&graph, "loss", tightest, &mut vec![]).unwrap();
    let whole: usize = [SIZES[0], SIZES[1], SIZES[3]].iter().product();
    let cut = by_rows(&again, &mut vec![]).unwrap();
    assert!(again.nodes().len() > graph.nodes().len(), "{again}");
    assert_eq!(largest(&cut), whole / PARTS, "{cut}");
    assert_same(&graph, &cut, &inputs(SIZES));
}

#[test]
fn logits_stay_whole_where_rows_meet() {
    let graphs = [
        ("rows that do not divide", step([3, 5, 8, 96], |losses, _| losses)),
        ("logits that are narrow", step([4, 6, 64, 96], |losses, _| losses)),
        (
            "losses over their sum",
            step(SIZES, |losses, _| {
                losses / losses.sum(&[0, 1]).broadcast_in(&losses.shape(), &[])
            }),
        ),
    ];
    for (name, graph) in graphs {
        assert!(made_by_rows(&graph).is_empty(), "{name}: {graph}");
        assert_eq!(by_rows(&graph, &mut vec![]).unwrap().to_string(), graph.to_string(), "{name}");
    }
}

/// An output that holds all logits needs them whole.
#[test]
fn logits_that_are_asked_for_stay_whole() {
    let b = Builder::new("asked");
    let x = b.input("x", TensorType::new(DType::F64, [4, 6, 8]));
    let w = b.state("w", TensorType::new(DType::F64, [8, 96]), Init::Constant(0.1));
    b.output("logits", x.matmul(w).softmax(2));
    let graph = b.finish().unwrap();
    assert_eq!(by_rows(&graph, &mut vec![]).unwrap().to_string(), graph.to_string());
}

#[test]
fn random_graphs_keep_their_meaning() {
    let mut changed = 0;
    for seed in 0..2000 {
        let graph = random_graph(seed, DType::F64);
        let cut = by_rows(&graph, &mut vec![]).unwrap();
        if cut.nodes().len() != graph.nodes().len() {
            changed += 1;
            assert_same(&graph, &cut, &random_inputs(&graph, seed));
        }
    }
    assert!(changed > 20, "{changed}");
}

/// In a plan the arena holds logits of a part, and the gradient of their weight is a sum that
/// products add to.
#[test]
fn a_plan_has_no_more_steps_than_it_needs() {
    let graph = step([8, 64, 32, 512], |losses, _| losses);
    let planned = |graph: &Graph| {
        let device = overdrive_ir::WithoutKernels(overdrive_ir::Description {
            contraction_dtypes: [DType::F64].into(),
            loop_dtypes: DType::ALL.into(),
            ..Default::default()
        });
        crate::plan(graph, Mode::Compile, &device, &Tuning::default()).unwrap()
    };
    let [whole, cut] = [&graph, &by_rows(&graph, &mut vec![]).unwrap()].map(planned);
    let logits = 8 * 64 * 512 * 8;
    assert!(whole.arena_bytes[0] >= logits, "{whole}");
    assert!(cut.arena_bytes[0] < logits * 3 / 4, "{cut}");
    // Logits, losses with their gradient, and two products of it. Work behind a product is in its
    // launch only where the product is whole.
    assert!(cut.steps.len() <= whole.steps.len() + 4 * (PARTS - 1) + 1, "{whole}\n{cut}");
}
