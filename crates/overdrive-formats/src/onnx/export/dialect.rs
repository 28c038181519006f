//! `Dialect`: which ops a file may have.

/// The ops that a file may have.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Those of the standard, which is all that TensorRT reads.
    Standard,
    /// MatMulNBits of com.microsoft too, for weights of int4 and int8 in blocks. ONNX Runtime and
    /// tract read it.
    Microsoft,
}
