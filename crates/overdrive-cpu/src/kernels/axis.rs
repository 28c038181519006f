//! A dimension that a window slides along, for convolutions and windowed reductions.
//!
//! Places of a window are steps apart. So a tap sees every step-th element at neighbouring places.
//! Positions are split into *phases* by their remainder by the step. Neighbouring places then see
//! neighbouring positions of a phase, *shifted* by as much as the tap lies behind the first.

use overdrive_ir::plan::WindowDimension;

/// A dimension that a window slides along: its geometry, the input's extent and stride, places, and
/// taps. The stride is in elements or in bytes, as its owner counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowAxis {
    pub(super) dimension: WindowDimension,
    pub(super) input: usize,
    pub(super) stride: isize,
    pub(super) output: usize,
    pub(super) taps: usize,
}

impl WindowAxis {
    /// No dimension at all.
    pub(super) const NONE: Self = Self {
        dimension: WindowDimension {
            stride: 1,
            pad_low: 0,
            pad_high: 0,
            input_dilation: 1,
            kernel_dilation: 1,
        },
        input: 1,
        stride: 0,
        output: 1,
        taps: 1,
    };

    /// The same with the step that makes fewest positions: of one place, any will do.
    pub(super) fn normal(mut self) -> Self {
        if self.output == 1 {
            self.dimension.stride =
                self.taps.saturating_sub(1) * self.dimension.kernel_dilation + 1;
        }
        self
    }

    /// The phase and the shift of a tap.
    pub(super) fn tap(&self, tap: usize) -> (usize, usize) {
        let at = tap * self.dimension.kernel_dilation;
        (at % self.dimension.stride, at / self.dimension.stride)
    }

    /// The remainders of taps by the step, in their order.
    pub(super) fn phases(&self) -> Vec<usize> {
        let mut phases: Vec<usize> = (0..self.taps).map(|tap| self.tap(tap).0).collect();
        phases.sort_unstable();
        phases.dedup();
        phases
    }

    /// The largest shift of a tap.
    pub(super) fn reach(&self) -> usize {
        self.tap(self.taps.saturating_sub(1)).1
    }

    /// The element of the input at a place of the padded input with its zeros inserted, if it is
    /// one.
    pub(super) fn source(&self, place: usize) -> Option<usize> {
        let WindowDimension { pad_low, input_dilation, .. } = self.dimension;
        let position = usize::try_from(place as i64 - pad_low).ok()?;
        if input_dilation == 1 {
            return (position < self.input).then_some(position);
        }
        let inside =
            position.is_multiple_of(input_dilation) && position / input_dilation < self.input;
        inside.then_some(position / input_dilation)
    }
}
