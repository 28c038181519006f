//! Chains of convolutions that run band by band, of random geometry, against the reference, whether or not they would pay: steps
//! and pads that make bands overlap, need nothing of an image or leave lines out, in all forms, with a fold over space at the end.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod support;

use std::num::NonZeroUsize;
use std::sync::Arc;

use overdrive_cpu::threads::Pool;
use overdrive_cpu::{CpuBackend, CpuExecutable};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Plan, StepKind};
use overdrive_ir::{Array, Backend, Builder, Caps, DType, Executable, Graph, Init, Mode, Prim, State};
use overdrive_ir::{TensorType, Tuning};
use proptest::prelude::*;
use support::random;
use testkit::{Tolerance, compare};

#[derive(Clone, Debug)]
struct Layer {
    outputs: usize,
    taps: [usize; 2],
    geometry: Conv2d,
    gelu: bool,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    input: [usize; 4],
    layers: Vec<Layer>,
    folded: bool,
}

fn layer() -> impl Strategy<Value = Layer> {
    let outputs = prop_oneof![Just(5usize), Just(32), Just(40), Just(64)];
    let taps = prop_oneof![1 => [1usize..4, 1usize..4], 1 => Just([3, 3])];
    (outputs, taps, [1usize..3, 1usize..3], [0usize..4, 0usize..2], any::<bool>()).prop_map(
        |(outputs, taps, [stride, other], [pad, dilated], gelu)| {
            let square = taps == [3, 3];
            let geometry = Conv2d {
                stride: if square { [stride; 2] } else { [stride, other] },
                pad: [[pad, 1], [1, pad.min(2)]],
                dilation: if square { [1; 2] } else { [1 + dilated, 1] },
                groups: 1,
            };
            Layer { outputs, taps, geometry, gelu }
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let channels = prop_oneof![Just(3usize), Just(16)];
    let input = (1usize..3, channels, 20usize..44, 14usize..36);
    let layers = proptest::collection::vec(layer(), 2..4);
    (proptest::sample::select(vec![DType::F32, DType::BF16]), input, layers, any::<bool>())
        .prop_map(|(dtype, (n, c, h, w), layers, folded)| Case { dtype, input: [n, c, h, w], layers, folded })
}

impl Case {
    fn graph(&self) -> Graph {
        let b = Builder::new("chain");
        let mut h = b.input("x", TensorType::new(self.dtype, self.input));
        for (i, Layer { outputs, taps, geometry, gelu }) in self.layers.iter().enumerate() {
            let terms = h.size(1) * taps[0] * taps[1];
            let state = |name: &str, shape: &[usize], std: f64| {
                let ty = TensorType::new(DType::F32, shape.to_vec());
                b.state(&format!("{name}{i}"), ty, Init::Normal { std, seed: 7 })
            };
            let w = state("w", &[*outputs, h.size(1), taps[0], taps[1]], (1.0 / terms as f64).sqrt());
            let mut convolution = geometry.convolution(self.dtype);
            convolution.out = DType::F32;
            let y = b.op1(Prim::Convolution(convolution), &[h, w.convert(self.dtype)]);
            let y = y + state("b", &[*outputs], 1.0).broadcast_in(&y.shape(), &[1]);
            let y = if *gelu { y.gelu(Approximation::Tanh) } else { y.relu() };
            h = y.convert(self.dtype);
        }
        b.output("y", if self.folded { h.global_avg_pool() } else { h });
        b.finish().unwrap()
    }
}

/// What a plan with chains gives on so many threads, and the plan.
fn run(graph: &Graph, x: &Array, threads: usize) -> Result<(Array, Plan), String> {
    let backend = CpuBackend::new(Some(threads)).unwrap();
    let caps = Caps { chains: Some(|_| true), ..backend.caps().clone() };
    let plan = overdrive_passes::plan(graph, Mode::Compile, &caps, &Tuning::default()).unwrap();
    let pool = Arc::new(Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap());
    let names = |name: &str| vec![name.to_owned()];
    let executable = CpuExecutable::new(plan.clone(), pool, &names("x"), &names("y"));
    let mut executable = executable.map_err(|e| format!("{e}\n{plan}"))?;
    let mut state = State::initial(graph, &backend).unwrap();
    let inputs = [backend.upload(&x.to_tensor()).unwrap()];
    let mut outputs = [backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    for _ in 0..2 {
        executable.run(&mut state, &inputs, &mut outputs).unwrap().wait().unwrap();
    }
    Ok((Array::from(&backend.download(&outputs[0]).unwrap()), plan))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bands_make_what_the_definition_says(case in cases()) {
        let graph = case.graph();
        let x = random(case.dtype, &case.input, 1);
        let expected = &eval(&graph, std::slice::from_ref(&x), &mut States::new())[0];
        let (found, plan) = run(&graph, &x, 1).map_err(TestCaseError::fail)?;
        let chains = plan.steps.iter().filter(|s| matches!(&s.kind, StepKind::Chain(c) if c.len() == case.layers.len()));
        prop_assert_eq!(chains.count(), 1, "{}", plan);
        let tolerance = Tolerance::new(case.dtype, 600, 8.0);
        compare(expected, &found, tolerance).map_err(|e| TestCaseError::fail(format!("{e}\n{plan}")))?;
        prop_assert_eq!(run(&graph, &x, 2).unwrap().0, found, "threads change nothing");
    }
}
