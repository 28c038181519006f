//! Windows as ONNX describes them: kernel, strides, dilations, pads or `auto_pad`, and `ceil_mode`.

use crate::onnx::axes::positive;
use crate::onnx::call::Call;
use crate::onnx::fault::{Fault, invalid};
use overdrive_ir::plan::WindowDimension;

/// One spatial dimension.
#[derive(Copy, Clone, Debug)]
pub(super) struct Spatial {
    pub(super) size: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) low: i64,
    pub(super) high: i64,
}

impl Spatial {
    /// Elements that the dilated window covers.
    pub(super) fn reach(&self) -> i64 {
        (self.size as i64 - 1) * self.dilation as i64 + 1
    }

    /// Windows over an extent, without `ceil_mode`.
    pub(super) fn output(&self, input: usize) -> i64 {
        (input as i64 + self.low + self.high - self.reach()).div_euclid(self.stride as i64) + 1
    }

    pub(super) fn dimension(&self) -> WindowDimension {
        WindowDimension {
            stride: self.stride,
            pad_low: self.low,
            pad_high: self.high,
            input_dilation: 1,
            kernel_dilation: self.dilation,
        }
    }
}

/// A list with one entry per spatial dimension, or its default.
pub(super) fn list(
    c: &Call<'_, '_>,
    name: &'static str,
    (count, default): (usize, i64),
) -> Result<Vec<i64>, Fault> {
    let found = c.list(name).unwrap_or_else(|| vec![default; count]);
    if found.len() == count {
        return Ok(found);
    }
    Err(invalid(format!("{count} {name}"), format!("{found:?}")))
}

/// The windows of a node with this kernel over these extents.
pub(super) fn windows(
    c: &Call<'_, '_>,
    kernel: &[usize],
    input: &[usize],
) -> Result<Vec<Spatial>, Fault> {
    let n = kernel.len();
    if n != input.len() {
        return Err(invalid(
            format!("a kernel of {} dimensions", input.len()),
            format!("{kernel:?}"),
        ));
    }
    let strides = list(c, "strides", (n, 1))?;
    let dilations = list(c, "dilations", (n, 1))?;
    let pads = list(c, "pads", (2 * n, 0))?;
    let auto = c.text_or("auto_pad", "NOTSET");
    (0..n)
        .map(|d| {
            let size = positive(kernel[d] as i64, "a kernel size")?;
            let (stride, dilation) =
                (positive(strides[d], "a stride")?, positive(dilations[d], "a dilation")?);
            let (mut low, mut high) = (pads[d], pads[d + n]);
            if low.unsigned_abs() > 1 << 31 || high.unsigned_abs() > 1 << 31 {
                return Err(invalid("pads that can be addressed", format!("{pads:?}")));
            }
            let reach = (size as i64 - 1) * dilation as i64 + 1;
            match auto.as_str() {
                "NOTSET" => {}
                "VALID" => (low, high) = (0, 0),
                "SAME_UPPER" | "SAME_LOWER" => {
                    let windows = (input[d] as i64 + stride as i64 - 1) / stride as i64;
                    let whole = ((windows - 1) * stride as i64 + reach - input[d] as i64).max(0);
                    let less = whole / 2;
                    (low, high) = if auto == "SAME_UPPER" {
                        (less, whole - less)
                    } else {
                        (whole - less, less)
                    };
                }
                other => {
                    return Err(invalid("auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER", other));
                }
            }
            Ok(Spatial { size, stride, dilation, low, high })
        })
        .collect()
}
