//! The results of passes on one small model, as text: a change of any pass shows here.

use overdrive_ir::{Builder, DType, Dim, Graph, Init, Reducer, TensorType};
use overdrive_passes::{Recipe, bind, cse, differentiate, fold, precision, recognise};
use std::collections::BTreeMap;

/// A layer and a softmax, written out over a named batch.
fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), Dim::from(4)]));
    let scope = b.scope("head");
    let w =
        b.state("w", TensorType::new(DType::F32, [4usize, 3]), Init::Normal { std: 0.5, seed: 1 });
    let logits = x.matmul(w) * 1.0;
    let shifted = (logits - logits.reduce_keep(Reducer::Max, &[1])).exp();
    b.output("y", shifted / shifted.reduce_keep(Reducer::Sum, &[1]));
    drop(scope);
    b.finish().unwrap()
}

fn bound() -> Graph {
    bind(&model(), &BTreeMap::from([("batch".to_owned(), 2)])).unwrap()
}

#[test]
fn bind_gives_names_their_sizes() {
    insta::assert_snapshot!(bound());
}

#[test]
fn recognise_finds_the_layer_and_the_softmax() {
    insta::assert_snapshot!(recognise(&bound()).unwrap());
}

#[test]
fn differentiate_adds_cotangents_and_gradients() {
    let graph = recognise(&bound()).unwrap();
    let (y, w) = (graph.outputs()[0].value, graph.states()[0].value);
    let differentiated = differentiate(&graph, &[y], &[w]).unwrap();
    insta::assert_snapshot!(cse(&fold(&differentiated).unwrap()).unwrap());
}

#[test]
fn precision_lowers_the_contraction() {
    let graph = recognise(&bound()).unwrap();
    insta::assert_snapshot!(precision(&graph, &Recipe { contractions: DType::BF16 }).unwrap());
}
