//! Cross-layer equalization and bias correction, against slow definitions that are written from the
//! formulas: what changes, what must not, and that both help.
//!
//! Long because both methods are tested on the same networks.

use overdrive_ir::Granularity::{Channel, Tensor as Whole};
use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::avg_pool2d::Pool2d;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    BlockFormat, Builder, Compare, DType, Dim, Expr, Granularity, Graph, Init, Tensor, TensorType,
};
use overdrive_passes::{
    Additions, Evidence, OutputErrors, Quantization, Quantized, Statistic, bind, correct_biases,
    equalize, observe, quantize,
};
use std::collections::BTreeMap;

const BATCH: usize = 5;
const SIDE: usize = 6;
const CHANNELS: usize = 6;

fn normals(seed: u64, count: usize) -> Vec<f64> {
    philox::normals(seed, 5).take(count).collect()
}

fn state<'b>(b: &'b Builder, name: &str, sizes: &[usize], values: &[f64]) -> Expr<'b> {
    let tensor = Tensor::from_f64(DType::F32, sizes, values);
    b.state_named(name, tensor.ty().clone(), Init::Value(tensor))
}

/// Factors of channels, some a hundred times as large as others.
fn uneven(seed: u64, count: usize) -> Vec<f64> {
    normals(seed, count).iter().map(|x| 10f64.powf(0.7 * x)).collect()
}

#[derive(Copy, Clone, PartialEq)]
enum After {
    Nothing,
    Bias,
    Norm,
}

/// A convolution that keeps the extents of images; its channels have uneven ranges.
fn conv<'b>(
    x: Expr<'b>,
    (name, seed): (&str, u64),
    [outputs, groups, kernel]: [usize; 3],
    after: After,
) -> Expr<'b> {
    let b = x.builder();
    let per_group = CHANNELS / groups;
    let fan_in = per_group * kernel * kernel;
    let gains = uneven(seed, outputs);
    let values: Vec<f64> = normals(seed + 1, outputs * fan_in)
        .iter()
        .enumerate()
        .map(|(i, w)| w * gains[i / fan_in] / (fan_in as f64).sqrt())
        .collect();
    let w = state(b, &format!("{name}.weight"), &[outputs, per_group, kernel, kernel], &values);
    let of_channels =
        |part: &str, values: &[f64]| state(b, &format!("{name}.{part}"), &[outputs], values);
    let small: Vec<f64> = normals(seed + 2, outputs).iter().map(|x| 0.3 * x).collect();
    let bias = (after == After::Bias).then(|| of_channels("bias", &small));
    let y = x.conv2d(w, bias, Conv2d { groups, ..Conv2d::new(1, kernel / 2) });
    if after != After::Norm {
        return y;
    }
    let slopes = normals(seed + 3, outputs);
    let variance: Vec<f64> = slopes.iter().map(|x| 0.2 + x * x).collect();
    let parts = [("scale", &slopes), ("shift", &small), ("mean", &slopes), ("variance", &variance)];
    y.batch_norm(parts.map(|(part, values)| of_channels(part, values)), 1e-3)
}

fn leaky(x: Expr<'_>) -> Expr<'_> {
    x.compare(Compare::Lt, x.constant(0.0)).select(x * 0.1, x)
}

/// Convolutions of every kind, with joins, ending in a head on each place or on the mean of all.
fn network(seed: u64) -> Graph {
    let mut next = 0;
    let mut below = |n: u32| {
        next += 1;
        philox::bits(seed, 9, next) % n
    };
    let b = Builder::new("network");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let mut h = b.input("x", TensorType::new(DType::F32, sizes));
    for step in 0..5 {
        let shape = match below(4) {
            0 => [CHANNELS, CHANNELS, 3],
            1 => [CHANNELS, 2, 3],
            2 => [CHANNELS, 1, 1],
            _ => [CHANNELS, 1, 3],
        };
        let after = [After::Nothing, After::Bias, After::Norm][below(3) as usize];
        let name = format!("conv{step}");
        let y = conv(h, (&name, seed * 100 + 10 * step), shape, after);
        let y = match below(4) {
            0 => leaky(y),
            1 => y,
            _ => y.relu(),
        };
        h = if below(4) == 0 { h + y } else { y };
    }
    let head = |k: usize| {
        let values: Vec<f64> = normals(seed + 7, k * 4).iter().map(|x| 0.2 * x).collect();
        state(&b, "head.weight", &[k, 4], &values)
    };
    let y = if below(2) == 0 {
        h.global_avg_pool().linear(head(CHANNELS), None)
    } else {
        let k = CHANNELS * (SIDE / 2) * (SIDE / 2);
        let places = h.max_pool2d(Pool2d::new(2, 2)).reshape([Dim::from("batch"), k.into()]);
        places.linear(head(k), None)
    };
    b.output("y", y);
    b.finish().unwrap()
}

fn bound(graph: &Graph) -> Graph {
    bind(graph, &BTreeMap::from([("batch".to_owned(), BATCH)])).unwrap()
}

fn images(seed: u64) -> Tensor {
    let sizes = [BATCH, CHANNELS, SIDE, SIDE];
    let values: Vec<f64> =
        normals(seed + 1000, sizes.iter().product()).iter().map(|x| x + 0.5).collect();
    Tensor::from_f64(DType::F32, sizes, &values)
}

fn outputs(graph: &Graph, x: &Tensor) -> Vec<Vec<f64>> {
    eval_tensors(&bound(graph), std::slice::from_ref(x)).iter().map(Tensor::to_f64).collect()
}

fn seen(graph: &Graph, batches: &[Tensor]) -> Evidence {
    let observed =
        observe(&bound(graph), &[Statistic::Range, Statistic::ChannelMagnitude]).unwrap();
    let mut evidence = Evidence::default();
    for x in batches {
        evidence.add(&observed, &eval_tensors(&observed, std::slice::from_ref(x)));
    }
    evidence
}

/// Root mean square of a difference, relative to the first.
fn error(expected: &[f64], found: &[f64]) -> f64 {
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>();
    let difference = squares(&mut expected.iter().zip(found).map(|(a, b)| a - b));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}

fn values(graph: &Graph, name: &str) -> Vec<f64> {
    let state = graph.states().iter().find(|state| state.name == name).unwrap();
    state.init.tensor(name, graph.ty(state.value)).to_f64()
}

fn equalized(graph: &Graph, evidence: &Evidence) -> (Graph, Vec<String>) {
    let (graph, left) = equalize(graph, evidence, &|_| true).unwrap();
    (graph, left.into_iter().map(|skipped| skipped.layer).collect())
}

#[test]
fn equalizing_changes_the_float_model_within_rounding() {
    let mut moved = 0;
    for seed in 0..40 {
        let float = network(seed);
        for evidence in [Evidence::default(), seen(&float, &[images(seed)])] {
            let (made, left) = equalized(&float, &evidence);
            let weights = float.states().iter().filter(|state| state.name.ends_with("weight"));
            moved += weights.filter(|s| values(&float, &s.name) != values(&made, &s.name)).count();
            assert!(left.contains(&"conv0".to_owned()), "nothing is before the first layer");
            let x = images(seed + 500);
            let found = error(&outputs(&float, &x)[0], &outputs(&made, &x)[0]);
            // Six layers, whose states are rounded to f32 a few times each.
            assert!(found < 6.0 * 8.0 * 2f64.powi(-24), "network {seed}: {found:e}");
        }
    }
    assert!(moved > 100, "{moved} weights were moved");
}

/// Convolution, norm, ReLU; depthwise convolution, leaky ReLU; convolution, head on each place.
fn chain(first: After) -> Graph {
    let b = Builder::new("chain");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let x = b.input("x", TensorType::new(DType::F32, sizes));
    let h = conv(x, ("a", 1), [CHANNELS, 1, 3], first).relu();
    let h = leaky(conv(h, ("b", 11), [CHANNELS, CHANNELS, 3], After::Bias));
    let h = conv(h, ("c", 21), [CHANNELS, 2, 3], After::Nothing).relu();
    let k = CHANNELS * SIDE * SIDE;
    let w = state(&b, "head.weight", &[k, 4], &normals(31, k * 4));
    b.output("y", h.reshape([Dim::from("batch"), k.into()]).linear(w, None));
    b.finish().unwrap()
}

/// Largest magnitudes of a kernel `[O, C/groups, H, W]` by output and by input channel.
fn ranges(graph: &Graph, name: &str, groups: usize) -> [Vec<f64>; 2] {
    let w = values(graph, name);
    let per_group = CHANNELS / groups;
    let taps = w.len() / CHANNELS / per_group;
    let mut found = [vec![0.0f64; CHANNELS], vec![0.0f64; CHANNELS]];
    for o in 0..CHANNELS {
        for c in 0..per_group {
            for tap in 0..taps {
                let size = w[(o * per_group + c) * taps + tap].abs();
                let input = o / (CHANNELS / groups) * per_group + c;
                found[0][o] = found[0][o].max(size);
                found[1][input] = found[1][input].max(size);
            }
        }
    }
    found
}

#[test]
fn ranges_match_on_both_sides_of_every_channel() {
    for first in [After::Nothing, After::Bias, After::Norm] {
        let (made, left) = equalized(&chain(first), &Evidence::default());
        assert_eq!(left, ["a"]);
        let [a, b, c] = [("a", 1), ("b", CHANNELS), ("c", 2)]
            .map(|(name, groups)| ranges(&made, &format!("{name}.weight"), groups));
        let mut head = vec![0.0f64; CHANNELS];
        for (i, w) in values(&made, "head.weight").iter().enumerate() {
            let channel = &mut head[i / 4 / (SIDE * SIDE)];
            *channel = channel.max(w.abs());
        }
        for (made, read) in [(&a[0], &b[1]), (&b[0], &c[1]), (&c[0], &head)] {
            for (made, read) in made.iter().zip(read) {
                assert!((made / read - 1.0).abs() < 0.03, "made {made}, read {read}");
            }
        }
        if first == After::Norm {
            let scale = values(&made, "a.scale");
            let deviations = values(&made, "a.variance").into_iter().map(|v| (v + 1e-3).sqrt());
            assert!(error(&deviations.collect::<Vec<_>>(), &scale) < 1e-6, "the slope is 1");
        }
    }
}

#[test]
fn a_pair_is_scaled_by_the_formula() {
    let b = Builder::new("pair");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let x = b.input("x", TensorType::new(DType::F32, sizes));
    let h = conv(x, ("a", 1), [CHANNELS, 1, 3], After::Bias).relu();
    b.output("y", conv(h, ("b", 11), [CHANNELS, 1, 3], After::Bias));
    let float = b.finish().unwrap();
    let (made, _) = equalized(&float, &Evidence::default());
    let (r1, r2) = (&ranges(&float, "a.weight", 1)[0], &ranges(&float, "b.weight", 1)[1]);
    let s: Vec<f64> = r1.iter().zip(r2).map(|(r1, r2)| (r1 * r2).sqrt() / r2).collect();
    let near = |name: &str, factor: &dyn Fn(usize) -> f64| {
        let expected = values(&float, name).into_iter().enumerate().map(|(i, w)| w * factor(i));
        let found = error(&expected.collect::<Vec<_>>(), &values(&made, name));
        assert!(found < 1e-6, "{name}: {found:e}");
    };
    near("a.weight", &|i| 1.0 / s[i / (CHANNELS * 9)]);
    near("a.bias", &|i| 1.0 / s[i]);
    near("b.weight", &|i| s[i / 9 % CHANNELS]);
    near("b.bias", &|_| 1.0);
}

#[test]
fn no_channel_grows_beyond_the_largest_that_was_seen() {
    let b = Builder::new("biased");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let x = b.input("x", TensorType::new(DType::F32, sizes));
    let mut kernel = normals(3, CHANNELS * CHANNELS);
    kernel[..CHANNELS].iter_mut().for_each(|w| *w *= 1e-6);
    let w = state(&b, "a.weight", &[CHANNELS, CHANNELS, 1, 1], &kernel);
    let h =
        x.conv2d(w, Some(state(&b, "a.bias", &[CHANNELS], &[1.0; CHANNELS])), Conv2d::new(1, 0));
    b.output("y", conv(h.relu(), ("b", 11), [CHANNELS, 1, 3], After::Bias));
    let float = b.finish().unwrap();
    let evidence = seen(&float, &[images(1)]);
    let largest = |graph: &Graph| {
        let (_, site) = seen(graph, &[images(1)]).sites.pop_last().unwrap();
        site[&Statistic::Range][1]
    };
    let (bounded, _) = equalized(&float, &evidence);
    let (unbounded, _) = equalized(&float, &Evidence::default());
    assert!(largest(&unbounded) > 20.0 * largest(&float));
    assert!(largest(&bounded) < 1.001 * largest(&float));
}

fn next<'b>(h: Expr<'b>, name: &str, seed: u64) -> Expr<'b> {
    conv(h, (name, seed), [CHANNELS, 1, 3], After::Bias)
}

#[test]
fn factors_stay_where_something_else_sees_them() {
    let b = Builder::new("declines");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let x = b.input("x", TensorType::new(DType::F32, sizes));
    let shown = next(x, "shown", 1).relu();
    b.output("shown", shown);
    let joined = shown + next(shown, "joined", 11);
    let clipped = next(joined.relu(), "clipped", 21);
    let clipped = clipped.max(clipped.constant(0.0)).min(clipped.constant(6.0));
    let curved = next(clipped, "curved", 31).tanh();
    b.output("y", next(curved, "last", 41));
    let float = b.finish().unwrap();
    let (made, left) = equalized(&float, &seen(&float, &[images(1)]));
    assert_eq!(made, float);
    assert_eq!(left, ["shown", "joined", "clipped", "curved", "last"]);
}

fn int8(activations: Activations, block: Granularity) -> Quantization {
    Quantization::new(BlockFormat::plain(DType::I8, block), activations)
}

fn corrected(
    float: &Graph,
    quantization: &Quantization,
    (batches, additions): (&[Tensor], Additions),
) -> [Quantized; 2] {
    let made = quantize(float, quantization, &seen(float, batches)).unwrap();
    let errors = OutputErrors::of(&bound(float), &bound(&made.graph)).unwrap();
    let calls: Vec<_> =
        batches.iter().map(|x| eval_tensors(&errors.graph, std::slice::from_ref(x))).collect();
    let means = errors.means(&calls);
    [correct_biases(made.clone(), float, &means, additions).unwrap(), made]
}

/// Every layer before its activation is an output, by the names of layers.
fn shown() -> Graph {
    let b = Builder::new("shown");
    let sizes = [Dim::from("batch"), CHANNELS.into(), SIDE.into(), SIDE.into()];
    let mut h = b.input("x", TensorType::new(DType::F32, sizes));
    let parts = [
        ("a", [CHANNELS, 1, 3], After::Norm),
        ("b", [CHANNELS, CHANNELS, 3], After::Bias),
        ("c", [CHANNELS, 2, 3], After::Nothing),
    ];
    for (at, (name, shape, after)) in parts.into_iter().enumerate() {
        let y = conv(h, (name, 10 * at as u64 + 1), shape, after);
        b.output(name, y);
        h = y.relu();
    }
    let h = h.global_avg_pool();
    for (name, bias) in [("d", true), ("e", false)] {
        let w = state(&b, &format!("{name}.weight"), &[CHANNELS, CHANNELS], &normals(51, 36));
        let bias = bias.then(|| state(&b, &format!("{name}.bias"), &[CHANNELS], &normals(61, 6)));
        b.output(name, h.linear(w, bias));
    }
    b.finish().unwrap()
}

/// Mean of each channel, axis 1, by the definition.
fn channel_means(output: &[f64]) -> Vec<f64> {
    let places = output.len() / BATCH / CHANNELS;
    let mut means = vec![0.0; CHANNELS];
    for (i, y) in output.iter().enumerate() {
        means[i / places % CHANNELS] += y / (BATCH * places) as f64;
    }
    means
}

/// The largest mean error of a channel of each output, relative to the output's size.
fn mean_errors(float: &Graph, made: &Graph, batches: &[Tensor]) -> Vec<f64> {
    let layers = float.outputs().len();
    let mut errors = vec![vec![0.0; CHANNELS]; layers];
    let mut sizes = vec![0.0f64; layers];
    for x in batches {
        let both = outputs(float, x).into_iter().zip(outputs(made, x));
        for (layer, (expected, found)) in both.enumerate() {
            sizes[layer] = expected.iter().fold(sizes[layer], |most, y| most.max(y.abs()));
            let means = channel_means(&found).into_iter().zip(channel_means(&expected));
            let errors = errors[layer].iter_mut().zip(means);
            errors.for_each(|(sum, (found, expected))| *sum += found - expected);
        }
    }
    let largest = |errors: &Vec<f64>| errors.iter().fold(0.0f64, |most, e| most.max(e.abs()));
    let count = batches.len() as f64;
    errors.iter().zip(sizes).map(|(errors, size)| largest(errors) / count / size).collect()
}

#[test]
fn the_mean_error_of_every_channel_is_gone_and_nothing_else_changes() {
    let float = shown();
    let x = images(1);
    let one = std::slice::from_ref(&x);
    for activations in
        [Activations::Float, Activations::Static(DType::I8), Activations::Dynamic(DType::I8)]
    {
        let how = int8(activations, Whole);
        let [made, plain] = corrected(&float, &how, (one, Additions::Free));
        let before = mean_errors(&float, &plain.graph, one);
        let after = mean_errors(&float, &made.graph, one);
        for (before, after) in before.iter().zip(&after) {
            // Sums of f32, and biases of f32.
            assert!(*after < 1e-6 && after < &(0.02 * before), "{activations:?}: {before} {after}");
        }
        assert_eq!((made.layers.len(), made.simplified.len()), (5, 0));
        for state in plain.graph.states() {
            let same = values(&plain.graph, &state.name) == values(&made.graph, &state.name);
            let takes = ["a.shift", "b.bias", "d.bias"].contains(&state.name.as_str());
            assert_eq!(same, !takes, "{}", state.name);
        }
        let new = &made.graph.states()[plain.graph.states().len()..];
        let new: Vec<&str> = new.iter().map(|state| state.name.as_str()).collect();
        assert_eq!(new, ["c.correction", "e.correction"]);
    }
}

#[test]
fn without_additions_a_layer_without_a_bias_is_listed() {
    let float = shown();
    let batches = [images(1), images(2)];
    let how = int8(Activations::Static(DType::I8), Whole);
    let [made, plain] = corrected(&float, &how, (&batches, Additions::None));
    let listed: Vec<&str> = made.simplified.iter().map(|s| s.layer.as_str()).collect();
    assert_eq!(listed, ["c", "e"]);
    assert!(made.simplified[0].reason.contains("no bias"), "{:?}", made.simplified);
    assert_eq!(made.graph.states().len(), plain.graph.states().len());
    // Over two batches the mean error of the first layers is gone too.
    let after = mean_errors(&float, &made.graph, &batches);
    let before = mean_errors(&float, &plain.graph, &batches);
    assert!(after[0] < 1e-6 && after[1] < 0.3 * before[1], "{before:?} {after:?}");
}

#[test]
fn layers_that_stay_in_float_keep_their_biases() {
    let float = shown();
    let x = [images(1)];
    let mut how = int8(Activations::Static(DType::I8), Whole);
    how.layers.insert("b".to_owned(), None);
    let [made, _] = corrected(&float, &how, (&x, Additions::Free));
    assert_eq!(values(&made.graph, "b.bias"), values(&float, "b.bias"));
    assert_ne!(values(&made.graph, "d.bias"), values(&float, "d.bias"));
}

/// Convolutions whose hidden channels differ a hundredfold, while the model as a whole does not.
fn planted() -> Graph {
    let (float, _) = equalized(&chain(After::Bias), &Evidence::default());
    let gains = uneven(77, CHANNELS);
    let inits: BTreeMap<String, (Init, TensorType)> = float
        .states()
        .iter()
        .map(|s| (s.name.clone(), (s.init.clone(), float.ty(s.value).clone())))
        .collect();
    float.with_initial_values(|name, _| {
        let (init, ty) = &inits[name];
        let stored = init.tensor(name, ty).to_f64();
        let factor: &dyn Fn(usize) -> f64 = match name {
            "a.weight" => &|i| gains[i / (CHANNELS * 9)],
            "a.bias" => &|i| gains[i],
            "b.weight" => &|i| 1.0 / gains[i / 9],
            "c.weight" => &|i| gains[i / (CHANNELS / 2 * 9)],
            "head.weight" => &|i| 1.0 / gains[i / 4 / (SIDE * SIDE)],
            _ => return init.clone(),
        };
        let values: Vec<f64> = stored.iter().enumerate().map(|(i, w)| w * factor(i)).collect();
        Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), &values))
    })
}

#[test]
fn both_help_where_channels_are_uneven() {
    let float = planted();
    let calibration = [images(1), images(2)];
    let x = images(99);
    let expected = outputs(&float, &x).swap_remove(0);
    let lost = |graph: &Graph| error(&expected, &outputs(graph, &x)[0]);
    let (even, _) = equalized(&float, &seen(&float, &calibration));
    for block in [Whole, Channel] {
        let how = int8(Activations::Static(DType::I8), block);
        let given = (&calibration[..], Additions::Free);
        let [fixed, plain] = corrected(&float, &how, given);
        let [both, equal] = corrected(&even, &how, given);
        let [plain, fixed, equal, both] = [plain, fixed, equal, both].map(|made| lost(&made.graph));
        assert!(fixed < plain, "{block:?}: corrected {fixed}, plain {plain}");
        assert!(equal < 0.7 * plain, "{block:?}: equalized {equal}, plain {plain}");
        assert!(both < 0.7 * plain, "{block:?}: both {both}, plain {plain}");
    }
}
