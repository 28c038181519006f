//! Cuts a chain of convolutions into bands: lines of the last output, and the lines of the other
//! outputs that they need.

use std::ops::Range;

use overdrive_ir::plan::{ConvolutionCall, WindowDimension};

/// The longest chain.
pub(super) const MOST: usize = 4;

/// Lines that some forms of convolutions compute together: ranges begin with a multiple, and end
/// with one or the last line.
const GRAIN: usize = 2;

/// Bytes between two convolutions below which they would stay in caches as a whole.
const LEAST: usize = 8 << 20;

/// Bytes of a band, which shares the second-level cache with packed weights and panels.
const BAND: usize = 512 << 10;

/// Bytes of all kernels, which each band reads, and which are packed into up to three times as
/// many.
const KERNELS: usize = 512 << 10;

/// Bands that there should be, so that there are some for each thread.
const BANDS: usize = 8;

/// Pixels of the last output that a band has at least, so that panels are full.
const PIXELS: usize = 256;

/// FLOPs that may be done twice for each byte that needs not be moved.
const FLOPS_PER_BYTE: usize = 8;

/// Lines of the output of a convolution, and the lines of its input that each of them needs.
#[derive(Clone, Copy, Debug)]
struct BandLines {
    count: usize,
    taps: usize,
    dimension: WindowDimension,
}

/// Bands of a chain.
#[derive(Clone, Debug)]
pub(super) struct Bands {
    links: Vec<BandLines>,
    /// Lines of the last output in a band.
    lines: usize,
    /// Bands of an image.
    pub(super) count: usize,
    /// For each convolution the most lines that a band has of its output.
    pub(super) most: Vec<usize>,
}

impl Bands {
    fn of_lines(links: Vec<BandLines>, lines: usize) -> Self {
        let count = links[links.len() - 1].count.div_ceil(lines);
        let mut bands = Self { most: vec![0; links.len()], links, lines, count };
        for band in 0..count {
            let ranges = bands.ranges(band);
            bands
                .most
                .iter_mut()
                .zip(ranges)
                .for_each(|(most, range)| *most = range.len().max(*most));
        }
        bands
    }

    /// The bands of a chain; errs with the reason where its convolutions are none that can be cut
    /// so.
    pub(super) fn new(calls: &[ConvolutionCall]) -> Result<Self, String> {
        if calls.len() > MOST {
            return Err(format!("a chain has at most {MOST} convolutions"));
        }
        if !calls.iter().all(is_plane) || !calls[1..].iter().all(is_handed_line_by_line) {
            return Err(
                "only plain convolutions over planes, handed on line by line, are cut into bands"
                    .into(),
            );
        }
        let lines = |call: &ConvolutionCall| BandLines {
            count: call.epilogue.0.extents[2],
            taps: call.kernel.ty.sizes()[2],
            dimension: call.window[0],
        };
        let links: Vec<BandLines> = calls.iter().map(lines).collect();
        let [images, _, all, width] = *calls[calls.len() - 1].epilogue.0.extents else {
            return Err("the last result is no batch of planes".into());
        };
        let least = PIXELS.div_ceil(width).min(all);
        let largest = (all * images).div_ceil(BANDS).clamp(least, all);
        let fits = |bands: &Self| {
            calls[1..].iter().enumerate().all(|(i, call)| bands.bytes(i, call) <= BAND)
        };
        let of_lines = |lines| Self::of_lines(links.clone(), lines * GRAIN);
        let some = (least.div_ceil(GRAIN)..=largest.div_ceil(GRAIN)).rev().map(of_lines).find(fits);
        let some =
            some.ok_or_else(|| format!("no band of {PIXELS} pixels is within {BAND} bytes"))?;
        // As many bands, but as even as possible.
        Ok(of_lines(all.div_ceil(some.count).div_ceil(GRAIN)))
    }

    /// Whether the bytes that are not moved are worth the lines that are computed twice. Errs with
    /// the reason where they are not.
    pub(super) fn pay(&self, calls: &[ConvolutionCall]) -> Result<(), String> {
        let handed = || calls[1..].iter().map(|call| call.input.ty.bytes());
        if let Some(bytes) = handed().find(|&bytes| bytes < LEAST) {
            return Err(format!("{bytes} bytes between them stay in caches as a whole"));
        }
        let kernels: usize = calls.iter().map(|call| call.kernel.ty.bytes()).sum();
        if kernels > KERNELS {
            return Err(format!("each band would read {kernels} bytes of kernels"));
        }
        let (twice, kept) = (self.flops_done_twice(calls), handed().sum::<usize>());
        if twice > FLOPS_PER_BYTE * kept {
            return Err(format!(
                "{twice} FLOPs would be done twice to keep {kept} bytes from memory"
            ));
        }
        Ok(())
    }

    /// Bytes of a band that convolution `link` hands the next, `call`.
    pub(super) fn bytes(&self, link: usize, call: &ConvolutionCall) -> usize {
        let sizes = call.input.ty.sizes();
        self.most[link] * sizes[1] * sizes[3] * call.input.ty.dtype.bits() / 8
    }

    fn flops_done_twice(&self, calls: &[ConvolutionCall]) -> usize {
        let twice = |(i, call): (usize, &ConvolutionCall)| {
            let computed: usize = (0..self.count).map(|band| self.ranges(band)[i].len()).sum();
            let terms: usize = call.kernel.ty.sizes()[1..].iter().product();
            2 * terms * call.epilogue.0.points() / self.links[i].count
                * computed.saturating_sub(self.links[i].count)
        };
        calls.iter().enumerate().map(twice).sum()
    }

    /// The lines of each output that a band has.
    pub(super) fn ranges(&self, band: usize) -> [Range<usize>; MOST] {
        let mut ranges = [const { 0..0 }; MOST];
        let last = self.links.len() - 1;
        let start = band * self.lines;
        ranges[last] = start..(start + self.lines).min(self.links[last].count);
        // A range of a band whose windows lie in padding is empty, and so are those before it.
        for i in (0..last).rev() {
            if ranges[i + 1].is_empty() {
                break;
            }
            let BandLines { taps, dimension, .. } = self.links[i + 1];
            let WindowDimension { stride, pad_low, kernel_dilation, .. } = dimension;
            let (first, end) = (ranges[i + 1].start, ranges[i + 1].end.next_multiple_of(GRAIN));
            let line = |at: i64| at.clamp(0, self.links[i].count as i64) as usize;
            let low = line((first * stride) as i64 - pad_low);
            let high =
                line(((end - 1) * stride + (taps - 1) * kernel_dilation + 1) as i64 - pad_low);
            let start = low / GRAIN * GRAIN;
            ranges[i] = start..high.next_multiple_of(GRAIN).min(self.links[i].count).max(start);
        }
        ranges
    }
}

/// Whether a convolution is over planes, and each of its lines needs neighbouring ones.
fn is_plane(call: &ConvolutionCall) -> bool {
    let taps = call.kernel.ty.sizes()[2..].iter().product::<usize>();
    call.window.len() == 2
        && call.groups == 1
        && call.window[0].input_dilation == 1
        && taps * call.epilogue.0.points() > 0
}

/// Whether the input of a convolution lies line by line, all channels of a pixel or all pixels of a
/// channel side by side.
fn is_handed_line_by_line(call: &ConvolutionCall) -> bool {
    let sizes = call.input.ty.sizes();
    let [_, c, h, w] = [0, 1, 2, 3].map(|d| sizes[d] as i64);
    let rows = [[c * h * w, h * w, w, 1], [h * w * c, 1, w * c, c]];
    call.input.offset == 0 && rows.iter().any(|row| call.input.strides == row)
}
