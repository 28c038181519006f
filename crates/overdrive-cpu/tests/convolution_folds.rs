//! Folds over space behind convolutions, of random geometry, against the reference: plain, with fewer multiplications, and of
//! pixels in bf16; of what is one multiply-add and of what is not; with the folded values stored too, and without.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod support;

use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Instr, StepKind};
use overdrive_ir::{Builder, DType, Expr, Graph, Init, Mode, Prim, Reducer, TensorType};
use proptest::prelude::*;
use support::{Session, agrees, random};
use testkit::Tolerance;

/// What stands between the sums and the fold.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    /// A factor and a summand of each channel and a ReLU.
    Affine,
    /// Something else, with an image that is added.
    Gelu,
    /// A factor of each line: pixels are no one run.
    Lines,
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    images: usize,
    channels: usize,
    outputs: usize,
    extents: [usize; 2],
    taps: usize,
    stride: usize,
    between: Between,
    reducer: Reducer,
    /// Whether what is folded is an output too.
    stored: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![3 => Just(DType::F32), 3 => Just(DType::BF16), 1 => Just(DType::F16), 1 => Just(DType::F64)];
    let channels = prop_oneof![3 => 1usize..8, 2 => Just(32usize)];
    let outputs = prop_oneof![1 => 1usize..20, 1 => 33usize..50, 2 => Just(64usize), 1 => Just(96usize)];
    let extent = || prop_oneof![1 => 1usize..12, 1 => 28usize..37];
    let between =
        prop_oneof![Just(Between::Nothing), Just(Between::Affine), Just(Between::Gelu), Just(Between::Lines)];
    let reducer = prop_oneof![3 => Just(Reducer::Sum), 1 => Just(Reducer::Max)];
    let shape = (1usize..4, channels, outputs, [extent(), extent()], 1usize..4, 1usize..3);
    (dtype, shape, between, reducer, any::<bool>()).prop_map(
        |(dtype, (images, channels, outputs, extents, taps, stride), between, reducer, stored)| Case {
            dtype,
            images,
            channels,
            outputs,
            extents,
            taps,
            stride,
            between,
            reducer,
            stored,
        },
    )
}

impl Case {
    fn graph(&self) -> Graph {
        let b = Builder::new("fold");
        let [height, width] = self.extents;
        let terms = self.channels * self.taps * self.taps;
        let state = |name: &str, shape: &[usize], std: f64| {
            b.state(name, TensorType::new(DType::F32, shape.to_vec()), Init::Normal { std, seed: 7 })
        };
        let x = b.input("x", TensorType::new(self.dtype, [self.images, self.channels, height, width]));
        let w = state("w", &[self.outputs, self.channels, self.taps, self.taps], 1.0 / (terms as f64).sqrt());
        let mut convolution = Conv2d::new(self.stride, self.taps / 2).convolution(self.dtype);
        convolution.out = self.dtype.accumulation();
        let y = b.op1(Prim::Convolution(convolution), &[x, w.convert(self.dtype)]);
        let of_channels =
            |name: &str| state(name, &[self.outputs], 1.0).convert(y.dtype()).broadcast_in(&y.shape(), &[1]);
        let y = match self.between {
            Between::Nothing => y,
            Between::Affine => (y * of_channels("scale") + of_channels("bias")).relu(),
            Between::Gelu => {
                let image = TensorType::new(y.dtype(), y.shape());
                (y + of_channels("bias")).gelu(Approximation::Tanh) + b.input("residual", image)
            }
            Between::Lines => {
                let factors = state("lines", &[y.size(2)], 1.0).convert(y.dtype());
                y * factors.broadcast_in(&y.shape(), &[2])
            }
        };
        if self.stored {
            b.output("y", y.convert(self.dtype));
        }
        let folded = y.reduce(self.reducer, &[2, 3]);
        b.output("folded", self.scaled(folded).convert(self.dtype));
        b.finish().unwrap()
    }

    /// A sum as a mean, and something of each channel behind it.
    fn scaled<'b>(&self, folded: Expr<'b>) -> Expr<'b> {
        let pixels: usize = self.extents.iter().map(|e| e.div_ceil(self.stride)).product();
        if self.reducer == Reducer::Sum { folded * (1.0 / pixels as f64) } else { folded.relu() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_folded_is_what_the_definition_says(case in cases()) {
        let graph = case.graph();
        let input = |(i, port): (usize, &overdrive_ir::Port)| {
            let ty = graph.ty(port.value);
            random(ty.dtype, &ty.sizes(), 1 + i as u64)
        };
        let inputs: Vec<_> = graph.inputs().iter().enumerate().map(input).collect();
        let terms = case.channels * case.taps * case.taps + case.extents.iter().product::<usize>();
        let tolerance = Tolerance::new(case.dtype, terms + 2, 16.0);
        agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn a_mean_over_space_stores_no_image() {
    let case = Case {
        dtype: DType::F32,
        images: 2,
        channels: 3,
        outputs: 16,
        extents: [20, 20],
        taps: 3,
        stride: 1,
        between: Between::Affine,
        reducer: Reducer::Sum,
        stored: false,
    };
    let steps = |case: &Case| {
        let graph = case.graph();
        let x = random(DType::F32, &graph.ty(graph.inputs()[0].value).sizes(), 1).to_tensor();
        let session = Session::new(&graph, Mode::Compile, 2, &[x]).unwrap();
        let plan = session.executable.plan();
        let folds = |step: &&overdrive_ir::plan::Step| match &step.kind {
            StepKind::Convolution(call) => {
                call.epilogue.0.instrs.iter().any(|i| matches!(i, Instr::Reduce(_)))
            }
            _ => false,
        };
        let largest = plan.slots.iter().map(overdrive_ir::plan::Slot::bytes).max().unwrap();
        let loops = plan.steps.iter().filter(|s| !s.prepare && matches!(s.kind, StepKind::Loop(_))).count();
        (plan.steps.iter().filter(folds).count(), loops, largest)
    };
    let image = 4 * 2 * 16 * 20 * 20;
    let (folds, loops, largest) = steps(&case);
    assert!((folds, loops) == (1, 0) && largest < image / 4, "{folds} {loops} {largest}");
    // Where somebody else reads the image it is there, and folded all the same.
    assert_eq!(steps(&Case { stored: true, ..case }), (1, 0, image));
}
