//! Weights in 16 bits: which weights and products have them, what they compute, what is refused.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, Init, Overflow, Tensor, TensorType};
use overdrive_passes::{
    Evidence, Quantization, QuantizationMode, Quantized, Scheme, bind, declare, quantize,
};
use std::collections::BTreeMap;

const ROWS: usize = 5;
const K: usize = 48;
const N: usize = 24;

fn of_mode(name: &str) -> Quantization {
    QuantizationMode::find(name).unwrap().quantization()
}

fn scheme(name: &str) -> Scheme {
    of_mode(name).scheme
}

fn random(seed: u64, sizes: &[usize], size: f64) -> Tensor {
    let count = sizes.iter().product();
    let values: Vec<f64> = philox::normals(seed, 1).take(count).map(|x| size * x).collect();
    Tensor::from_f64(DType::F32, sizes.to_vec(), &values)
}

fn weight<'b>(b: &'b Builder, name: &str, sizes: &[usize]) -> Expr<'b> {
    let seed = name.bytes().map(u64::from).sum();
    let value = random(seed, sizes, 0.2);
    b.state_named(name, value.ty().clone(), Init::Value(value))
}

fn made(graph: &Graph, quantization: &Quantization) -> Quantized {
    quantize(graph, quantization, &Evidence::default()).unwrap()
}

fn state(graph: &Graph, name: &str) -> Tensor {
    let state = graph.states().iter().find(|state| state.name == name).unwrap();
    state.init.tensor(name, graph.ty(state.value))
}

fn dtype(graph: &Graph, name: &str) -> DType {
    state(graph, name).ty().dtype
}

/// Numbers rounded to a format.
fn rounded(format: DType, values: &[f64]) -> Vec<f64> {
    values.iter().map(|x| format.round(*x, Overflow::Ieee)).collect()
}

/// Errs unless each number is the other one but for the rounding of a sum in another order.
fn assert_near(format: DType, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let unit = format.epsilon() * expected.abs().max(0.1);
        assert!((found - expected).abs() <= unit, "{format}: {found} {expected}");
    }
}

#[test]
fn a_layer_multiplies_rounded_operands() {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F32, [ROWS, K]));
    let [w, bias] = [&[K, N][..], &[N]].map(|sizes| {
        weight(&b, if sizes.len() == 2 { "layer.weight" } else { "layer.bias" }, sizes)
    });
    b.output("y", x.linear(w, Some(bias)));
    let graph = b.finish().unwrap();
    let x = random(1, &[ROWS, K], 1.0);
    for (mode, format) in [("bf16", DType::BF16), ("f16", DType::F16)] {
        let made = made(&graph, &of_mode(mode));
        assert_eq!(dtype(&made.graph, "layer.weight"), format);
        assert_eq!(dtype(&made.graph, "layer.bias"), DType::F32);
        let of = |values: Tensor| rounded(format, &values.to_f64());
        let [w, bias] = ["layer.weight", "layer.bias"].map(|name| of(state(&graph, name)));
        let a = of(x.clone());
        let y = (0..ROWS * N).map(|i| {
            let (row, column) = (i / N, i % N);
            bias[column] + (0..K).map(|k| a[row * K + k] * w[k * N + column]).sum::<f64>()
        });
        let y: Vec<f64> = y.collect();
        let found = eval_tensors(&made.graph, std::slice::from_ref(&x))[0].to_f64();
        // Rounded operands, not those of f32.
        assert_near(format, &found, &rounded(format, &y));
        assert_eq!(made.graph.ty(made.graph.outputs()[0].value).dtype, DType::F32);
        let [layer] = &made.layers[..] else { panic!("{:?}", made.layers) };
        assert_eq!((layer.float_bytes, layer.code_bytes, layer.scale_bytes), (4608, 2304, 0));
        let most = format.epsilon();
        assert!(layer.weight_error > most / 20.0 && layer.weight_error < most, "{layer:?}");
    }
}

#[test]
fn a_convolution_and_a_table_of_embeddings_are_rounded_too() {
    let b = Builder::new("convolution");
    let ids = b.input("ids", TensorType::new(DType::I32, [2usize, 36]));
    let table = weight(&b, "table", &[10, 4]);
    let rows = table.embedding(ids);
    let image = rows.transpose(&[0, 2, 1]).reshape([2usize, 4, 6, 6]);
    let kernel = weight(&b, "conv.weight", &[3, 4, 3, 3]);
    b.output("rows", rows * 1.0);
    b.output("y", image.conv2d(kernel, None, Conv2d::new(1, 0)));
    let graph = b.finish().unwrap();
    let ids: Vec<i128> = (0..72).map(|i| i * 7 % 10).collect();
    let input = Tensor::from_ints(DType::I32, [2, 36], &ids);
    let made = made(&graph, &of_mode("bf16"));
    let [rows, y] = &eval_tensors(&made.graph, &[input])[..] else { panic!("two outputs") };
    let of = |name: &str| rounded(DType::BF16, &state(&graph, name).to_f64());
    let (table, kernel) = (of("table"), of("conv.weight"));
    let looked: Vec<f64> =
        ids.iter().flat_map(|id| table[*id as usize * 4..][..4].to_vec()).collect();
    assert_eq!(rows.to_f64(), looked);
    let pixel = |image: usize, channel: usize, at: [usize; 2]| {
        looked[(image * 36 + at[0] * 6 + at[1]) * 4 + channel]
    };
    let expected: Vec<f64> = (0..2 * 3 * 16)
        .map(|i| {
            let (image, out, row, column) = (i / 48, i / 16 % 3, i / 4 % 4, i % 4);
            let window = (0..36).map(|k| {
                let (channel, down, right) = (k / 9, k / 3 % 3, k % 3);
                kernel[out * 36 + k] * pixel(image, channel, [row + down, column + right])
            });
            window.sum()
        })
        .collect();
    assert_near(DType::BF16, &y.to_f64(), &rounded(DType::BF16, &expected));
    let names: Vec<&str> = made.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["table", "conv"]);
}

/// Layers `a`, `b` and `c` in a row, then the product of what `a` and `b` give.
fn chain() -> Graph {
    let b = Builder::new("chain");
    let mut h = b.input("x", TensorType::new(DType::F32, [ROWS, K]));
    let mut between = vec![];
    for name in ["a", "b", "c"] {
        h = h.linear(weight(&b, &format!("{name}.weight"), &[K, K]), None).tanh();
        between.push(h);
    }
    b.output("y", h);
    b.output("scores", between[0].dot(between[1], &[], &[(1, 1)]));
    b.finish().unwrap()
}

/// The format of the operands of each product, in order.
fn products(graph: &Graph) -> Vec<DType> {
    let products = graph.nodes().iter().filter(|node| {
        ["linear", "dot_general", "quantized_linear"].contains(&node.op.name().as_str())
    });
    products.map(|node| graph.ty(node.operands[0]).dtype).collect()
}

#[test]
fn a_mix_gives_each_layer_its_own() {
    use DType::{BF16, F16, F32};
    let graph = chain();
    let mix = |given: [Option<&str>; 3]| {
        let layers = ["a", "b", "c"].into_iter().zip(given);
        let layers = layers.map(|(name, mode)| (name.to_owned(), mode.map(scheme)));
        Quantization { layers: layers.collect(), ..of_mode(given[0].unwrap()) }
    };
    for (given, expected) in [
        ([Some("bf16"), Some("int8-weights"), None], [BF16, F32, F32, BF16]),
        ([Some("f16"), None, Some("f16")], [F16, F32, F16, F16]),
        // Products of activations are in bf16 if a weight is.
        ([Some("f16"), Some("bf16"), None], [F16, BF16, F32, BF16]),
        ([Some("int8-weights"), None, None], [F32; 4]),
    ] {
        let made = made(&graph, &mix(given));
        assert_eq!(products(&made.graph), expected, "{given:?}");
        let schemes: BTreeMap<String, Scheme> =
            made.layers.iter().map(|layer| (layer.name.clone(), layer.scheme.unwrap())).collect();
        assert_eq!(schemes.len(), given.iter().flatten().count());
        let begin: BTreeMap<&str, &Init> =
            made.graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
        let declared = declare(&graph, &schemes).unwrap();
        assert_eq!(declared.with_initial_values(|name, _| begin[name].clone()), made.graph);
    }
    // If one layer alone is asked for, a weight of no layer stays too.
    let alone = of_mode("bf16").only(&["a"], &["a", "b", "c"]);
    assert_eq!(products(&made(&graph, &alone).graph), [BF16, F32, F32, BF16]);
    assert_eq!(products(&made(&graph, &of_mode("bf16").codes_of_layers()).graph), [F32; 4]);
}

/// Norms ask for sizes where they are expanded, and a model is quantized before it has them.
#[test]
fn dimensions_may_be_names() {
    let b = Builder::new("named");
    let x = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), K.into()]));
    let normed = x.rms_norm(weight(&b, "norm.weight", &[K]), 1e-5);
    b.output("y", normed.linear(weight(&b, "layer.weight", &[K, N]), None));
    let graph = b.finish().unwrap();
    let made = made(&graph, &of_mode("bf16"));
    assert_eq!(products(&made.graph), [DType::BF16]);
    assert_eq!(dtype(&made.graph, "norm.weight"), DType::F32);
    let bound = bind(&made.graph, &BTreeMap::from([("batch".to_owned(), ROWS)])).unwrap();
    assert_eq!(eval_tensors(&bound, &[random(1, &[ROWS, K], 1.0)])[0].ty().sizes(), [ROWS, N]);
}

#[test]
fn weights_beyond_the_format_are_refused() {
    for (mode, number, said) in [
        ("f16", 7e4, "take mode `bf16`"),
        ("f16", f64::NAN, "repair the weights"),
        ("bf16", f64::INFINITY, "repair the weights"),
    ] {
        let b = Builder::new("large");
        let x = b.input("x", TensorType::new(DType::F32, [1usize, 2]));
        let value = Tensor::from_f64(DType::F32, [2, 2], &[1.0, 2.0, number, -1.0]);
        let w = b.state_named("layer.weight", value.ty().clone(), Init::Value(value));
        b.output("y", x.linear(w, None));
        let graph = b.finish().unwrap();
        let refused = quantize(&graph, &of_mode(mode), &Evidence::default()).unwrap_err();
        assert_eq!(refused.scope, "layer.weight");
        assert!(refused.remedy.contains(said), "{refused}");
        if number == 7e4 {
            assert!(refused.found == "70000" && refused.expected.contains("65504"), "{refused}");
            assert_eq!(made(&graph, &of_mode("bf16")).layers.len(), 1);
        }
    }
}
