//! One spatial dimension of a convolution.

/// Geometry of one spatial dimension of a convolution.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct WindowDimension {
    /// Step between windows.
    pub stride: usize,
    /// Zeros before the first element (negative crops).
    pub pad_low: i64,
    /// Zeros after the last element (negative crops).
    pub pad_high: i64,
    /// Distance between elements of the input after inserting zeros (1 inserts none).
    pub input_dilation: usize,
    /// Distance between taps of the kernel.
    pub kernel_dilation: usize,
}
