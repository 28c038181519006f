//! Cuts the pixels of an image into bands, lines into pieces, and brings pieces into tiles.
//!
//! It serves convolutions that read pixels where they lie (`direct`).

use std::ops::Range;

use crate::gemm::PIECE;

/// Bytes of the image in a band: they stay in caches while all weights pass.
const NEAR: usize = 128 << 10;

/// Bytes of an image that stays whole in the second-level cache while weights, which are more, pass
/// by once.
const WHOLE: usize = 1 << 20;

/// Tasks for each thread, where the work allows.
const TASKS: usize = 4;

/// Pixels of the output: neighbouring lines, and their columns. These are all columns of a line, or
/// there is one line.
#[derive(Clone, Debug)]
pub(super) struct PixelBand {
    pub(super) image: usize,
    /// Its number in the image.
    pub(super) part: usize,
    pub(super) lines: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// Neighbouring pixels of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its line, counted from the band's first.
    pub(super) line: usize,
    /// The column of its first pixel.
    pub(super) column: usize,
    /// Pixels of the band before it.
    pub(super) number: usize,
}

impl PixelBand {
    pub(super) fn pixels(&self) -> usize {
        self.lines.len() * self.columns.len()
    }

    /// The number in its image of the first pixel, where lines have `line` pixels.
    pub(super) fn first(&self, line: usize) -> usize {
        self.lines.start * line + self.columns.start
    }

    /// Shows `see` one or two pieces of equal length, again and again until it has seen all pixels
    /// once. Pieces are `length` pixels, and fewer at the end of a line.
    pub(super) fn for_each_tile(&self, length: usize, mut see: impl FnMut(&[Piece], usize)) {
        let mut waiting = None;
        for line in 0..self.lines.len() {
            for column in self.columns.clone().step_by(length) {
                let number = line * self.columns.len() + column - self.columns.start;
                let piece = Piece { line, column, number };
                let here = (self.columns.end - column).min(length);
                // A whole piece waits for another whole one, past shorter ones at ends of lines.
                if here < length {
                    see(&[piece], here);
                    continue;
                }
                match waiting.take() {
                    Some(first) => see(&[first, piece], length),
                    None => waiting = Some(piece),
                }
            }
        }
        waiting.iter().for_each(|&piece| see(&[piece], length));
    }
}

/// The length of pieces that computes lines of `line` pixels fastest, the shortest of equal ones:
/// whole pieces go in pairs. A step of a piece costs a multiply-add for each pixel, and about one
/// more to load weights and to loop.
pub(super) fn piece(line: usize) -> usize {
    let cost = |&length: &usize| {
        let (whole, rest) = (line / length, line % length);
        whole * (length + 1) + if rest > 0 { rest + 1 } else { 0 }
    };
    (1..=PIECE).min_by_key(cost).expect("there is a length")
}

/// The work to share.
#[derive(Clone, Copy, Debug)]
pub(super) struct BandShares {
    pub(super) images: usize,
    /// Lines and columns of the output.
    pub(super) output: [usize; 2],
    /// Bands that an image should be cut into.
    pub(super) bands: usize,
    /// Panels of output channels.
    pub(super) panels: usize,
}

/// Bands of an image, and panels of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct BandCutting {
    output: [usize; 2],
    /// Lines of a band, or columns of its only line.
    step: usize,
    pub(super) panels: usize,
}

impl BandShares {
    /// Bands that an image is cut into. They depend on no number of threads, because a fold adds up
    /// band by band.
    pub(super) fn bands(image_bytes: usize, weight_bytes: usize) -> usize {
        let whole = image_bytes <= WHOLE && weight_bytes >= image_bytes / 2;
        if whole { 1 } else { image_bytes.div_ceil(NEAR).max(1) }
    }

    /// Cuts the work into tasks: bands, and where they are too few, panels.
    pub(super) fn cut(&self, threads: usize, piece: usize) -> BandCutting {
        let [lines, columns] = self.output;
        let step = match lines {
            1 => columns.div_ceil(self.bands).next_multiple_of(2 * piece).min(columns),
            _ => lines.div_ceil(self.bands),
        };
        let mut cutting = BandCutting { output: self.output, step, panels: self.panels };
        let tasks = self.images * cutting.bands();
        if tasks < TASKS * threads && threads > 1 {
            let splits = (TASKS * threads).div_ceil(tasks).min(self.panels);
            cutting.panels = self.panels.div_ceil(splits);
        }
        cutting
    }
}

impl BandCutting {
    /// Bands of an image.
    pub(super) fn bands(&self) -> usize {
        let [lines, columns] = self.output;
        if lines == 1 { columns.div_ceil(self.step) } else { lines.div_ceil(self.step) }
    }

    /// Lines and pixels of a band at most.
    pub(super) fn most(&self) -> [usize; 2] {
        let [lines, columns] = self.output;
        if lines == 1 { [1, self.step] } else { [self.step, self.step * columns] }
    }

    /// A band of an image.
    pub(super) fn band(&self, image: usize, part: usize) -> PixelBand {
        let [lines, columns] = self.output;
        let here = |all: usize| part * self.step..((part + 1) * self.step).min(all);
        match lines {
            1 => PixelBand { image, part, lines: 0..1, columns: here(columns) },
            _ => PixelBand { image, part, lines: here(lines), columns: 0..columns },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_every_pixel_once() {
        for (lines, columns, length) in [(3..5, 0..7, 7), (0..3, 0..13, 7), (0..1, 14..45, 6)] {
            let band = PixelBand { image: 0, part: 0, lines, columns };
            let mut seen = vec![0; band.pixels()];
            band.for_each_tile(length, |pieces, length| {
                for piece in pieces {
                    let [line, column] = [piece.line, piece.column - band.columns.start];
                    assert_eq!(piece.number, line * band.columns.len() + column);
                    seen[piece.number..][..length].iter_mut().for_each(|pixel| *pixel += 1);
                }
            });
            assert!(seen.iter().all(|&times| times == 1), "{seen:?}");
        }
    }

    #[test]
    fn pieces_divide_lines_where_some_length_does() {
        let of = |line: usize| piece(line);
        assert_eq!([7, 14, 56, 112, 12, 10, 5].map(of), [7, 7, 7, 7, 6, 5, 5]);
    }

    #[test]
    fn bands_and_panels_give_each_thread_work() {
        let shares = BandShares { images: 1, output: [7, 7], bands: 1, panels: 16 };
        let cutting = shares.cut(2, 7);
        assert_eq!((cutting.bands(), cutting.panels), (1, 2));
        let shares = BandShares { images: 1, output: [1, 3136], bands: 25, panels: 2 };
        let cutting = shares.cut(2, 7);
        assert_eq!((cutting.bands(), cutting.panels), (25, 2));
        let pixels = (0..25).map(|part| cutting.band(0, part).pixels()).sum::<usize>();
        assert_eq!(pixels, 3136);
    }
}
