//! A file whose dimensions are free says at other sizes what the model says there.

use overdrive_formats::onnx::{Binding, Dialect, Free, Model};
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{Builder, DType, Expr, Graph, Init, Tensor, TensorType};
use overdrive_models::Activation;
use overdrive_models::bert::{Bert, Kin, Pooling};
use std::collections::BTreeMap;
use std::path::Path;

type Sizes = BTreeMap<String, usize>;

fn sizes(named: &[(&str, usize)]) -> Sizes {
    named.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
}

fn built_in(name: &str, asked: &Sizes) -> Graph {
    let model = overdrive_models::find(name).unwrap();
    let mut sizes = sizes(model.dimensions);
    sizes.extend(asked.clone());
    overdrive_passes::bind(&(model.build)().unwrap(), &sizes).unwrap()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let draw = |ty: &TensorType| {
        let values: Vec<f64> =
            (0..ty.elements()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
        match ty.dtype.is_float() {
            true => Tensor::from_f64(ty.dtype, ty.shape.clone(), &values),
            false => {
                let ids: Vec<i128> = (0..ty.elements()).map(|i| (i * 37 % 101) as i128).collect();
                Tensor::from_ints(ty.dtype, ty.shape.clone(), &ids)
            }
        }
    };
    graph.inputs().iter().map(|port| draw(graph.ty(port.value))).collect()
}

/// The file of a model, at all sizes of these dimensions.
fn encoded(names: &[&str], build: &dyn Fn(&Sizes) -> Graph) -> Result<Vec<u8>, String> {
    let free = Free::new(names.iter().map(|&name| (name, None)));
    let graphs: Vec<Graph> = free.corners().iter().map(build).collect();
    let file = free.made(Path::new("model"), &graphs, Dialect::Standard);
    file.and_then(|file| file.to_bytes()).map_err(|e| e.to_string())
}

/// The file, read at other sizes, computes what the model computes there.
fn assert_free(names: &[&str], build: &dyn Fn(&Sizes) -> Graph, elsewhere: &[&[usize]]) {
    let bytes = encoded(names, build).unwrap();
    let model = Model::decode(Path::new("model"), bytes.into()).unwrap();
    let mut found: Vec<String> = model.dimensions().unwrap().into_iter().collect();
    found.sort_by_key(|name| names.iter().position(|known| known == name));
    assert_eq!(found, names);
    for chosen in elsewhere {
        let chosen: Sizes =
            names.iter().map(|&name| name.to_owned()).zip(chosen.iter().copied()).collect();
        let read = model.graph(&Binding { sizes: chosen.clone(), ..Binding::default() }).unwrap();
        let ours = build(&chosen);
        let (found, expected) =
            (eval_tensors(&read, &inputs(&ours)), eval_tensors(&ours, &inputs(&ours)));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.ty(), expected.ty(), "{chosen:?}");
            let pairs = found.to_f64().into_iter().zip(expected.to_f64());
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-4, "{chosen:?}: {worst:e}");
        }
    }
}

/// A model of one input `x` of `[B, T, 6]`.
fn of_tokens(build: impl Fn(&Builder, Expr<'_>)) -> impl Fn(&Sizes) -> Graph {
    move |sizes| {
        let b = Builder::new("tokens");
        let x = b.input("x", TensorType::new(DType::F32, [sizes["batch"], sizes["tokens"], 6]));
        build(&b, x);
        b.finish().unwrap()
    }
}

const BOTH: [&str; 2] = ["batch", "tokens"];

#[test]
fn built_in_models_are_written_for_any_batch() {
    for name in ["digits-mlp", "digits-conv", "quick-inference"] {
        assert_free(&["batch"], &|sizes| built_in(name, sizes), &[&[1], &[5]]);
    }
}

#[test]
fn a_transformer_is_written_for_any_batch_and_length() {
    let bert = Bert {
        vocabulary: 101,
        positions: 24,
        kin: Kin::Bert { segments: 2 },
        width: 8,
        layers: 1,
        heads: 2,
        hidden: 16,
        activation: Activation::Gelu(Approximation::Tanh),
        eps: 1e-5,
        pooling: Pooling::Mean,
        normalised: true,
        classes: None,
    };
    let graph = bert.build().unwrap();
    let bound = |sizes: &Sizes| overdrive_passes::bind(&graph, sizes).unwrap();
    assert_free(&BOTH, &bound, &[&[1, 1], &[2, 9], &[5, 2]]);
}

#[test]
fn extents_may_be_products_of_dimensions() {
    let model = of_tokens(|b, x| {
        let [batch, tokens] = [0, 1].map(|axis| x.ty().sizes()[axis]);
        let w = b.state("w", TensorType::new(DType::F32, [6, 2]), Init::Constant(0.5));
        let rows = x.reshape([batch * tokens, 6]).matmul(w);
        b.output("rows", rows);
        b.output("pairs", rows.reshape([2 * tokens, batch]));
    });
    assert_free(&BOTH, &model, &[&[1, 1], &[7, 5]]);
}

#[test]
fn what_mixes_rows_is_written_too() {
    let model = of_tokens(|b, x| b.output("y", x.sum(&[0, 1])));
    assert_free(&BOTH, &model, &[&[4, 3], &[1, 20]]);
}

/// A constant of `[T, T]`, or of `[1, T]`, as a function of its coordinates.
fn constant<'b>(b: &'b Builder, shape: [usize; 2], of: impl Fn(usize, usize) -> i128) -> Expr<'b> {
    let values: Vec<i128> =
        (0..shape[0] * shape[1]).map(|at| of(at / shape[1], at % shape[1])).collect();
    b.constant(Tensor::from_ints(DType::I64, shape, &values))
}

#[test]
fn constants_that_count_coordinates_are_counted_again() {
    let model = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("positions", constant(b, [1, tokens], |_, j| j as i128));
        b.output("backwards", constant(b, [1, tokens], |_, j| (tokens - 1 - j) as i128));
        b.output("flat", constant(b, [tokens, tokens], |i, j| (i * tokens + j) as i128));
        b.output("columns", constant(b, [tokens, 3], |i, j| [7, i as i128, 2 * i as i128][j]));
        b.output("zeros", constant(b, [tokens, 2], |_, _| 0));
        b.output("last", constant(b, [1, 1], |_, _| tokens as i128 - 1));
        b.output("y", x.sum(&[2]));
    });
    assert_free(&BOTH, &model, &[&[1, 1], &[2, 21]]);
}

#[test]
fn masks_that_are_a_step_are_made_again() {
    let model = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        let of = |dtype, f: &dyn Fn(usize, usize) -> bool, values: [f64; 2]| {
            let at = |at: usize| values[usize::from(f(at / tokens, at % tokens))];
            let values: Vec<f64> = (0..tokens * tokens).map(at).collect();
            b.constant(Tensor::from_f64(dtype, [tokens, tokens], &values))
        };
        b.output("causal", of(DType::F32, &|i, j| j <= i, [f64::NEG_INFINITY, 0.0]).exp());
        b.output("strict", of(DType::Bool, &|i, j| j < i, [0.0, 1.0]));
        b.output("first", of(DType::F32, &|_, j| j < 2, [0.25, 0.75]));
        b.output("y", x.sum(&[2]));
    });
    assert_free(&BOTH, &model, &[&[1, 1], &[2, 21]]);
}

#[test]
fn what_is_no_sum_of_products_is_refused_where_it_is() {
    let square = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", constant(b, [1, 1], |_, _| (tokens * tokens) as i128));
    });
    let error = encoded(&BOTH, &square).unwrap_err();
    assert!(error.contains("Constant") && error.contains("batch, tokens"), "{error}");
    let band = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", constant(b, [tokens, tokens], |i, j| i128::from(i.abs_diff(j) < 2)));
    });
    assert!(encoded(&BOTH, &band).is_err(), "a band is no step");
    let half = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", x.slice_axis(1, 0, tokens / 2));
    });
    let error = encoded(&BOTH, &half).unwrap_err();
    assert!(error.contains('y') && error.contains("size"), "{error}");
}

/// Up to its largest corner it looks as if it did not depend on the size.
#[test]
fn a_guess_that_fails_at_the_witness_is_found() {
    let capped = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", constant(b, [1, 1], |_, _| tokens.min(12) as i128));
    });
    assert!(encoded(&BOTH, &capped).is_err());
    let beyond = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", constant(b, [1, 1], |_, _| tokens.min(100) as i128));
    });
    let free = |usual| Free::new([("batch", None), ("tokens", usual)]);
    let outcome = |free: &Free| {
        let graphs: Vec<Graph> = free.corners().iter().map(&beyond).collect();
        free.made(Path::new("model"), &graphs, Dialect::Standard)
    };
    assert!(outcome(&free(Some(128))).is_err(), "the usual size is looked at");
}

#[test]
fn a_graph_of_another_structure_or_another_input_is_refused() {
    let more = of_tokens(|b, x| {
        let tokens = x.ty().sizes()[1];
        b.output("y", if tokens > 4 { x.exp().sum(&[2]) } else { x.sum(&[2]) });
    });
    let error = encoded(&BOTH, &more).unwrap_err();
    assert!(error.contains("Exp"), "{error}");
    let stays = of_tokens(|b, x| b.output("y", x.sum(&[2])));
    let error = encoded(&["batch", "tokens", "heads"], &stays).unwrap_err();
    assert!(error.contains("`heads`"), "{error}");
    let doubled = |sizes: &Sizes| {
        let b = Builder::new("doubled");
        let x = b.input("x", TensorType::new(DType::F32, [2 * sizes["batch"]]));
        b.output("y", x.exp());
        b.finish().unwrap()
    };
    let error = encoded(&["batch"], &doubled).unwrap_err();
    assert!(error.contains("`x`") && error.contains("2*batch"), "{error}");
}
