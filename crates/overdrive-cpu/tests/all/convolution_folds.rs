//! Folds over space behind convolutions against the reference. Geometry is random, over one to
//! three dimensions and in groups. The convolutions are plain, with fewer multiplications, and of
//! pixels in bf16. The epilogue is one multiply-add or more. The folded values are stored too, or
//! not.

use crate::support::{Session, agrees, random};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::{Instr, StepKind, WindowDimension};
use overdrive_ir::{
    Array, Builder, Convolution, DType, Expr, Graph, Init, Mode, Prim, Reducer, TensorType,
};
use proptest::prelude::*;
use testkit::Tolerance;

/// The operations between the sums and the fold.
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
    groups: usize,
    /// Channels and outputs of a group.
    channels: usize,
    outputs: usize,
    extents: Vec<usize>,
    taps: usize,
    stride: usize,
    between: Between,
    reducer: Reducer,
    /// Whether the folded values are an output too.
    stored: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![3 => Just(DType::F32), 3 => Just(DType::BF16), 1 => Just(DType::F16),
        1 => Just(DType::F64)];
    let channels = prop_oneof![3 => 1usize..8, 2 => Just(32usize)];
    let outputs =
        prop_oneof![1 => 1usize..20, 1 => 33usize..50, 2 => Just(64usize), 1 => Just(96usize)];
    let extent = || prop_oneof![1 => 1usize..12, 1 => 28usize..37];
    let extents = prop_oneof![
        1 => proptest::collection::vec(20usize..400, 1),
        6 => proptest::collection::vec(extent(), 2),
        1 => proptest::collection::vec(1usize..7, 3),
    ];
    let groups = prop_oneof![3 => Just(1usize), 1 => Just(3)];
    let between = prop_oneof![
        Just(Between::Nothing),
        Just(Between::Affine),
        Just(Between::Gelu),
        Just(Between::Lines)
    ];
    let reducer = prop_oneof![3 => Just(Reducer::Sum), 1 => Just(Reducer::Max)];
    let shape = (1usize..4, groups, channels, outputs, extents, 1usize..4, 1usize..3);
    (dtype, shape, between, reducer, any::<bool>()).prop_map(
        |(
            dtype,
            (images, groups, channels, outputs, extents, taps, stride),
            between,
            reducer,
            stored,
        )| {
            Case {
                dtype,
                images,
                groups,
                channels,
                outputs,
                extents,
                taps,
                stride,
                between,
                reducer,
                stored,
            }
        },
    )
}

impl Case {
    fn graph(&self) -> Graph {
        let b = Builder::new("fold");
        let outputs = self.groups * self.outputs;
        let terms = self.channels * self.taps.pow(self.extents.len() as u32);
        let state = |name: &str, shape: &[usize], std: f64| {
            b.state(
                name,
                TensorType::new(DType::F32, shape.to_vec()),
                Init::Normal { std, seed: 7 },
            )
        };
        let with = |a: usize, b: usize, rest: &[usize]| [&[a, b], rest].concat();
        let channels = self.groups * self.channels;
        let x =
            b.input("x", TensorType::new(self.dtype, with(self.images, channels, &self.extents)));
        let taps = vec![self.taps; self.extents.len()];
        let w = state("w", &with(outputs, self.channels, &taps), 1.0 / (terms as f64).sqrt());
        let pad = (self.taps / 2) as i64;
        let dimension = WindowDimension {
            stride: self.stride,
            pad_low: pad,
            pad_high: pad,
            input_dilation: 1,
            kernel_dilation: 1,
        };
        let convolution = Convolution {
            window: vec![dimension; taps.len()],
            groups: self.groups,
            accumulate: self.dtype.accumulation(),
            out: self.dtype.accumulation(),
        };
        let y = b.op1(Prim::Convolution(convolution), &[x, w.convert(self.dtype)]);
        let of_channels = |name: &str| {
            state(name, &[outputs], 1.0).convert(y.dtype()).broadcast_in(&y.shape(), &[1])
        };
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
        let space: Vec<usize> = (2..2 + taps.len()).collect();
        let folded = y.reduce(self.reducer, &space);
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
    #![proptest_config(ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_folded_is_what_the_definition_says(case in cases()) {
        let graph = case.graph();
        let input = |(i, port): (usize, &overdrive_ir::Port)| {
            let ty = graph.ty(port.value);
            random(ty.dtype, &ty.sizes(), 1 + i as u64)
        };
        let inputs: Vec<_> = graph.inputs().iter().enumerate().map(input).collect();
        let taps = case.taps.pow(case.extents.len() as u32);
        let terms = case.channels * taps + case.extents.iter().product::<usize>();
        let tolerance = Tolerance::new(case.dtype, terms + 2, 16.0);
        agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)?;
        let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
        let outputs = |threads| {
            let mut session = Session::new(&graph, Mode::Compile, threads, &tensors).unwrap();
            session.run().unwrap();
            session.outputs()
        };
        prop_assert_eq!(outputs(1), outputs(3), "threads change nothing");
    }
}

#[test]
fn a_mean_over_space_stores_no_image() {
    let case = Case {
        dtype: DType::F32,
        images: 2,
        groups: 1,
        channels: 3,
        outputs: 16,
        extents: vec![20, 20],
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
        let plan = session.compiled.plan();
        let folds = |step: &&overdrive_ir::plan::Step| match &step.kind {
            StepKind::Convolution(call) => {
                call.epilogue.0.instrs.iter().any(|i| matches!(i, Instr::Reduce(_)))
            }
            _ => false,
        };
        let largest = plan.slots.iter().map(overdrive_ir::plan::Slot::bytes).max().unwrap();
        let loops =
            plan.steps.iter().filter(|s| !s.prepare && matches!(s.kind, StepKind::Loop(_))).count();
        (plan.steps.iter().filter(folds).count(), loops, largest)
    };
    let image = 4 * 2 * 16 * 20 * 20;
    let (folds, loops, largest) = steps(&case);
    assert!((folds, loops) == (1, 0) && largest < image / 4, "{folds} {loops} {largest}");
    // If the image has another reader, it is stored as well as folded.
    assert_eq!(steps(&Case { stored: true, ..case }), (1, 0, image));
}
