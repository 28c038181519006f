//! The modes by name: what the command line and the study choose from.
//!
//! Long because every mode has its entry here.

use super::{Biases, Quantization, RangeRule, Rounding, Tables};
use crate::{Pruning, Statistic};
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, DType, Granularity};

/// The preparation of a graph before its weights are rounded.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub enum Preparation {
    /// Nothing.
    #[default]
    None,
    /// SmoothQuant with this strength.
    Smooth(f64),
    /// AWQ.
    Awq,
    /// Cross-layer equalization.
    Equalize,
    /// Pruning to 2:4; weights are stored as what stays of them.
    Prune(Pruning),
}

impl Preparation {
    /// The statistics that a calibration run must gather for it.
    pub fn statistics(self) -> &'static [Statistic] {
        match self {
            Preparation::None => &[],
            Preparation::Smooth(_) | Preparation::Equalize => &[Statistic::ChannelMagnitude],
            Preparation::Awq => &[Statistic::Gram],
            Preparation::Prune(pruning) => pruning.statistics(),
        }
    }
}

/// A mode.
#[derive(Copy, Clone, Debug)]
pub struct QuantizationMode {
    /// Its name.
    pub name: &'static str,
    /// A description in one line.
    pub summary: &'static str,
    weights: BlockFormat,
    activations: Activations,
    rounding: Rounding,
    rotation: Option<usize>,
    range: RangeRule,
    biases: Biases,
    /// The preparation before rounding.
    pub preparation: Preparation,
}

impl QuantizationMode {
    const fn new(
        name: &'static str,
        summary: &'static str,
        weights: BlockFormat,
        activations: Activations,
    ) -> Self {
        let (rounding, rotation, range) = (Rounding::Nearest, None, RangeRule::MinMax);
        let (biases, preparation) = (Biases::Kept, Preparation::None);
        Self { name, summary, weights, activations, rounding, rotation, range, biases, preparation }
    }

    const fn rounded(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    const fn rotated(self, block: usize) -> Self {
        Self { rotation: Some(block), ..self }
    }

    const fn ranged(self, range: RangeRule) -> Self {
        Self { range, ..self }
    }

    const fn corrected(self) -> Self {
        Self { biases: Biases::Corrected, ..self }
    }

    const fn prepared(self, preparation: Preparation) -> Self {
        Self { preparation, ..self }
    }

    /// The quantization of each layer.
    pub fn quantization(&self) -> Quantization {
        let quantization = Quantization::new(self.weights, self.activations)
            .rounded(self.rounding)
            .rotated(self.rotation);
        // Four bits by row would lose more than all layers do. Training has judged tables in float.
        let has_codes = self.weights.element.bits() <= 8 && !self.is_trained();
        let tables = has_codes.then_some(Tables { format: INT8, least: SMALLEST_TABLE });
        Quantization { range: self.range, biases: self.biases, tables, ..quantization }
    }

    /// Whether its codes are learnt in training, for which it needs data.
    pub fn is_trained(&self) -> bool {
        self.rounding.is_learned()
    }

    /// The mode of this name.
    pub fn find(name: &str) -> Option<&'static QuantizationMode> {
        MODES.iter().find(|mode| mode.name == name)
    }
}

/// Numbers of the smallest table that has codes: a mebibyte in f32. In a model of bytes, codes of
/// tables saved 2 % of the file. They lost four times as much perplexity as those of all layers.
const SMALLEST_TABLE: usize = 1 << 18;
const BF16: BlockFormat = BlockFormat::plain(DType::BF16, Granularity::Tensor);
const F16: BlockFormat = BlockFormat::plain(DType::F16, Granularity::Tensor);
const INT8: BlockFormat = BlockFormat::plain(DType::I8, Granularity::Channel);
const INT4: BlockFormat = BlockFormat::plain(DType::I4, Granularity::Group(128));
const FP8: BlockFormat = BlockFormat::plain(DType::F8E4M3, Granularity::Channel);
/// Weights that are only pruned.
const FLOAT: BlockFormat = BlockFormat::plain(DType::F32, Granularity::Tensor);
const FP8_TENSOR: BlockFormat = BlockFormat::plain(DType::F8E4M3, Granularity::Tensor);
const UP: ScaleFormat = ScaleFormat::E8m0Up;
const FLOOR: ScaleFormat = ScaleFormat::E8m0Floor;

/// Every mode, from sixteen bits to four.
pub const MODES: &[QuantizationMode] = &[
    QuantizationMode::new(
        "bf16",
        "weights and operands of products in bf16, summed in f32; norms stay in float",
        BF16,
        Activations::Float,
    ),
    QuantizationMode::new(
        "f16",
        "weights and operands of products in f16, summed in f32; norms stay in float",
        F16,
        Activations::Float,
    ),
    QuantizationMode::new(
        "int8-dynamic",
        "int8 weights by channel; activations to int8 at run time, a scale for each row",
        INT8,
        Activations::Dynamic(DType::I8),
    ),
    QuantizationMode::new(
        "int8-static",
        "int8 weights by channel; activations to int8, one scale from calibration",
        INT8,
        Activations::Static(DType::I8),
    ),
    QuantizationMode::new(
        "int8-static-percentile",
        "int8-static, scaled to 99.99 % of the values seen in calibration",
        INT8,
        Activations::Static(DType::I8),
    )
    .ranged(RangeRule::Percentile(0.9999)),
    QuantizationMode::new(
        "int8-static-mse",
        "int8-static, scaled for the least mean square error in calibration",
        INT8,
        Activations::Static(DType::I8),
    )
    .ranged(RangeRule::Mse),
    QuantizationMode::new(
        "int8-static-entropy",
        "int8-static, scaled for the least relative entropy in calibration",
        INT8,
        Activations::Static(DType::I8),
    )
    .ranged(RangeRule::Entropy),
    QuantizationMode::new(
        "int8-corrected",
        "int8-static, the mean error of each output taken out of its bias",
        INT8,
        Activations::Static(DType::I8),
    )
    .corrected(),
    QuantizationMode::new(
        "int8-equalized",
        "int8-corrected after cross-layer equalization, for convolutional networks",
        INT8,
        Activations::Static(DType::I8),
    )
    .prepared(Preparation::Equalize)
    .corrected(),
    QuantizationMode::new(
        "int8-smooth",
        "int8-dynamic after SmoothQuant, which moves outliers from activations to weights",
        INT8,
        Activations::Dynamic(DType::I8),
    )
    .prepared(Preparation::Smooth(0.5)),
    QuantizationMode::new(
        "int8-weights",
        "int8 weights by channel; activations stay in float",
        INT8,
        Activations::Float,
    ),
    QuantizationMode::new(
        "fp8",
        "fp8 (e4m3) weights by channel; activations to fp8 at run time, a scale for each row",
        FP8,
        Activations::Dynamic(DType::F8E4M3),
    ),
    QuantizationMode::new(
        "fp8-tensor",
        "fp8 (e4m3) weights and activations, one scale each from calibration",
        FP8_TENSOR,
        Activations::Static(DType::F8E4M3),
    ),
    QuantizationMode::new(
        "mxfp8",
        "fp8 (e4m3) weights and activations, a power-of-two scale for each block of 32",
        BlockFormat::mx(DType::F8E4M3, UP),
        Activations::Blocks(DType::F8E4M3, UP),
    ),
    QuantizationMode::new(
        "mxint8",
        "int8 weights and activations, a power-of-two scale for each block of 32",
        BlockFormat::mx(DType::I8, FLOOR),
        Activations::Blocks(DType::I8, FLOOR),
    ),
    QuantizationMode::new(
        "mxfp6",
        "fp6 (e2m3) weights, a power-of-two scale for each block of 32; activations stay in float",
        BlockFormat::mx(DType::F6E2M3, FLOOR),
        Activations::Float,
    ),
    QuantizationMode::new(
        "int4-rtn",
        "int4 weights in groups of 128, rounded to nearest; activations stay in float",
        INT4,
        Activations::Float,
    ),
    QuantizationMode::new(
        "int4-gptq",
        "int4 weights in groups of 128, rounded by GPTQ; activations stay in float",
        INT4,
        Activations::Float,
    )
    .rounded(Rounding::Gptq),
    QuantizationMode::new(
        "int4-gptaq",
        "int4 weights in groups of 128, rounded by GPTAQ, towards float outputs; activations stay \
         in float",
        INT4,
        Activations::Float,
    )
    .rounded(Rounding::Gptaq),
    QuantizationMode::new(
        "int4-autoround",
        "int4 weights in groups of 128, rounded by AutoRound from GPTQ on; activations stay in \
         float",
        INT4,
        Activations::Float,
    )
    .rounded(Rounding::AutoRound),
    QuantizationMode::new(
        "int4-awq",
        "int4 weights in groups of 128 after AWQ; activations stay in float",
        INT4,
        Activations::Float,
    )
    .prepared(Preparation::Awq),
    QuantizationMode::new(
        "int4-hqq",
        "int4 weights in groups of 128 with the zero points of HQQ; activations stay in float",
        INT4,
        Activations::Float,
    )
    .rounded(Rounding::Hqq),
    QuantizationMode::new(
        "mxfp4",
        "fp4 (e2m1) weights, a power-of-two scale for each block of 32; activations stay in float",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    ),
    QuantizationMode::new(
        "mxfp4-gptq",
        "mxfp4, its scales searched and its weights rounded by GPTQ",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    )
    .rounded(Rounding::Gptq),
    QuantizationMode::new(
        "mxfp4-gptaq",
        "mxfp4, its scales searched and its weights rounded by GPTAQ, towards float outputs",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    )
    .rounded(Rounding::Gptaq),
    QuantizationMode::new(
        "mxfp4-autoround",
        "mxfp4, its scales searched and its weights rounded by AutoRound from GPTQ on",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    )
    .rounded(Rounding::AutoRound),
    QuantizationMode::new(
        "mxfp4-rotated",
        "mxfp4-gptq after Hadamard rotations of each block of 32, for which inputs are multiplied",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    )
    .rotated(32)
    .rounded(Rounding::Gptq),
    QuantizationMode::new(
        "nvfp4",
        "fp4 (e2m1) weights, an e4m3 scale for each block of 16; activations stay in float",
        BlockFormat::NVFP4,
        Activations::Float,
    ),
    QuantizationMode::new(
        "nvfp4-gptq",
        "nvfp4, its scales searched and its weights rounded by GPTQ",
        BlockFormat::NVFP4,
        Activations::Float,
    )
    .rounded(Rounding::Gptq),
    QuantizationMode::new(
        "nvfp4-gptaq",
        "nvfp4, its scales searched and its weights rounded by GPTAQ, towards float outputs",
        BlockFormat::NVFP4,
        Activations::Float,
    )
    .rounded(Rounding::Gptaq),
    QuantizationMode::new(
        "nvfp4-autoround",
        "nvfp4, its scales searched and its weights rounded by AutoRound from GPTQ on",
        BlockFormat::NVFP4,
        Activations::Float,
    )
    .rounded(Rounding::AutoRound),
    QuantizationMode::new(
        "nvfp4-rotated",
        "nvfp4-gptq after Hadamard rotations of each block of 32, for which inputs are multiplied",
        BlockFormat::NVFP4,
        Activations::Float,
    )
    .rotated(32)
    .rounded(Rounding::Gptq),
    QuantizationMode::new(
        "qat-int8",
        "int8 weights by channel and activations with one scale, all learnt in training",
        INT8,
        Activations::Static(DType::I8),
    )
    .rounded(Rounding::Learned),
    QuantizationMode::new(
        "qat-int4",
        "int4 weights in groups of 128, learnt in training; activations stay in float",
        INT4,
        Activations::Float,
    )
    .rounded(Rounding::Learned),
    QuantizationMode::new(
        "qat-fp8",
        "fp8 (e4m3) weights by channel, learnt in training; activations to fp8 at run time",
        FP8,
        Activations::Dynamic(DType::F8E4M3),
    )
    .rounded(Rounding::Learned),
    QuantizationMode::new(
        "qat-mxfp4",
        "mxfp4 with weights and scales learnt in training",
        BlockFormat::mx(DType::F4E2M1, FLOOR),
        Activations::Float,
    )
    .rounded(Rounding::Learned),
    QuantizationMode::new(
        "sparse24-magnitude",
        "2:4 sparse weights, the largest kept; all in float",
        FLOAT,
        Activations::Float,
    )
    .prepared(Preparation::Prune(Pruning::Magnitude)),
    QuantizationMode::new(
        "sparse24-wanda",
        "2:4 sparse weights by Wanda (weight times input size); all in float",
        FLOAT,
        Activations::Float,
    )
    .prepared(Preparation::Prune(Pruning::Wanda)),
    QuantizationMode::new(
        "sparse24-sparsegpt",
        "2:4 sparse weights by SparseGPT; all in float",
        FLOAT,
        Activations::Float,
    )
    .prepared(Preparation::Prune(Pruning::SparseGpt)),
    QuantizationMode::new(
        "sparse24-magnitude-int8",
        "int8-dynamic of 2:4 sparse weights, the largest kept",
        INT8,
        Activations::Dynamic(DType::I8),
    )
    .prepared(Preparation::Prune(Pruning::Magnitude)),
    QuantizationMode::new(
        "sparse24-wanda-int8",
        "int8-dynamic of 2:4 sparse weights by Wanda (weight times input size)",
        INT8,
        Activations::Dynamic(DType::I8),
    )
    .prepared(Preparation::Prune(Pruning::Wanda)),
    QuantizationMode::new(
        "sparse24-sparsegpt-int8",
        "int8-dynamic of 2:4 sparse weights by SparseGPT",
        INT8,
        Activations::Dynamic(DType::I8),
    )
    .prepared(Preparation::Prune(Pruning::SparseGpt)),
];
