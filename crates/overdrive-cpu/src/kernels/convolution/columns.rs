//! Columns of the right matrix: what each tap sees at each output pixel.
#![allow(unsafe_code)] // Raw pointers into the input; taps outside of it are zeros.

use overdrive_ir::plan::Dimension;

/// A spatial dimension: its geometry, the input's extent and stride (in elements), and the output's extent.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) dimension: Dimension,
    pub(super) input: usize,
    pub(super) stride: i64,
    pub(super) output: usize,
}

/// A row of the right matrix: a tap of a channel.
#[derive(Clone, Debug)]
struct Row {
    /// Elements from the group's first channel to the tap's.
    channel: i64,
    /// Where the tap is, per axis, in the input with its zeros inserted.
    taps: Vec<i64>,
}

/// The rows of the right matrix, for any group and image.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    axes: Vec<Axis>,
    rows: Vec<Row>,
}

impl Columns {
    /// `channels` of a group and their stride; `taps` are the kernel's extents.
    pub(super) fn new(axes: Vec<Axis>, (channels, channel_stride): (usize, i64), taps: &[usize]) -> Self {
        let mut rows = Vec::with_capacity(channels * taps.iter().product::<usize>());
        for channel in 0..channels as i64 {
            overdrive_ir::eval::for_each_index(taps, |tap| {
                let dilated = tap.iter().zip(&axes).map(|(&t, a)| (t * a.dimension.kernel_dilation) as i64);
                rows.push(Row { channel: channel * channel_stride, taps: dilated.collect() });
            });
        }
        Self { axes, rows }
    }

    /// Rows of the right matrix: the extent that is summed over.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Output pixels of an image.
    pub(super) fn pixels(&self) -> usize {
        self.axes.iter().map(|axis| axis.output).product()
    }

    /// Fills `to`, `[depth, width]`, with rows `k0..k0 + depth` at the pixels `first..first + width`; pixels past the last
    /// are zeros. `image` is the first element of the group's first channel.
    ///
    /// # Safety
    /// The image has all elements that the axes say, and `to` has room.
    pub(super) unsafe fn panel<T: Copy + Default>(
        &self,
        image: *const T,
        (k0, depth): (usize, usize),
        (first, width): (usize, usize),
        to: *mut T,
    ) {
        let (line, end) = (self.axes.last().map_or(1, |axis| axis.output), self.pixels());
        let mut pixel = first;
        while pixel < first + width {
            let column = pixel - first;
            if pixel >= end {
                for k in 0..depth {
                    // SAFETY: the panel has the row.
                    unsafe { zeros(to.add(k * width + column), width - column) };
                }
                return;
            }
            // Pixels of one line of the output, side by side in the panel.
            let run = (line - pixel % line).min(end - pixel).min(width - column);
            for (k, row) in self.rows[k0..k0 + depth].iter().enumerate() {
                // SAFETY: as the caller promised.
                unsafe { self.run(image, row, (pixel, run), to.add(k * width + column)) };
            }
            pixel += run;
        }
    }

    /// One tap at `run` neighbouring pixels of a line.
    unsafe fn run<T: Copy + Default>(
        &self,
        image: *const T,
        row: &Row,
        (pixel, run): (usize, usize),
        to: *mut T,
    ) {
        let Some((last, outer)) = self.axes.split_last() else {
            // SAFETY: without spatial dimensions the only pixel is the channel's element.
            return unsafe { *to = *image.offset(row.channel as isize) };
        };
        let (mut offset, mut rest) = (row.channel, pixel / last.output);
        for (axis, tap) in outer.iter().zip(&row.taps).rev() {
            let Some(at) = axis.source((rest % axis.output) as i64, *tap) else {
                // SAFETY: the caller has room for the run.
                return unsafe { zeros(to, run) };
            };
            offset += at * axis.stride;
            rest /= axis.output;
        }
        let (start, tap) = ((pixel % last.output) as i64, row.taps[outer.len()]);
        let Dimension { stride, pad_low, input_dilation, .. } = last.dimension;
        // SAFETY: each element that is read is one of the input; the caller has room for the run.
        unsafe {
            let line = image.wrapping_offset(offset as isize);
            if input_dilation != 1 {
                for i in 0..run {
                    let source = last.source(start + i as i64, tap);
                    *to.add(i) = source.map_or(T::default(), |at| *line.offset((at * last.stride) as isize));
                }
                return;
            }
            // Pixel i sees element `begin + i * stride`: from `low` to `high` that is inside.
            let begin = start * stride as i64 + tap - pad_low;
            let reach = |limit: i64| (limit - begin).max(0) as usize;
            let low = reach(0).div_ceil(stride).min(run);
            let high = reach(last.input as i64).div_ceil(stride).clamp(low, run);
            zeros(to, low);
            zeros(to.add(high), run - high);
            let from = line.wrapping_offset(((begin + (low * stride) as i64) * last.stride) as isize);
            let step = stride as isize * last.stride as isize;
            copy(from, step, to.add(low), high - low);
        }
    }
}

impl Axis {
    /// Element of the input that tap `tap` sees at output `at`, if it is one.
    fn source(&self, at: i64, tap: i64) -> Option<i64> {
        let Dimension { stride, pad_low, input_dilation, .. } = self.dimension;
        let position = at * stride as i64 + tap - pad_low;
        let dilation = input_dilation as i64;
        let inside = position >= 0 && position % dilation == 0 && position / dilation < self.input as i64;
        inside.then_some(position / dilation)
    }
}

/// `count` zeros.
unsafe fn zeros<T: Copy + Default>(to: *mut T, count: usize) {
    // SAFETY: the caller has room for them.
    unsafe { std::slice::from_raw_parts_mut(to, count) }.fill(T::default());
}

/// `count` elements, `step` apart.
unsafe fn copy<T: Copy>(from: *const T, step: isize, to: *mut T, count: usize) {
    // SAFETY: the caller has them, and room for them.
    unsafe {
        match step {
            1 => to.copy_from_nonoverlapping(from, count),
            // A constant step becomes shuffles.
            2 => (0..count).for_each(|i| *to.add(i) = *from.add(2 * i)),
            _ => (0..count).for_each(|i| *to.add(i) = *from.offset(i as isize * step)),
        }
    }
}
