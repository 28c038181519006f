//! Convolutions of random geometry against the reference: odd extents, strides, dilations of both
//! sides, groups, pads of either sign and tails of every block. They have one to three spatial
//! dimensions, and operands as they lie and transposed.

use crate::support::{Session, agrees, random};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::plan::WindowDimension;
use overdrive_ir::{Array, Builder, Convolution, DType, Graph, Init, Mode, Prim, TensorType};
use proptest::prelude::*;
use testkit::Tolerance;

/// A convolution of any geometry, with its epilogue.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    images: usize,
    groups: usize,
    /// Channels and outputs of a group.
    channels: usize,
    outputs: usize,
    extents: Vec<usize>,
    taps: Vec<usize>,
    window: Vec<WindowDimension>,
    /// Whether the operands lie with channels last.
    transposed: bool,
    /// Whether the weights never change, so that they are packed ahead.
    fixed: bool,
    /// Whether a factor and a summand of each channel and a ReLU follow.
    followed: bool,
}

fn axis(extents: std::ops::Range<usize>) -> impl Strategy<Value = (usize, usize, WindowDimension)> {
    let dimension =
        (1usize..4, -1i64..3, -1i64..3, prop_oneof![4 => Just(1usize), 1 => Just(2)], 1usize..3);
    let dimension =
        dimension.prop_map(|(stride, pad_low, pad_high, input_dilation, kernel_dilation)| {
            WindowDimension { stride, pad_low, pad_high, input_dilation, kernel_dilation }
        });
    (extents, 1usize..4, dimension).prop_filter("the kernel fits", |(extent, taps, d)| {
        let input = (extent - 1) * d.input_dilation + 1;
        input as i64 + d.pad_low + d.pad_high >= ((taps - 1) * d.kernel_dilation + 1) as i64
    })
}

fn cases() -> impl Strategy<Value = Case> {
    cases_of(1..3, 3..21)
}

/// Batches of images of so few pixels that several of them are computed together.
fn small_images() -> impl Strategy<Value = Case> {
    cases_of(1..12, 1..10)
}

fn cases_of(
    images: std::ops::Range<usize>,
    extents: std::ops::Range<usize>,
) -> impl Strategy<Value = Case> {
    let dtypes = [DType::F32, DType::BF16, DType::F16, DType::I8, DType::F64];
    let channels = prop_oneof![3 => 1usize..9, 1 => 60usize..90];
    let outputs = prop_oneof![3 => 1usize..20, 1 => 30usize..50];
    let shape =
        (images, 1usize..3, channels, outputs, proptest::collection::vec(axis(extents), 0..4));
    (proptest::sample::select(dtypes.to_vec()), shape, any::<[bool; 3]>()).prop_map(
        |(dtype, (images, groups, channels, outputs, axes), [transposed, fixed, followed])| {
            // Three dimensions are walked through in full by the reference: fewer channels.
            let channels = if axes.len() > 2 { channels.min(4) } else { channels };
            Case {
                dtype,
                images,
                groups,
                channels,
                outputs,
                extents: axes.iter().map(|a| a.0).collect(),
                taps: axes.iter().map(|a| a.1).collect(),
                window: axes.iter().map(|a| a.2).collect(),
                transposed,
                fixed,
                followed: followed && dtype.is_float(),
            }
        },
    )
}

/// Convolutions that are computed with fewer multiplications: 3x3 taps, steps of 1 and 2, odd ends
/// of lines and panels.
fn winograd_cases() -> impl Strategy<Value = Case> {
    let channels = prop_oneof![6 => 16usize..40, 1 => 129usize..133];
    let axis = (19usize..30, -1i64..3, -1i64..3)
        .prop_filter("the kernel fits", |(e, low, high)| *e as i64 + low + high >= 3);
    let shape = (
        1usize..3,
        1usize..3,
        channels,
        32usize..50,
        1usize..3,
        proptest::collection::vec(axis, 2),
    );
    (shape, any::<[bool; 2]>()).prop_map(
        |((images, groups, channels, outputs, stride, axes), [fixed, followed])| {
            let dimension = |&(_, pad_low, pad_high): &(usize, i64, i64)| WindowDimension {
                stride,
                pad_low,
                pad_high,
                input_dilation: 1,
                kernel_dilation: 1,
            };
            Case {
                dtype: DType::F32,
                images,
                groups,
                channels,
                outputs,
                extents: axes.iter().map(|a| a.0).collect(),
                taps: vec![3, 3],
                window: axes.iter().map(dimension).collect(),
                transposed: false,
                fixed,
                followed,
            }
        },
    )
}

/// Groups of few outputs each, depthwise ones among them, in one to three dimensions. Several small
/// images are computed as one; large ones are cut into bands.
fn few_outputs() -> impl Strategy<Value = Case> {
    let dtypes = [DType::F32, DType::F32, DType::BF16, DType::F16, DType::I8, DType::F64];
    let shape = (
        1usize..10,
        1usize..20,
        1usize..4,
        1usize..5,
        proptest::collection::vec(axis(2..21), 1..4),
    );
    let large = proptest::option::weighted(0.2, 100usize..160);
    (proptest::sample::select(dtypes.to_vec()), shape, large, any::<[bool; 3]>()).prop_map(
        |(
            dtype,
            (images, groups, channels, outputs, axes),
            large,
            [transposed, fixed, followed],
        )| {
            let mut extents: Vec<usize> = axes.iter().map(|a| a.0).collect();
            let [mut images, mut groups] = [images, groups];
            // The reference walks through all of it.
            if extents.len() > 2 || large.is_some() {
                (images, groups) = (images.min(2), groups.min(3));
            }
            if let (Some(large), ..=2) = (large, extents.len()) {
                extents.fill(large);
            }
            Case {
                dtype,
                images,
                groups,
                channels,
                outputs,
                extents,
                taps: axes.iter().map(|a| a.1).collect(),
                window: axes.iter().map(|a| a.2).collect(),
                transposed,
                fixed,
                followed: followed && dtype.is_float(),
            }
        },
    )
}

impl Case {
    fn shapes(&self) -> [Vec<usize>; 3] {
        let with = |a: usize, b: usize, rest: &[usize]| [&[a, b], rest].concat();
        let outputs = self.groups * self.outputs;
        [
            with(self.images, self.groups * self.channels, &self.extents),
            with(outputs, self.channels, &self.taps),
            vec![outputs],
        ]
    }

    /// With `transposed`, the graph's own inputs have channels last.
    fn graph(&self) -> (Graph, Vec<Vec<usize>>) {
        let b = Builder::new("convolution");
        let rank = 2 + self.extents.len();
        let last: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let back: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let [x, w, bias] = self.shapes();
        let mut shapes = vec![x, w, bias];
        if self.transposed {
            for shape in &mut shapes[..2] {
                *shape = last.iter().map(|&d| shape[d]).collect();
            }
        }
        let input =
            |i: usize| b.input(&format!("x{i}"), TensorType::new(self.dtype, shapes[i].clone()));
        let weights = || {
            let ty = TensorType::new(DType::F32, shapes[1].clone());
            let std = if self.dtype.is_float() { 1.0 } else { 9.0 };
            b.state("w", ty, Init::Normal { std, seed: 7 }).convert(self.dtype)
        };
        let (x, w, bias) = (input(0), if self.fixed { weights() } else { input(1) }, input(2));
        let [x, w] = [x, w].map(|v| if self.transposed { v.transpose(&back) } else { v });
        let (accumulate, out) = match self.dtype {
            DType::I8 => (DType::I32, DType::I32),
            dtype if self.followed => (dtype.accumulation(), dtype.accumulation()),
            dtype => (dtype.accumulation(), dtype),
        };
        let convolution =
            Convolution { window: self.window.clone(), groups: self.groups, accumulate, out };
        let y = b.op1(Prim::Convolution(convolution), &[x, w]);
        if self.followed {
            let bias = bias.convert(y.dtype()).broadcast_in(&y.shape(), &[1]);
            b.output("y", (y * bias + bias).relu().convert(self.dtype));
        } else {
            b.output("y", y);
            b.output("bias", bias);
        }
        if self.fixed {
            shapes.remove(1);
        }
        (b.finish().unwrap(), shapes)
    }

    /// The graph, and random inputs.
    fn inputs(&self) -> (Graph, Vec<Array>) {
        let (graph, shapes) = self.graph();
        let input = |(i, shape): (usize, &Vec<usize>)| random(self.dtype, shape, 1 + i as u64);
        (graph, shapes.iter().enumerate().map(input).collect())
    }

    fn terms(&self) -> usize {
        self.channels * self.taps.iter().product::<usize>()
    }
}

/// Chains that hand each other bf16 activations with channels last, where tiles of pixels are
/// multiplied. They have:
///
/// - an interleaved image of few channels;
/// - zeros around and none, steps, and dilated taps;
/// - lines of the output that are no multiple of a tile.
fn chains() -> impl Strategy<Value = Graph> {
    let layer = || (1usize..4, 1usize..4, 1usize..3, 0usize..3, 1usize..3);
    (1usize..3, 1usize..5, 30usize..40, 30usize..50, [layer(), layer(), layer()], any::<bool>())
        .prop_map(|(images, channels, height, width, layers, ends)| {
            let b = Builder::new("chain");
            let x = b.input("x", TensorType::new(DType::F32, [images, channels, height, width]));
            let std = |terms: usize| Init::Normal { std: (1.0 / terms as f64).sqrt(), seed: 7 };
            let mut h = x.convert(DType::BF16);
            for (i, (down, along, stride, pad, dilation)) in layers.into_iter().enumerate() {
                let [inputs, outputs] = [h.size(1), [32, 64, 32][i]];
                let shape = [outputs, inputs, down, along];
                let w = b.state(
                    &format!("w{i}"),
                    TensorType::new(DType::F32, shape),
                    std(inputs * down * along),
                );
                let bias =
                    b.state(&format!("b{i}"), TensorType::new(DType::F32, [outputs]), std(1));
                let geometry = Conv2d {
                    stride: [stride, if i == 0 { 1 } else { stride }],
                    pad: [[pad, 1], [1, pad]],
                    dilation: if i == 0 { [1, 1] } else { [dilation; 2] },
                    groups: 1,
                };
                let mut convolution = geometry.convolution(DType::BF16);
                convolution.out = DType::F32;
                let y = b.op1(Prim::Convolution(convolution), &[h, w.convert(DType::BF16)]);
                let y = (y + bias.broadcast_in(&y.shape(), &[1])).relu();
                h = if i == 1 && !ends { y.gelu(Approximation::Tanh) } else { y }
                    .convert(DType::BF16);
            }
            b.output("y", h);
            b.finish().unwrap()
        })
}

fn agrees_with_the_definition(case: &Case) -> Result<(), TestCaseError> {
    let (graph, inputs) = case.inputs();
    let tolerance = match case.dtype {
        DType::I8 => Tolerance { absolute: 0.0, relative: 0.0 },
        dtype => Tolerance::new(dtype, case.terms() + 2, 16.0),
    };
    agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)
}

/// Whether results are the same on one thread and on three.
fn threads_change_nothing(case: &Case) -> Result<(), TestCaseError> {
    let (graph, inputs) = case.inputs();
    let inputs: Vec<_> = inputs.iter().map(|input| input.to_tensor()).collect();
    let outputs = |threads| {
        let mut session = Session::new(&graph, Mode::Compile, threads, &inputs).unwrap();
        session.run().unwrap();
        session.outputs()
    };
    prop_assert_eq!(outputs(1), outputs(3), "threads change nothing");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_convolution_is_what_the_definition_says(case in cases()) {
        agrees_with_the_definition(&case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn small_images_of_a_batch_are_what_the_definition_says_on_any_number_of_threads(
        case in small_images(),
    ) {
        agrees_with_the_definition(&case)?;
        threads_change_nothing(&case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn few_outputs_of_a_group_are_what_the_definition_says(case in few_outputs()) {
        agrees_with_the_definition(&case)?;
        threads_change_nothing(&case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn fewer_multiplications_give_what_the_definition_says(case in winograd_cases()) {
        agrees_with_the_definition(&case)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn chains_agree_whatever_the_order_of_their_channels(graph in chains()) {
        let x = random(DType::F32, &graph.ty(graph.inputs()[0].value).sizes(), 1);
        agrees(&graph, &[x], Tolerance::new(DType::BF16, 600, 2.0)).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn codes_are_convolved_as_what_they_stand_for() {
    let b = Builder::new("codes");
    let shapes: [&[usize]; 5] = [&[2, 19, 11, 13], &[2, 1, 1, 1], &[21, 171], &[21, 1], &[21]];
    let input = |i: usize| {
        let dtype = if i == 0 || i == 2 { DType::I8 } else { DType::F32 };
        b.input(&format!("x{i}"), TensorType::new(dtype, shapes[i].to_vec()))
    };
    let [x, x_scale, w, scale, bias] = std::array::from_fn(input);
    let w = w.dequantize(scale, None).reshape([21usize, 19, 3, 3]);
    let y = x.dequantize(x_scale, None).conv2d(w, Some(bias), Conv2d::new(2, 1));
    b.output("y", y.relu());
    let graph = b.finish().unwrap();
    let inputs: Vec<_> = graph
        .inputs()
        .iter()
        .map(|port| random(graph.ty(port.value).dtype, &graph.ty(port.value).sizes(), 3))
        .collect();
    agrees(&graph, &inputs, Tolerance::new(DType::F32, 173, 16.0)).unwrap();
}
