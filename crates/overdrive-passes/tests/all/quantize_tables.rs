//! Tables of embeddings in codes: which tables have them, what they give, what stays.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    BlockFormat, Builder, DType, Dim, Expr, Granularity, Graph, Init, Tensor, TensorType,
};
use overdrive_passes::{
    Evidence, Quantization, QuantizationMode, Quantized, Scheme, Tables, bind, declare, quantize,
};
use std::collections::BTreeMap;

const V: usize = 11;
const D: usize = 32;

/// A mode, for tables of any size if it has codes for them.
fn of_mode(name: &str) -> Quantization {
    let mode = QuantizationMode::find(name).unwrap().quantization();
    Quantization { tables: mode.tables.map(|tables| Tables { least: 0, ..tables }), ..mode }
}

fn weight<'b>(b: &'b Builder, name: &str, sizes: &[usize]) -> Expr<'b> {
    let (seed, count) = (name.bytes().map(u64::from).sum(), sizes.iter().product());
    // Rows of different sizes: one scale for all would round the small ones away.
    let row = |i: usize| 2f64.powi((i / sizes[1] % 9) as i32 - 6);
    let numbers = philox::normals(seed, 1).take(count);
    let values: Vec<f64> = numbers.enumerate().map(|(i, x)| row(i) * x).collect();
    let value = Tensor::from_f64(DType::F32, sizes.to_vec(), &values);
    b.state_named(name, value.ty().clone(), Init::Value(value))
}

fn ids(values: &[i128]) -> Tensor {
    Tensor::from_ints(DType::I32, [2, values.len() / 2], values)
}

/// An encoder: words and positions, then a layer.
fn encoder() -> Graph {
    let b = Builder::new("encoder");
    let x = b.input("ids", TensorType::new(DType::I32, [Dim::from("batch"), 3.into()]));
    let words = weight(&b, "words.weight", &[V, D]).embedding(x);
    let places = b.iota(DType::I32, [3usize], 0);
    let places = weight(&b, "places.weight", &[5, D]).embedding(places);
    b.output("rows", words + places);
    b.output("y", (words + places).linear(weight(&b, "layer.weight", &[D, D]), None));
    b.finish().unwrap()
}

/// A decoder that multiplies by its table, part by part if so wanted.
fn tied(parts: usize) -> Graph {
    let b = Builder::new("tied");
    let x = b.input("ids", TensorType::new(DType::I32, [2usize, 3]));
    let table = weight(&b, "words.weight", &[V, D]);
    let h = table.embedding(x).tanh();
    for (i, rows) in [0..4, 4..V].into_iter().enumerate().take(parts) {
        let rows = if parts == 1 { 0..V } else { rows };
        let part = table.slice_axis(0, rows.start, rows.end);
        b.output(&format!("y{i}"), h.linear(part.transpose(&[1, 0]), None));
    }
    b.finish().unwrap()
}

fn made(graph: &Graph, quantization: &Quantization) -> Quantized {
    quantize(graph, quantization, &Evidence::default()).unwrap()
}

fn state(graph: &Graph, name: &str) -> Tensor {
    let state = graph.states().iter().find(|state| state.name == name).unwrap();
    state.init.tensor(name, graph.ty(state.value))
}

/// The rows of a table as int8 by row stands for them, by the formula.
fn coded(table: &Tensor) -> Vec<f64> {
    let values = table.to_f64();
    let row = |row: &[f64]| {
        let largest = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let scale = f64::from((largest / 127.0) as f32);
        row.iter().map(|x| (x / scale).round_ties_even() * scale).collect::<Vec<f64>>()
    };
    values.chunks(D).flat_map(row).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs().max(0.1), "{found} {expected}");
    }
}

fn names(of: &Quantized) -> Vec<&str> {
    of.layers.iter().map(|layer| layer.name.as_str()).collect()
}

#[test]
fn rows_are_int8_with_a_scale_each_whatever_layers_take() {
    let graph = encoder();
    for mode in ["int8-weights", "mxfp4", "fp8"] {
        let made = made(&graph, &of_mode(mode));
        assert_eq!(names(&made), ["layer", "words.weight", "places.weight"], "{mode}");
        let words = &made.layers[1];
        let bytes = [words.float_bytes, words.code_bytes, words.scale_bytes].map(|b| b as usize);
        assert_eq!(bytes, [4 * V * D, V * D, 4 * V]);
        assert_eq!(state(&made.graph, "words.weight").ty().dtype, DType::I8);
        let bound = bind(&made.graph, &BTreeMap::from([("batch".to_owned(), 2)])).unwrap();
        // Indices beyond both ends are clamped, as they were.
        let picked = [0i128, 3, 10, 3, -1, 99];
        let rows = &eval_tensors(&bound, &[ids(&picked)])[0];
        let (words, places) = ["words.weight", "places.weight"].map(|n| state(&graph, n)).into();
        let (words, places) = (coded(&words), coded(&places));
        let expected = (0..6 * D).map(|i| {
            let row = picked[i / D].clamp(0, V as i128 - 1) as usize;
            words[row * D + i % D] + places[i / D % 3 * D + i % D]
        });
        assert_near(&rows.to_f64(), &expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_tied_head_multiplies_by_the_same_codes() {
    for (parts, mode) in [(1, "int8-weights"), (2, "int8-weights"), (1, "int8-dynamic")] {
        let graph = tied(parts);
        let made = made(&graph, &of_mode(mode));
        assert_eq!(names(&made), ["words.weight"], "{mode}");
        assert_eq!(made.skipped, []);
        let dynamic = mode == "int8-dynamic";
        let expected = if dynamic { Activations::Dynamic(DType::I8) } else { Activations::Float };
        assert_eq!(made.layers[0].scheme.unwrap().activations, expected);
        assert_eq!(made.graph.states().len(), 2, "codes and scales, once");
        let found = eval_tensors(&made.graph, &[ids(&[0, 3, 10, 1, 2, 7])]);
        let table = coded(&state(&graph, "words.weight"));
        let width: usize = found.iter().map(|y| y.ty().sizes()[2]).sum();
        assert_eq!(width, V);
        for (row, id) in [0usize, 3, 10, 1, 2, 7].into_iter().enumerate() {
            let h: Vec<f64> = table[id * D..][..D].iter().map(|x| x.tanh()).collect();
            let logits: Vec<f64> =
                table.chunks(D).map(|w| w.iter().zip(&h).map(|(w, h)| w * h).sum()).collect();
            let given: Vec<f64> = found
                .iter()
                .flat_map(|y| {
                    let width = y.ty().sizes()[2];
                    y.to_f64()[row * width..][..width].to_vec()
                })
                .collect();
            if dynamic {
                // Each of D inputs is at most half a step of its row away.
                let step = h.iter().fold(0.0, |most: f64, x| most.max(x.abs())) / 127.0;
                for ((given, logit), w) in given.iter().zip(&logits).zip(table.chunks(D)) {
                    let bound = w.iter().map(|w| w.abs()).sum::<f64>() * step * 0.51;
                    assert!((given - logit).abs() <= bound + 1e-6, "{given} {logit} {bound}");
                }
            } else {
                assert_near(&given, &logits);
            }
        }
    }
}

#[test]
fn a_declared_graph_is_the_coded_one() {
    for graph in [encoder(), tied(1), tied(2)] {
        let made = made(&graph, &of_mode("int8-dynamic"));
        let schemes: BTreeMap<String, Scheme> =
            made.layers.iter().map(|layer| (layer.name.clone(), layer.scheme.unwrap())).collect();
        let begin: BTreeMap<&str, &Init> =
            made.graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
        let declared = declare(&graph, &schemes).unwrap();
        assert_eq!(declared.with_initial_values(|name, _| begin[name].clone()), made.graph);
    }
}

#[test]
fn tables_stay_where_they_are_asked_to_or_others_read_them() {
    let graph = encoder();
    let stays = |quantization: &Quantization, expected: &[&str]| {
        assert_eq!(names(&made(&graph, quantization)), expected);
    };
    let mode = of_mode("int8-weights");
    let named = BTreeMap::from([("words.weight".to_owned(), None)]);
    stays(&Quantization { layers: named, ..mode.clone() }, &["layer", "places.weight"]);
    stays(&Quantization { tables: None, ..mode.clone() }, &["layer"]);
    let least = |least| mode.tables.map(|tables| Tables { least, ..tables });
    stays(&Quantization { tables: least(V * D), ..mode.clone() }, &["layer", "words.weight"]);
    stays(&Quantization { tables: least(V * D + 1), ..mode.clone() }, &["layer"]);
    let usual = QuantizationMode::find("int8-weights").unwrap().quantization();
    stays(&usual, &["layer"]);
    stays(&mode.only(&["layer"], &["layer"]), &["layer"]);
    stays(&mode.codes_of_layers(), &["layer"]);
    let by_row = BlockFormat::plain(DType::I8, Granularity::Channel);
    let alone = Quantization::new(by_row, Activations::Float);
    stays(&alone, &["layer"]);
    assert_eq!(of_mode("qat-int8").tables, None);
    assert_eq!(of_mode("bf16").tables, None);

    // A table that something else reads, is updated, or holds its head the other way round.
    let read = |name: &str, more: &dyn for<'b> Fn(&'b Builder, Expr<'b>, Expr<'b>)| {
        let b = Builder::new(name);
        let x = b.input("ids", TensorType::new(DType::I32, [2usize, 3]));
        let table = weight(&b, "words.weight", &[V, V]);
        let h = table.embedding(x);
        b.output("h", h);
        more(&b, table, h);
        let made = made(&b.finish().unwrap(), &of_mode("int8-weights"));
        assert!(made.layers.is_empty(), "{name}: {:?}", made.layers);
    };
    read("read", &|b, table, _| b.output("sum", table * 2.0));
    read("given", &|b, table, _| b.output("table", table));
    read("turned", &|b, table, h| b.output("y", h.linear(table, None)));
    read("two heads", &|b, table, h| {
        b.output("y", h.linear(table.transpose(&[1, 0]), None));
        b.output("z", h.tanh().linear(table.transpose(&[1, 0]), None));
    });
}
