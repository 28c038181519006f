//! Residual blocks whose images pass with channels innermost, in f32 and in codes, against the
//! reference. They have a first layer of few channels, and a pool. Kernels have zeros around, steps
//! and dilations. Lines have any length, and channels are no whole panel.

use crate::support::{EXACT, agrees, random};
use overdrive_cpu::{CpuBackend, InstructionSet};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::avg_pool2d::Pool2d;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Plan, StepKind};
use overdrive_ir::{
    Array, Backend, Builder, DType, Expr, Graph, Init, Mode, TensorType, Tuning, Unary,
};
use proptest::prelude::*;
use testkit::Tolerance;

/// A network of one block.
#[derive(Clone, Debug)]
struct Block {
    coded: bool,
    images: usize,
    channels: usize,
    extents: [usize; 2],
    outputs: [usize; 3],
    taps: [usize; 2],
    stride: usize,
    pad: [[usize; 2]; 2],
    dilation: usize,
    /// Whether weights never change, so that they are packed ahead.
    fixed: bool,
    /// The op behind the residual.
    last: Last,
}

#[derive(Clone, Copy, Debug)]
enum Last {
    Relu,
    Gelu,
    Mean,
}

fn blocks() -> impl Strategy<Value = Block> {
    let outputs = || prop_oneof![Just(16usize), Just(32), Just(48), Just(64)];
    let pads = || [0usize..3, 0..3];
    (
        any::<[bool; 2]>(),
        (1usize..4, 1usize..5, [12usize..20, 12..33]),
        [outputs(), outputs(), outputs()],
        ([1usize..4, 1..4], 1usize..3, [pads(), pads()], 1usize..3),
        prop_oneof![Just(Last::Relu), Just(Last::Gelu), Just(Last::Mean)],
    )
        .prop_map(|([coded, fixed], (images, channels, extents), outputs, window, last)| {
            let (taps, stride, pad, dilation) = window;
            Block {
                coded,
                images,
                channels,
                extents,
                outputs,
                taps,
                stride,
                pad,
                dilation,
                fixed,
                last,
            }
        })
}

impl Block {
    /// A convolution. In codes all numbers are small multiples of powers of two, so that f32 is
    /// exact.
    fn layer<'b>(
        &self,
        name: &str,
        x: Expr<'b>,
        outputs: usize,
        (geometry, [down, along]): (Conv2d, [usize; 2]),
    ) -> Expr<'b> {
        let (b, inputs) = (x.builder(), x.size(1));
        let shape = [outputs, inputs, down, along];
        let std = if self.coded { 9.0 } else { ((inputs * down * along) as f64).sqrt().recip() };
        let ty = TensorType::new(DType::F32, shape);
        let w = match self.fixed {
            true => b.state(name, ty, Init::Normal { std, seed: 7 + name.len() as u64 }),
            false => b.input(name, ty) * b.full(DType::F32, shape, std),
        };
        let bias = b.input(&format!("{name} bias"), TensorType::new(DType::F32, [outputs]));
        if !self.coded {
            return x.conv2d(w, Some(bias), geometry);
        }
        let one = |of: &str, dtype: DType, value: f64| {
            let ty = TensorType::new(dtype, [1usize; 4]);
            b.state(&format!("{of} of {name}"), ty, Init::Constant(value))
        };
        let quarters = (bias * bias.constant(4.0)).unary(Unary::Round) * bias.constant(0.25);
        let scale = one("scale", DType::F32, 1.0 / 16.0);
        let zero = one("zero", DType::I8, -9.0);
        let x = x.quantize(scale, Some(zero), DType::I8).dequantize(scale, Some(zero));
        let w = w.convert(DType::I8).dequantize(one("weights", DType::F32, 1.0 / 256.0), None);
        x.conv2d(w, Some(quarters), geometry)
    }

    fn graph(&self) -> Graph {
        let b = Builder::new("block");
        let [height, width] = self.extents;
        let x = TensorType::new(DType::F32, [self.images, self.channels, height, width]);
        let x = b.input("x", x);
        let [first, within, _] = self.outputs;
        let point = || (Conv2d::new(1, 0), [1, 1]);
        let stem = self.layer("stem", x, first, (Conv2d::new(1, 1), [3, 3])).relu();
        let pool = Pool2d { window: [3, 3], stride: [1, 1], pad: [[1, 1], [1, 1]] };
        let x = stem.max_pool2d(pool);
        let geometry = Conv2d {
            stride: [self.stride; 2],
            pad: self.pad,
            dilation: [self.dilation; 2],
            groups: 1,
        };
        let h = self.layer("in", x, within, point()).relu();
        let around = self.layer("around", h, within, (geometry, self.taps)).relu();
        let same = around.sizes()[2..] == x.sizes()[2..];
        let y = self.layer("out", around, first, point());
        let y = if same { y + x } else { y + self.layer("again", around, first, point()) };
        let y = y.relu();
        let y = self.layer("last", y, self.outputs[2], point());
        b.output(
            "y",
            match self.last {
                Last::Relu => y.relu(),
                Last::Gelu => y.gelu(Approximation::Tanh),
                Last::Mean => y.relu().global_avg_pool(),
            },
        );
        b.finish().unwrap()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_are_what_the_definition_says(block in blocks()) {
        let graph = block.graph();
        let inputs: Vec<Array> = (1u64..)
            .zip(graph.inputs())
            .map(|(seed, port)| random(DType::F32, &graph.ty(port.value).sizes(), seed))
            .collect();
        let tolerance = match (block.coded, block.last) {
            (true, Last::Relu) => EXACT,
            _ => Tolerance::new(DType::F32, 600, 16.0),
        };
        agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)?;
    }
}

/// A block of f32 or of codes, planned for AVX-512 without tiles; nothing on machines without.
fn planned(coded: bool) -> Option<Plan> {
    let block = Block {
        coded,
        images: 1,
        channels: 3,
        extents: [14, 14],
        outputs: [64, 32, 64],
        taps: [3, 3],
        stride: 1,
        pad: [[1, 1], [1, 1]],
        dilation: 1,
        fixed: true,
        last: Last::Mean,
    };
    let set = InstructionSet::Avx512Vnni;
    let has = InstructionSet::available().any(|one| one == set);
    let backend = has.then(|| CpuBackend::with_instruction_set(Some(2), set).unwrap())?;
    let compiled = backend.compile(&block.graph(), Mode::Compile, &Tuning::default()).unwrap();
    let session = compiled.session().unwrap();
    Some(session.plan().clone())
}

#[test]
fn images_pass_through_a_block_with_channels_innermost() {
    for (coded, dtype) in [(false, DType::F32), (true, DType::I8)] {
        let Some(plan) = planned(coded) else { return };
        let calls = plan.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Convolution(call) => Some(call),
            _ => None,
        });
        let calls: Vec<_> = calls.collect();
        assert_eq!(calls.len(), 5, "{plan}");
        assert!(calls.iter().all(|call| call.input.ty.dtype == dtype), "{plan}");
        assert!(calls[1..].iter().all(|call| call.input.strides[1] == 1), "{plan}");
    }
}
