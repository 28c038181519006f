//! Mixed precision on small models: what is rounded, what stays low, and how far results move.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::{Attention, Float8Linear};
use overdrive_ir::{Builder, DType, Expr, Graph, Init, Prim, TensorType, verify};
use overdrive_passes::{
    DelayedScales, Float8, Recipe, Scaling, differentiate, float8, left_in_float, precision,
};
use testkit::{Tolerance, compare, random_inputs};

fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn mlp() -> Graph {
    let b = Builder::new("mlp");
    let x = b.input("x", f32s([4, 64]));
    let weight = |name: &str, shape: [usize; 2]| {
        b.state(name, f32s(shape), Init::Normal { std: 0.125, seed: 3 })
    };
    let (w1, w2, w3) = (weight("w1", [64, 64]), weight("w2", [64, 64]), weight("w3", [64, 8]));
    b.output("y", x.linear(w1, None).tanh().linear(w2, None).linear(w3, None));
    b.finish().unwrap()
}

fn conversions(graph: &Graph) -> usize {
    graph.nodes().iter().filter(|n| matches!(n.op.prim(), Some(Prim::Convert { .. }))).count()
}

#[test]
fn a_value_between_two_contractions_is_never_widened() {
    let lowered = precision(&mlp(), &Recipe { contractions: DType::BF16 }).unwrap();
    verify(&lowered).unwrap();
    // x, w1, tanh's operand and result, w2, w3, y; nothing between the second and the third layer.
    assert_eq!(conversions(&lowered), 7, "{lowered:?}");
}

#[test]
fn results_move_by_the_rounding_of_the_format() {
    let graph = mlp();
    let inputs = random_inputs(&graph, 1);
    let exact = eval(&graph, &inputs, &mut States::new()).remove(0);
    let magnitude = exact.floats().iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    for low in [DType::BF16, DType::F16] {
        let lowered = precision(&graph, &Recipe { contractions: low }).unwrap();
        let found = eval(&lowered, &inputs, &mut States::new()).remove(0);
        // Three layers, each with rounded operands.
        compare(&exact, &found, Tolerance::new(low, 64, 3.0 * magnitude)).unwrap();
        assert_ne!(exact, found, "{low} rounds");
    }
    assert_eq!(precision(&graph, &Recipe::default()).unwrap(), graph);
}

#[test]
fn attention_and_its_gradient_keep_their_statistics_wide() {
    let b = Builder::new("attention");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, f32s([1, 2, 8, 4])));
    b.output("y", q.attention(k, v, Attention::CAUSAL)[0]);
    let graph = b.finish().unwrap();
    let wrt: Vec<_> = graph.inputs().iter().map(|p| p.value).collect();
    let training = differentiate(&graph, &[graph.outputs()[0].value], &wrt).unwrap();
    let lowered = precision(&training, &Recipe { contractions: DType::BF16 }).unwrap();
    verify(&lowered).unwrap();
    let dtypes = |name: &str| -> Vec<DType> {
        let node = lowered.nodes().iter().find(|n| n.op.name() == name).unwrap();
        node.operands.iter().map(|v| lowered.ty(*v).dtype).collect()
    };
    use DType::{BF16, F32};
    assert_eq!(dtypes("attention"), [BF16, BF16, BF16]);
    // q, k, v, log-sum-exp, cotangent, row sums.
    assert_eq!(dtypes("attention_grad"), [BF16, BF16, BF16, F32, BF16, F32]);
}

/// The weights of layers on codes of fp8, by their states' names.
fn on_codes(graph: &Graph) -> Vec<&str> {
    let of_layer = graph.nodes().iter().filter(|n| n.op.composite::<Float8Linear>().is_some());
    let name = |value| graph.states().iter().find(|s| s.value == value).map(|s| s.name.as_str());
    of_layer.filter_map(|node| name(node.operands[1])).collect()
}

const CURRENT: Float8 = Float8::new(DType::F8E5M2, Float8Granularity::Tensor, Scaling::Current);

#[test]
fn linear_layers_that_the_units_of_fp8_take_are_on_codes_but_for_the_last() {
    let layers = |sizes: &[usize], rows: usize| {
        let b = Builder::new("layers");
        let mut x = b.input("x", f32s([2, rows, sizes[0]]));
        for (i, pair) in sizes.windows(2).enumerate() {
            let w = b.state(&format!("w{i}"), f32s([pair[0], pair[1]]), Init::Constant(0.1));
            let bias = b.state(&format!("b{i}"), f32s([pair[1]]), Init::Constant(0.5));
            x = x.linear(w, Some(bias)).tanh();
        }
        b.output("y", x);
        let graph = float8(&b.finish().unwrap(), &CURRENT, DType::BF16).unwrap();
        verify(&graph).unwrap();
        assert_eq!(graph.ty(graph.outputs()[0].value).dtype, DType::F32);
        graph
    };
    assert_eq!(on_codes(&layers(&[32, 64, 48, 16], 8)), ["w0", "w1"]);
    // 24 is no multiple of 16, neither as columns nor as rows; nor are 14 rows of x.
    assert_eq!(on_codes(&layers(&[32, 24, 48, 16, 16], 8)), ["w2"]);
    assert_eq!(on_codes(&layers(&[32, 64, 48, 16], 7)), [""; 0]);
}

fn layer<'b>(x: Expr<'b>, scope: &str, shape: [usize; 2]) -> Expr<'b> {
    let _scope = x.builder().scope_path(scope);
    let w = x.builder().state("weight", f32s(shape), Init::Constant(0.1));
    x.linear(w, None).tanh()
}

/// Two blocks of two layers, and a head of 10 classes.
fn blocks() -> Graph {
    let b = Builder::new("blocks");
    let mut x = b.input("x", f32s([16, 32]));
    for block in ["block0", "block10"] {
        x = layer(x, &format!("{block}/ffn/expand"), [32, 64]);
        x = layer(x, &format!("{block}/ffn/contract"), [64, 32]);
    }
    b.output("y", layer(x, "head", [32, 10]));
    b.finish().unwrap()
}

#[test]
fn a_recipe_says_which_layers_stay_in_float_and_notes_say_why() {
    let graph = blocks();
    let recipe = |except: &[&str]| {
        let except = except.iter().map(|&pattern| pattern.to_owned()).collect();
        Float8 { except, ..CURRENT }
    };
    let left = |float8: &Float8| {
        let lowered = float8_of(&graph, float8);
        let left = left_in_float(&graph, float8);
        assert_eq!(on_codes(&lowered).len() + left.len(), 5, "{left:?}");
        left.into_iter().map(|s| format!("{}: {}", s.layer, s.reason)).collect::<Vec<_>>()
    };
    let head = "head: rows, K and N are [16, 32, 10], not multiples of 16";
    assert_eq!(left(&CURRENT), [head]);
    // The first parts of a name, and not the first letters.
    assert_eq!(
        left(&recipe(&["block10", "*.ffn.contract"])),
        [
            "block0.ffn.contract: the recipe leaves out `*.ffn.contract`",
            "block10.ffn.expand: the recipe leaves out `block10`",
            "block10.ffn.contract: the recipe leaves out `block10`",
            head,
        ]
    );
    let any = Float8 { multiple: 2, ..CURRENT };
    assert_eq!(left(&any), ["head: no contraction follows it"]);
    assert_eq!(left(&Float8 { last: true, ..any }), [""; 0]);
    for pattern in ["block1", "block0.ffn.expand.weight", ""] {
        let error = float8(&graph, &recipe(&[pattern]), DType::BF16).unwrap_err().to_string();
        assert!(error.contains("block0.ffn.expand"), "{error}");
        assert!(error.contains(&format!("found `{pattern}`")), "{error}");
    }
}

#[test]
fn layers_whose_casts_take_longer_than_codes_save_stay_in_float() {
    let left = |graph: &Graph, float8: &Float8| {
        let left = left_in_float(graph, float8);
        left.into_iter().map(|s| format!("{}: {}", s.layer, s.reason)).collect::<Vec<_>>()
    };
    let of = |scaling, break_even| Float8 {
        scaling,
        break_even: Some(break_even),
        multiple: 2,
        last: true,
        ..CURRENT
    };
    let losing = |layer: &str, ratio: &str, found: u32, most: u32| {
        format!(
            "{layer}: casts would take {ratio} times what its products save, at {found} FLOPs a \
             byte where {most} break even"
        )
    };
    // 6 * 16 * 32 * 64 FLOPs, and 4 bytes for each of 16 * (32 + 64) elements of x and dy. The head
    // has 6 * 16 * 32 * 10, and 4 bytes for each of 16 * (32 + 10).
    let delayed = |break_even| of(Scaling::Delayed, break_even);
    assert_eq!(left(&blocks(), &delayed(11)), [""; 0]);
    assert_eq!(left(&blocks(), &delayed(32)), [losing("head", "2.80", 11, 32)]);
    let layers = ["block0.ffn.expand", "block0.ffn.contract", "block10.ffn.expand"];
    let layers = layers.into_iter().chain(["block10.ffn.contract"]);
    let all = layers.map(|layer| losing(layer, "1.03", 32, 33));
    assert_eq!(left(&blocks(), &delayed(33))[..4], all.collect::<Vec<_>>());
    // A current scale reads 16 bits of each element once more, and the f32 of the weight.
    let current = |break_even| of(Scaling::Current, break_even);
    assert_eq!(left(&blocks(), &current(11)), [losing("head", "1.90", 6, 11)]);
    assert_eq!(left(&blocks(), &current(12)).len(), 5);
    // Two layers share the codes of x: 6 * 16 * 32 * 32 FLOPs, 4 bytes of 16 * (32 / 2 + 32).
    let b = Builder::new("shared");
    let x = b.input("x", f32s([16, 32]));
    b.output("y", layer(x, "query", [32, 32]) + layer(x, "key", [32, 32]));
    let shared = b.finish().unwrap();
    assert_eq!(left(&shared, &delayed(32)), [""; 0]);
    assert_eq!(left(&shared, &delayed(33)).len(), 2);
    assert_eq!(on_codes(&float8_of(&shared, &delayed(33))), [""; 0]);
}

#[test]
fn a_head_that_shares_a_weight_has_a_name() {
    let b = Builder::new("tied");
    let tokens = b.state_named("token.weight", f32s([48, 32]), Init::Constant(0.1));
    let x = layer(b.input("x", f32s([16, 32])), "block", [32, 32]);
    b.output("y", x.linear(tokens.t(), None));
    let graph = b.finish().unwrap();
    let left = |float8: &Float8| {
        let left = left_in_float(&graph, float8);
        left.into_iter().map(|s| format!("{}: {}", s.layer, s.reason)).collect::<Vec<_>>()
    };
    assert_eq!(left(&CURRENT), ["output: no contraction follows it"]);
    let except = vec!["output".to_owned()];
    let named = Float8 { except, last: true, ..CURRENT };
    assert_eq!(left(&named), ["output: the recipe leaves out `output`"]);
    float8_of(&graph, &named);
}

fn float8_of(graph: &Graph, recipe: &Float8) -> Graph {
    let lowered = float8(graph, recipe, DType::BF16).unwrap();
    verify(&lowered).unwrap();
    lowered
}

#[test]
fn layers_have_the_granularity_of_the_recipe() {
    for granularity in [Float8Granularity::Row, Float8Granularity::Block, Float8Granularity::Mx] {
        let graph = float8_of(&blocks(), &Float8 { granularity, ..CURRENT });
        let layers = graph.nodes().iter().filter_map(|n| n.op.composite::<Float8Linear>());
        let found: Vec<_> = layers.map(|layer| layer.granularity).collect();
        assert_eq!(found, [granularity; 4]);
        assert_eq!(DelayedScales::of(&graph).of_gradients(), []);
        // The operands are rounded by the op alone.
        let lowered = precision(&graph, &Recipe { contractions: DType::BF16 }).unwrap();
        let weights = |graph: &Graph| on_codes(graph).len();
        assert_eq!(weights(&lowered), 4);
    }
}

/// Query and key read one x; the last layer has the weights of the first.
#[test]
fn layers_share_the_scale_of_what_they_share() {
    let b = Builder::new("layers");
    let x = b.input("x", f32s([16, 32]));
    let weight = |name| b.state(name, f32s([32, 32]), Init::Constant(0.1));
    let (query, key) = (weight("query"), weight("key"));
    let y = x.linear(query, None).tanh() + x.linear(key, None).tanh();
    b.output("y", y.linear(query, None).linear(key, None));
    let delayed = Float8 { scaling: Scaling::Delayed, ..CURRENT };
    let graph = float8(&b.finish().unwrap(), &delayed, DType::BF16).unwrap();
    let lowered = precision(&graph, &Recipe { contractions: DType::BF16 }).unwrap();
    let names: Vec<&str> = lowered.states().iter().map(|s| s.name.as_str()).collect();
    let scales = [
        "float8.0.x",
        "float8.0.w",
        "float8.0.dy",
        "float8.1.w",
        "float8.1.dy",
        "float8.2.x",
        "float8.2.dy",
    ];
    assert_eq!(names, [&["query", "key"][..], &scales].concat());
    // No layer makes its scales new by itself, and each gradient has one of its own.
    assert!(lowered.states().iter().all(|state| state.update.is_none()));
    assert_eq!(DelayedScales::of(&lowered).of_gradients().len(), 3);
    // All scales follow from observed values, except those of the first batch, which assume usual
    // magnitudes.
    let initial = |name: &str| {
        let state = lowered.states().iter().find(|state| state.name == name).unwrap();
        state.init.tensor(name, lowered.ty(state.value)).to_f64()[0]
    };
    // 2 * 16 / 448, 2 * 1 / 448 and, of 16 rows, 2 / 16 / 57344, up to a power of two.
    let expected = [2f64.powi(-3), 2f64.powi(-7), 2f64.powi(-18)];
    assert_eq!(["float8.0.x", "float8.0.w", "float8.0.dy"].map(initial), expected);
}

#[test]
fn a_model_on_codes_of_fp8_moves_by_their_rounding_and_its_weights_have_gradients_in_f32() {
    let graph = {
        let b = Builder::new("mlp");
        let x = b.input("x", f32s([16, 64]));
        // Sums of about 1, which do not saturate.
        let weight = |name: &str| b.input(name, f32s([64, 64])) * 0.125;
        let (w1, w2) = (weight("w1"), weight("w2"));
        b.output("y", x.linear(w1, None).tanh().linear(w2, None));
        b.finish().unwrap()
    };
    let lowered = float8(&graph, &CURRENT, DType::BF16).unwrap();
    let wrt: Vec<_> = lowered.inputs().iter().map(|port| port.value).collect();
    let derived = differentiate(&lowered, &[lowered.outputs()[0].value], &wrt).unwrap();
    let dtypes: Vec<_> =
        derived.outputs().iter().map(|port| derived.ty(port.value).dtype).collect();
    assert_eq!(dtypes, [DType::F32; 4]);
    let plain_wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    let plain = differentiate(&graph, &[graph.outputs()[0].value], &plain_wrt).unwrap();
    let inputs = random_inputs(&plain, 1);
    let [exact, found] = [&plain, &derived].map(|g| eval(g, &inputs, &mut States::new()));
    for (exact, found) in exact.iter().zip(&found) {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let size = norm(&mut exact.floats().iter().copied());
        let off = norm(&mut exact.floats().iter().zip(found.floats()).map(|(a, b)| a - b));
        // e5m2 has two digits after the first, e4m3 three: an eighth and a sixteenth at most.
        assert!(off > 0.0 && off < size / 8.0, "{off} of {size}");
    }
}
