//! The providers that run nodes of a graph.

use overdrive_formats::onnx::Dialect;

/// Who runs the nodes of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provider {
    /// MLAS, part of every build of the library.
    Cpu,
    /// Intel's compiler, on the processor.
    OpenVino,
    /// Kernels, cuBLAS and cuDNN.
    Cuda,
    /// NVIDIA's compiler.
    TensorRt,
    /// Its edition for RTX cards, in a library of its own.
    TensorRtRtx,
}

impl Provider {
    /// The ops that it reads. OpenVINO rounds the activations of a MatMulNBits.
    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Cpu | Self::Cuda => Dialect::Microsoft,
            Self::OpenVino | Self::TensorRt | Self::TensorRtRtx => Dialect::Standard,
        }
    }
}
