//! Chains of convolutions that run band by band, of random geometry, against the reference, whether
//! or not they would pay. Steps and pads make bands overlap, need nothing of an image or leave
//! lines out, in all forms. Chains may add images on the way, have layers that are outputs too, and
//! fold over space at the end.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::support::random;
use overdrive_cpu::threads::Pool;
use overdrive_cpu::{CpuBackend, CpuExecutable};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Note, Plan, Step, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, Call, DType, Decline, Described, Executable as _, Graph, Init, Kernel,
    Mode, Port, Prim, State,
};
use overdrive_ir::{TensorType, Tuning};
use proptest::prelude::*;
use testkit::{Tolerance, compare};

#[derive(Clone, Debug)]
struct Layer {
    outputs: usize,
    taps: [usize; 2],
    geometry: Conv2d,
    then: Then,
}

/// The operations between the sums of a layer and its result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Relu,
    Gelu,
    /// A residual image that is added. A band reads the same lines of it as it stores.
    Residual,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    input: [usize; 4],
    layers: Vec<Layer>,
    folded: bool,
    /// A layer whose result is an output too, so that it ends a chain.
    seen: Option<usize>,
}

fn layer() -> impl Strategy<Value = Layer> {
    let outputs = prop_oneof![Just(5usize), Just(32), Just(40), Just(64)];
    let taps = prop_oneof![1 => [1usize..4, 1usize..4], 1 => Just([3, 3])];
    let then = prop_oneof![Just(Then::Relu), Just(Then::Gelu), Just(Then::Residual)];
    (outputs, taps, [1usize..3, 1usize..3], [0usize..4, 0usize..2], then).prop_map(
        |(outputs, taps, [stride, other], [pad, dilated], then)| {
            let square = taps == [3, 3];
            let geometry = Conv2d {
                stride: if square { [stride; 2] } else { [stride, other] },
                pad: [[pad, 1], [1, pad.min(2)]],
                dilation: if square { [1; 2] } else { [1 + dilated, 1] },
                groups: 1,
            };
            Layer { outputs, taps, geometry, then }
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let channels = prop_oneof![Just(3usize), Just(16)];
    let input = (1usize..3, channels, 20usize..44, 14usize..36);
    let layers = proptest::collection::vec(layer(), 2..4);
    let dtype = prop_oneof![3 => Just(DType::F32), 3 => Just(DType::BF16), 1 => Just(DType::F16),
        1 => Just(DType::F64)];
    let seen = prop_oneof![3 => Just(None), 1 => (0usize..3).prop_map(Some)];
    (dtype, input, layers, any::<bool>(), seen).prop_map(
        |(dtype, (n, c, h, w), layers, folded, seen)| {
            let seen = seen.filter(|&layer| layer + 1 < layers.len());
            Case { dtype, input: [n, c, h, w], layers, folded, seen }
        },
    )
}

impl Case {
    fn graph(&self) -> Graph {
        let b = Builder::new("chain");
        let mut h = b.input("x", TensorType::new(self.dtype, self.input));
        for (i, Layer { outputs, taps, geometry, then }) in self.layers.iter().enumerate() {
            let terms = h.size(1) * taps[0] * taps[1];
            let state = |name: &str, shape: &[usize], std: f64| {
                let ty = TensorType::new(DType::F32, shape.to_vec());
                b.state(&format!("{name}{i}"), ty, Init::Normal { std, seed: 7 })
            };
            let w =
                state("w", &[*outputs, h.size(1), taps[0], taps[1]], (1.0 / terms as f64).sqrt());
            let mut convolution = geometry.convolution(self.dtype);
            convolution.out = self.dtype.accumulation();
            let y = b.op1(Prim::Convolution(convolution), &[h, w.convert(self.dtype)]);
            let y =
                y + state("b", &[*outputs], 1.0).convert(y.dtype()).broadcast_in(&y.shape(), &[1]);
            let y = match then {
                Then::Relu => y.relu(),
                Then::Gelu => y.gelu(Approximation::Tanh),
                Then::Residual => {
                    y + b.input(&format!("r{i}"), TensorType::new(y.dtype(), y.shape()))
                }
            };
            h = y.convert(self.dtype);
            if self.seen == Some(i) {
                b.output("seen", h);
            }
        }
        b.output("y", if self.folded { h.global_avg_pool() } else { h });
        b.finish().unwrap()
    }
}

/// Whether a chain is declined since even its smallest band is too long: wide lines of f64.
fn is_too_long(why: &str) -> bool {
    why.starts_with("no band of")
}

/// The results of a plan with chains on so many threads, and the plan.
fn run(graph: &Graph, inputs: &[Array], threads: usize) -> Result<(Vec<Array>, Plan), String> {
    let backend = CpuBackend::new(Some(threads)).unwrap();
    // Whether they pay is passed over, but not that lines are too long for a band.
    let answer = |call: &Call<'_>| match (call, backend.target().kernel(call)) {
        (Call::Chain(_), Err(Decline::Because(why))) if !is_too_long(&why) => Ok(Kernel::default()),
        (_, answer) => answer,
    };
    let chaining = Described { description: backend.description().clone(), answer };
    let plan = overdrive_passes::plan(graph, Mode::Compile, &chaining, &Tuning::default()).unwrap();
    let pool = Arc::new(Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap());
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let names = [names(graph.inputs()), names(graph.outputs())];
    let executable = CpuExecutable::new(plan.clone(), pool, names, None);
    let session = executable.and_then(|executable| Arc::new(executable).session());
    let mut session = session.map_err(|e| format!("{e}\n{plan}"))?;
    let mut state = State::initial(graph, &backend).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(&x.to_tensor()).unwrap()).collect();
    let output = |port: &Port| backend.output(graph.ty(port.value)).unwrap();
    let mut outputs: Vec<_> = graph.outputs().iter().map(output).collect();
    for _ in 0..2 {
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    }
    let download = |buffer| Array::from(&backend.download(buffer).unwrap());
    Ok((outputs.iter().map(download).collect(), plan))
}

/// A note that a chain is declined for that.
fn is_declined(note: &Note) -> bool {
    matches!(note, Note::Declined { reason, .. } if is_too_long(reason))
}

/// Fails unless a case is run as chains, and these mean what the definition says. Gives the plan.
fn holds(case: &Case) -> Result<Plan, TestCaseError> {
    let graph = case.graph();
    let input = |(i, port): (usize, &Port)| {
        let ty = graph.ty(port.value);
        random(ty.dtype, &ty.sizes(), 1 + i as u64)
    };
    let inputs: Vec<Array> = graph.inputs().iter().enumerate().map(input).collect();
    let expected = eval(&graph, &inputs, &mut States::new());
    let (found, plan) = run(&graph, &inputs, 1).map_err(TestCaseError::fail)?;
    // A layer that is seen ends a chain, and another begins behind it.
    let first = case.seen.map_or(0, |layer| layer + 1);
    let wanted = [first, case.layers.len() - first].into_iter().filter(|&links| links > 1);
    let links = |step: &Step| match &step.kind {
        StepKind::Chain(calls) => Some(calls.len()),
        _ => None,
    };
    let found_links: Vec<_> = plan.steps.iter().filter_map(links).collect();
    if !plan.notes.iter().any(is_declined) {
        prop_assert_eq!(found_links, wanted.collect::<Vec<_>>(), "{}", plan);
    }
    let tolerance = Tolerance::new(case.dtype, 600, 8.0);
    for (expected, found) in expected.iter().zip(&found) {
        compare(expected, found, tolerance)
            .map_err(|e| TestCaseError::fail(format!("{e}\n{plan}")))?;
    }
    prop_assert_eq!(run(&graph, &inputs, 2).unwrap().0, found, "threads change nothing");
    Ok(plan)
}

/// Lines of f64 so wide that no band of them is within the cache stay apart, and mean the same.
#[test]
fn lines_too_long_for_a_band_are_not_chained() {
    let layer = |outputs, taps, stride| Layer {
        outputs,
        taps,
        geometry: Conv2d { stride, pad: [[1, 1]; 2], dilation: [1; 2], groups: 1 },
        then: Then::Relu,
    };
    let layers = vec![layer(64, [1, 1], [1, 1]), layer(5, [3, 3], [2, 2])];
    let case = Case { dtype: DType::F64, input: [1, 3, 36, 26], layers, folded: false, seen: None };
    let plan = holds(&case).unwrap();
    assert!(plan.notes.iter().any(is_declined), "{plan}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn bands_make_what_the_definition_says(case in cases()) {
        holds(&case)?;
    }
}
