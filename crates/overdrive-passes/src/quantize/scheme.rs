//! The quantized form of each layer, as data.

use crate::{RangeRule, Statistic};
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, DType, Granularity, Symmetry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Formats of a layer.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Scheme {
    /// Format of its weights, as `[N, K]` with K summed over.
    pub weights: BlockFormat,
    /// How the other operand of the product is coded.
    pub activations: Activations,
    /// How its weights find their codes.
    #[serde(default)]
    pub rounding: Rounding,
    /// Size of the blocks in which a linear layer's inputs, and with them its weights, are turned
    /// by a Hadamard matrix; `None` leaves them as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<usize>,
}

impl Scheme {
    /// Codes to the nearest, of weights as they are.
    pub const fn new(weights: BlockFormat, activations: Activations) -> Self {
        Self { weights, activations, rounding: Rounding::Nearest, rotation: None }
    }

    /// The 16-bit float format of weights that have no codes: they are rounded to it, and so is the
    /// other operand of each product. `None` of every other scheme.
    pub fn half(&self) -> Option<DType> {
        let element = self.weights.element;
        matches!(element, DType::BF16 | DType::F16).then_some(element)
    }

    /// The same, with weights as they are in place of 16 bits.
    fn without_halves(self) -> Self {
        match self.half() {
            Some(_) => {
                Self { weights: BlockFormat::plain(DType::F32, Granularity::Tensor), ..self }
            }
            None => self,
        }
    }
}

/// How weights find their codes.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rounding {
    /// Each to the nearest.
    #[default]
    Nearest,
    /// Column by column, the error of each made up for by those that follow (GPTQ,
    /// arXiv:2210.17323).
    Gptq,
    /// Like GPTQ, towards the outputs of the float model on its own inputs. GPTQ takes the inputs
    /// that codes before the layer have moved (GPTAQ, arXiv:2504.02692).
    Gptaq,
    /// Like GPTQ, then all of a block together by descent on the error of its outputs
    /// ([`auto_round`](crate::auto_round); AutoRound, arXiv:2309.05516).
    AutoRound,
    /// To the nearest, with zero points that minimise a robust norm of the error (HQQ: Badri and
    /// Shaji, 2023).
    Hqq,
    /// With steps and weights that training has learnt ([`learn`](crate::learn)).
    Learned,
}

impl Rounding {
    /// The statistics of a layer's inputs that it needs.
    pub fn statistics(self) -> &'static [Statistic] {
        match self {
            Self::Gptq | Self::AutoRound => &[Statistic::Gram],
            Self::Gptaq => &[Statistic::Gram, Statistic::Drift],
            Self::Nearest | Self::Hqq | Self::Learned => &[],
        }
    }

    /// Whether codes depend on the inputs of a layer, and so on the codes of the layers before it.
    pub fn reads_inputs(self) -> bool {
        !self.statistics().is_empty()
    }

    /// Whether training finds the codes.
    pub fn is_learned(self) -> bool {
        self == Self::Learned
    }

    /// The type of its zero points in a format, if it has any.
    pub(super) fn zero(self, format: &BlockFormat) -> Option<DType> {
        match (self, format.symmetry) {
            (Self::Hqq, _) => Some(DType::F32),
            (_, Symmetry::Asymmetric) => Some(format.element),
            (_, Symmetry::Symmetric) => None,
        }
    }
}

/// Whether a quantized graph may have states that stand for nothing in the float one.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Additions {
    /// It may: multipliers of activations, masks of pruned weights.
    #[default]
    Free,
    /// It has codes alone, as files of published architectures do: multipliers go into norms and
    /// other weights, and pruned weights keep their zeros. Groups become as small as divides the
    /// inputs of a layer, so that every layer has codes.
    None,
}

/// Whether the biases of quantized layers change.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Biases {
    /// They stay.
    #[default]
    Kept,
    /// They take up the mean error of each channel
    /// ([`correct_biases`](crate::correct_biases)).
    Corrected,
}

/// The scheme of each layer, and its details.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantization {
    /// The scheme of every layer that `layers` does not name.
    pub scheme: Scheme,
    /// How the range of static activations follows from the observed values.
    pub range: RangeRule,
    /// Schemes of single layers by name; `None` leaves the layer as it is.
    pub layers: BTreeMap<String, Option<Scheme>>,
    /// Whether states may be added that the float graph lacks.
    #[serde(default)]
    pub additions: Additions,
    /// Whether biases change.
    #[serde(default)]
    pub biases: Biases,
    /// The codes of tables of embeddings; `None` leaves them as they are.
    #[serde(default)]
    pub tables: Option<Tables>,
}

/// The codes of tables of embeddings.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tables {
    /// Their format.
    pub format: BlockFormat,
    /// Numbers of the smallest table that has codes.
    pub least: usize,
}

impl Quantization {
    /// Every layer alike, to the nearest.
    pub fn new(weights: BlockFormat, activations: Activations) -> Self {
        Self {
            scheme: Scheme::new(weights, activations),
            range: RangeRule::MinMax,
            layers: BTreeMap::new(),
            additions: Additions::Free,
            biases: Biases::Kept,
            tables: None,
        }
    }

    /// The same, rounded so.
    pub fn rounded(mut self, rounding: Rounding) -> Self {
        self.scheme.rounding = rounding;
        self
    }

    /// The same, with inputs and weights of linear layers rotated in blocks of this size.
    pub fn rotated(mut self, rotation: Option<usize>) -> Self {
        self.scheme.rotation = rotation;
        self
    }

    /// The same for these layers alone. Every other one is left as it is. So is a weight of no
    /// layer, such as a table of embeddings.
    pub fn only(&self, chosen: &[&str], all: &[&str]) -> Self {
        let of = |name: &&str| {
            let scheme = if chosen.contains(name) { self.of(name) } else { None };
            ((*name).to_owned(), scheme)
        };
        let scheme = self.scheme.without_halves();
        Self { scheme, layers: all.iter().map(of).collect(), tables: None, ..self.clone() }
    }

    /// The same for codes of layers: tables stay as they are, and so do weights that are to have 16
    /// bits.
    pub fn codes_of_layers(&self) -> Self {
        let of = |(name, scheme): (&String, &Option<Scheme>)| {
            (name.clone(), scheme.map(Scheme::without_halves))
        };
        let scheme = self.scheme.without_halves();
        let layers = self.layers.iter().map(of).collect();
        Self { scheme, layers, tables: None, ..self.clone() }
    }

    /// Whether a weight is to have 16 bits.
    pub fn halves(&self) -> bool {
        self.schemes().any(|scheme| scheme.half().is_some())
    }

    /// The scheme of a layer, if it is to have one.
    pub fn of(&self, layer: &str) -> Option<Scheme> {
        self.layers.get(layer).copied().unwrap_or(Some(self.scheme))
    }

    /// Whether training finds the codes of a layer.
    pub fn is_learned(&self) -> bool {
        self.schemes().any(|scheme| scheme.rounding.is_learned())
    }

    /// Whether the codes of a layer are looked for by descent.
    pub fn descends(&self) -> bool {
        self.schemes().any(|scheme| scheme.rounding == Rounding::AutoRound)
    }

    fn schemes(&self) -> impl Iterator<Item = &Scheme> {
        self.layers.values().flatten().chain([&self.scheme])
    }

    /// The statistics that a calibration run must gather for it.
    pub fn statistics(&self) -> Vec<Statistic> {
        let schemes = || self.schemes();
        let mut statistics = Vec::new();
        if schemes().any(|scheme| matches!(scheme.activations, Activations::Static(_))) {
            statistics.push(Statistic::Range);
            if self.range != RangeRule::MinMax {
                statistics.push(Statistic::Histogram);
            }
        }
        for &statistic in schemes().flat_map(|scheme| scheme.rounding.statistics()) {
            if !statistics.contains(&statistic) {
                statistics.push(statistic);
            }
        }
        statistics
    }
}
