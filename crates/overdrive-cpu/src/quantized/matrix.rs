//! `QuantizedMatrix`: codes, scales and zeros, and their meaning.

use std::ops::Range;

use overdrive_ir::DType;

#[cfg(target_arch = "x86_64")]
use super::decode;
use super::numbers::PackedNumbers;

/// A matrix of N rows, which are the columns that x is multiplied by, and K columns.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedMatrix<'a> {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) group: usize,
    pub(super) codes: PackedNumbers<'a>,
    scales: PackedNumbers<'a>,
    pub(super) zeros: Option<PackedNumbers<'a>>,
    factor: f32,
}

/// Codes that become numbers together, on the stack.
const CHUNK: usize = 256;

impl<'a> QuantizedMatrix<'a> {
    /// Weights of `shape` N, K in groups of `group` consecutive elements of a row. Each group has a
    /// scale, and a zero in the units of codes if there are any. Codes are `[N, K]`. Scales and
    /// zeros are `[R, K / group]`, where R divides N and each row of scales is that of N / R rows
    /// of codes.
    ///
    /// # Panics
    /// If groups do not divide K, or rows of scales N.
    pub fn new(
        [n, k]: [usize; 2],
        group: usize,
        codes: PackedNumbers<'a>,
        scales: PackedNumbers<'a>,
        zeros: Option<PackedNumbers<'a>>,
    ) -> Self {
        assert!(group > 0 && k.is_multiple_of(group), "groups of {group} divide a row of {k}");
        assert_eq!(codes.len(), n * k, "codes are [{n}, {k}]");
        let weights = Self { n, k, group, codes, scales, zeros, factor: 1.0 };
        for numbers in [Some(scales), zeros].into_iter().flatten() {
            let rows = numbers.len().checked_div(weights.groups()).unwrap_or(n);
            let whole = rows * weights.groups() == numbers.len()
                && (n == 0 || rows > 0 && n.is_multiple_of(rows));
            assert!(whole, "{} scales or zeros of {n} rows of {}", numbers.len(), weights.groups());
        }
        weights
    }

    /// The same with all scales times `factor`.
    pub fn times(self, factor: f32) -> Self {
        Self { factor: self.factor * factor, ..self }
    }

    /// Codes of a 32-bit lane, where there are vector kernels for the format.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn codes_per_lane(&self) -> Option<usize> {
        let codes = self.codes.dtype();
        matches!(codes, DType::I4 | DType::F4E2M1 | DType::I8).then(|| 32 / codes.bits())
    }

    /// Groups of a row.
    pub(super) fn groups(&self) -> usize {
        self.k / self.group
    }

    /// Writes all scales and zeros of the rows `range`, a row after the other.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn scales_of_rows(&self, range: Range<usize>, [scales, zeros]: [&mut [f32]; 2]) {
        let groups = self.groups();
        let each = |numbers: &PackedNumbers<'_>| numbers.len() == self.n * groups;
        if each(&self.scales) && self.zeros.as_ref().is_none_or(each) {
            // One row of as many groups.
            let all = Self { n: 1, k: self.n * self.k, ..*self };
            return all.scales(0, range.start * groups..range.end * groups, [scales, zeros]);
        }
        let rooms = scales.chunks_mut(groups).zip(zeros.chunks_mut(groups));
        range
            .zip(rooms)
            .for_each(|(row, (scales, zeros))| self.scales(row, 0..groups, [scales, zeros]));
    }

    /// Writes the scales of the groups `range` of row `row` as they are kept: without the factor of
    /// all.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn plain_scales(&self, row: usize, range: Range<usize>, scales: &mut [f32]) {
        let row = row / (self.n / (self.scales.len() / self.groups())) * self.groups();
        self.scales.decode(row + range.start..row + range.end, scales);
    }

    /// The format of scales, and the factor of all of them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn scale_format(&self) -> (DType, f32) {
        (self.scales.dtype(), self.factor)
    }

    /// Writes the scales, and the zeros where there are any and zeros where not, of the groups
    /// `range` of row `row`.
    #[inline]
    pub(super) fn scales(&self, row: usize, range: Range<usize>, [scales, zeros]: [&mut [f32]; 2]) {
        let groups = self.groups();
        let of = |numbers: PackedNumbers<'_>| {
            let row = row / (self.n / (numbers.len() / groups));
            row * groups + range.start..row * groups + range.end
        };
        self.scales.decode(of(self.scales), scales);
        if self.factor != 1.0 {
            scales.iter_mut().for_each(|scale| *scale *= self.factor);
        }
        match self.zeros {
            Some(numbers) => numbers.decode(of(numbers), zeros),
            None => zeros.fill(0.0),
        }
    }

    /// Writes elements `range` of row `row`: `(code - zero) * scale`, each rounded to f32.
    pub(super) fn decode(&self, row: usize, range: Range<usize>, to: &mut [f32]) {
        let mut at = range.start;
        while at < range.end {
            let group = at / self.group;
            let end = ((group + 1) * self.group).min(range.end);
            let (mut scale, mut zero) = ([0.0], [0.0]);
            self.scales(row, group..group + 1, [&mut scale, &mut zero]);
            let to = &mut to[at - range.start..end - range.start];
            self.group_part(row * self.k + at, [zero[0], scale[0]], to);
            at = end;
        }
    }

    /// Elements from `first` on that have one scale.
    fn group_part(&self, mut first: usize, [zero, scale]: [f32; 2], mut to: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        {
            let done = decode::decode(self.codes, first, [zero, scale], to);
            first += done;
            to = &mut to[done..];
        }
        let mut codes = [0.0; CHUNK];
        for to in to.chunks_mut(CHUNK) {
            self.codes.decode(first..first + to.len(), &mut codes);
            first += to.len();
            to.iter_mut().zip(codes).for_each(|(to, code)| *to = (code - zero) * scale);
        }
    }
}
