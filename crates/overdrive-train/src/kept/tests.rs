//! Rounding by random bits is held to its definition, and graphs to how often they cast a weight.

use super::{copied, to_neighbour};
use crate::compiled::Compiled;
use crate::data::Target;
use crate::step::{OPTIMIZER, Role, graph_of};
use crate::{Formats, Parameters, Recipe, parameters, training_step_on, with_loss};
use overdrive_cpu::CpuBackend;
use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::{Builder, DType, Graph, Mesh, Node, Origin, Prim, State, Tensor, TensorType};
use overdrive_passes::bind;
use std::collections::BTreeSet;

/// Draws for each number: the standard error of a share is 0.2 % at most.
const DRAWS: usize = 1 << 16;
/// Standard errors that a share is off by once in some million cases.
const SIGMAS: f64 = 5.0;
const SITE: u64 = 7;
const SEED: u64 = 11;

/// Rounds numbers on the CPU back end and by the reference evaluator, which agree.
fn rounded(numbers: &[f32]) -> Vec<f32> {
    let b = Builder::new("rounding");
    let x = b.input("x", TensorType::new(DType::F32, [numbers.len()]));
    let seed = b.input("seed", TensorType::scalar(DType::U64));
    let draw = Prim::RandomBits { shape: x.shape(), site: SITE };
    b.output("y", to_neighbour(x, b.op1(draw, &[seed])));
    let graph = b.finish().unwrap();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = Tensor::from_bytes(TensorType::new(DType::F32, [numbers.len()]), bytes).unwrap();
    let seed = Tensor::from_ints(DType::U64, [0usize; 0], &[i128::from(SEED)]);
    let backend = CpuBackend::new(Some(2)).unwrap();
    let mut compiled = Compiled::new(&backend, graph.clone(), &Default::default()).unwrap();
    let given = [("x", &x), ("seed", &seed)];
    let found = compiled.run(&backend, &mut State::default(), &given).unwrap().remove(0);
    let expected = eval_tensors(&graph, &[x.clone(), seed.clone()]).remove(0);
    assert_eq!(found.ty().dtype, DType::BF16);
    let [found, expected] =
        [found, expected].map(|y| y.to_f64().into_iter().map(|y| y as f32).collect::<Vec<_>>());
    let is_same = |(a, b): (&f32, &f32)| a == b || a.is_nan() && b.is_nan();
    assert!(found.iter().zip(&expected).all(is_same), "as the evaluator says");
    found
}

#[test]
fn numbers_become_a_neighbour_with_the_probability_that_keeps_their_mean() {
    // Both signs: near 1, tiny, below the smallest normal number, and large.
    let firsts = [0x3F80_u32, 0xBF9A, 0x2F01, 0x8040, 0x7E11];
    let shares = [1_u32, 655, 0x8000, 0xC001, 0xFFFF];
    for first in firsts {
        for share in shares {
            let x = f32::from_bits(first << 16 | share);
            let [near, far] = [first, first + 1].map(|half| f32::from_bits(half << 16));
            let found = rounded(&vec![x; DRAWS]);
            assert!(found.iter().all(|y| *y == near || *y == far), "{x}: {near} or {far}");
            let up = found.iter().filter(|y| **y == far).count() as f64;
            let p = f64::from(share) / 65536.0;
            let (mean, sigma) = (DRAWS as f64 * p, (DRAWS as f64 * p * (1.0 - p)).sqrt());
            assert!((up - mean).abs() <= SIGMAS * sigma, "{x}: {up} of {DRAWS}, expected {mean}");
        }
    }
}

#[test]
fn each_number_goes_up_by_the_bits_of_its_place() {
    let numbers: Vec<f32> = philox::normals(3, 1).take(5000).map(|x| x as f32).collect();
    for (index, (x, y)) in numbers.iter().zip(rounded(&numbers)).enumerate() {
        let bits = philox::bits(SEED, SITE, index as u64) >> 16;
        let up = (x.to_bits() & 0xFFFF) + bits > 0xFFFF;
        let expected = f32::from_bits(((x.to_bits() >> 16) + u32::from(up)) << 16);
        assert_eq!(y, expected, "element {index}: {x}");
    }
}

#[test]
fn bf16_numbers_and_those_that_are_not_finite_stay() {
    let (zero, inf) = (0.0f32, f32::INFINITY);
    let exact = [1.0, -1.5, zero, -zero, 2f32.powi(-126), 255.0, inf, -inf];
    for x in exact {
        assert!(rounded(&vec![x; 4096]).iter().all(|y| y.to_bits() == x.to_bits()), "{x}");
    }
    // Those of GPUs have all bits set: a carry would make them -0.
    for bits in [0x7FFF_FFFF_u32, 0xFFFF_FFFF, 0x7FC0_0000] {
        let found = rounded(&vec![f32::from_bits(bits); 4096]);
        assert!(found.iter().all(|y| y.is_nan()), "{bits:x}");
    }
}

fn forward(model: &str, batch: usize) -> Graph {
    let model = (overdrive_models::find(model).unwrap().build)().unwrap();
    with_loss(&bind(&model, &[("batch".to_owned(), batch)].into()).unwrap(), Target::Classes)
        .unwrap()
}

/// The casts of trained parameters in a graph, and the parameters that have them.
fn casts<'g>(graph: &'g Graph, names: &BTreeSet<String>) -> Vec<&'g str> {
    let of = |node: &'g Node| {
        let Some(Prim::Convert { to, .. }) = node.op.prim() else { return None };
        let Origin::State(index) = graph.origin(node.operands[0]) else { return None };
        let name = graph.states()[index].name.as_str();
        let narrows = to.bits() < graph.ty(node.operands[0]).dtype.bits();
        (narrows && names.contains(name)).then_some(name)
    };
    graph.nodes().iter().filter_map(of).collect()
}

#[test]
fn weights_are_cast_once_an_update() {
    for model in ["text-transformer", "digits-mlp"] {
        let graph = forward(model, 2);
        let bf16 = Formats::named("bf16").unwrap().clone();
        let recipe = Recipe::default().in_formats(bf16);
        let names: BTreeSet<String> =
            parameters(&graph, &recipe).map(|(name, _)| name.to_owned()).collect();
        let of = |parameters, accumulate, role| {
            let recipe = Recipe { parameters, accumulate, ..recipe.clone() };
            graph_of(&graph, &recipe, role).unwrap()
        };
        let once = of(Parameters::F32, 1, Role::Update);
        let cast: BTreeSet<&str> = casts(&once, &names).into_iter().collect();
        assert!(cast.len() > 2, "{cast:?}");
        assert_eq!(casts(&once, &names).len(), cast.len(), "once for all that reads it");
        for (parameters, accumulate) in [
            (Parameters::F32, 3),
            (Parameters::Masters, 1),
            (Parameters::Masters, 3),
            (Parameters::Stochastic, 1),
            (Parameters::Stochastic, 3),
        ] {
            let case = format!("{model} {parameters} {accumulate}");
            let step = of(parameters, accumulate, Role::Update);
            let earlier = of(parameters, accumulate, Role::Accumulate);
            // Without masters all but vectors and small tensors are bf16 themselves.
            let is_wide =
                |name: &&&str| parameters != Parameters::Stochastic || is_small(&graph, name);
            let wide = cast.iter().filter(is_wide).count();
            let is_copied = parameters == Parameters::Masters || accumulate > 1;
            let (copied_count, cast_count) = if is_copied { (wide, 0) } else { (0, wide) };
            for of_batch in [&step, &earlier] {
                assert_eq!(casts(of_batch, &names).len(), cast_count, "{case}");
                // Nothing but the update writes copies, each from the f32 that it makes.
                let copies = of_batch.states().iter().filter(|s| copied(&s.name).is_some());
                let written = copies.clone().filter_map(|state| state.update);
                let made: Vec<&Node> = written.filter_map(|v| of_batch.producer(v)).collect();
                assert_eq!(copies.count(), copied_count, "{case}");
                let expected = if std::ptr::eq(of_batch, &step) { copied_count } else { 0 };
                assert_eq!(made.len(), expected, "{case}");
                for node in made {
                    let in_optimizer = node.scope.split('/').next() == Some(OPTIMIZER);
                    let is_cast = matches!(node.op.prim(), Some(Prim::Convert { .. }));
                    assert!(in_optimizer && is_cast, "{case}: {}", node.op.name());
                }
            }
        }
    }
}

/// Whether a state of this name keeps f32 in any format.
fn is_small(graph: &Graph, name: &str) -> bool {
    let state = graph.states().iter().find(|state| state.name == name).unwrap();
    crate::moments::is_small(&graph.ty(state.value).sizes())
}

/// Stages take all batches of an update in one graph.
#[test]
fn stages_cast_weights_once_an_update() {
    let graph = forward("text-transformer", 2);
    let bf16 = Formats::named("bf16").unwrap().clone();
    let recipe = Recipe { accumulate: 4, ..Recipe::default() }.in_formats(bf16);
    let names: BTreeSet<String> =
        parameters(&graph, &recipe).map(|(name, _)| name.to_owned()).collect();
    let mesh: Mesh = "pipeline=2".parse().unwrap();
    for parameters in [Parameters::F32, Parameters::Masters, Parameters::Stochastic] {
        let recipe = Recipe { parameters, ..recipe.clone() };
        let step = training_step_on(&graph, &recipe, &mesh).unwrap();
        let all = casts(&step, &names);
        let different: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(all.len(), different.len(), "{parameters}: {all:?}");
        assert_eq!(all.is_empty(), parameters == Parameters::Masters, "{parameters}: {all:?}");
        let is_large = |name: &&str| !is_small(&graph, name);
        let has_large = all.iter().any(is_large);
        assert_eq!(has_large, parameters == Parameters::F32, "{parameters}: {all:?}");
    }
}
