//! `--export gptq`, `awq` and `modelopt`: codes in layouts that more programs read than
//! compressed-tensors.

use crate::cli::{ExportName, FormatName};
use crate::failure::Failure;
use overdrive::formats::int4::Int4Format;
use overdrive::ir::ops::quantized_linear::Activations;
use overdrive::ir::{BlockFormat, DType, Granularity, Graph, Symmetry};
use overdrive::passes::{QuantizationMode, Rounding};
use overdrive::studies::pretrained::{Coding, Pretrained};
use std::path::Path;

/// A layout of the codes of a published model.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::commands) enum Layout {
    /// That of GPTQ or AWQ.
    Int4(Int4Format),
    /// That of NVIDIA's Model Optimizer.
    ModelOpt,
}

impl From<ExportName> for Layout {
    fn from(name: ExportName) -> Self {
        match name {
            ExportName::Gptq => Self::Int4(Int4Format::Gptq),
            ExportName::Awq => Self::Int4(Int4Format::Awq),
            ExportName::Modelopt => Self::ModelOpt,
        }
    }
}

impl FormatName {
    /// The layout of this name, if it is one.
    pub(in crate::commands) fn layout(self) -> Option<Layout> {
        Some(match self {
            Self::Onnx | Self::Triton => return None,
            Self::Gptq => ExportName::Gptq.into(),
            Self::Awq => ExportName::Awq.into(),
            Self::Modelopt => ExportName::Modelopt.into(),
        })
    }
}

impl Layout {
    /// Its name.
    pub(in crate::commands) fn name(self) -> &'static str {
        match self {
            Self::Int4(format) => format.name(),
            Self::ModelOpt => "modelopt",
        }
    }

    /// Whether it holds the codes of a mode: of four bits, symmetric, alone, or those of NVFP4. No
    /// layout has a word for a rotation.
    pub(in crate::commands) fn holds(self, mode: &QuantizationMode) -> bool {
        let scheme = mode.quantization().scheme;
        let weights = scheme.weights;
        let is_held = match self {
            Self::Int4(_) => {
                weights.element == DType::I4
                    && matches!(weights.block, Granularity::Group(_))
                    && weights.symmetry == Symmetry::Symmetric
                    && scheme.rounding != Rounding::Hqq
            }
            Self::ModelOpt => weights == BlockFormat::NVFP4,
        };
        is_held && scheme.activations == Activations::Float && scheme.rotation.is_none()
    }

    /// Writes the folder; gives notes on which programs can read it.
    pub(super) fn write(
        self,
        folder: &Path,
        (model, graph): (&Pretrained, &Graph),
        coding: &Coding,
    ) -> Result<Vec<String>, Failure> {
        match self {
            Self::Int4(format) => model.write_int4(folder, graph, (coding, format)),
            Self::ModelOpt => model.write_modelopt(folder, graph, coding).map(|()| vec![]),
        }
        .map_err(Failure::bad_input)
    }
}
