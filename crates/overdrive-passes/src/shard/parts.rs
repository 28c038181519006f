//! Parts of whole tensors, copied in runs of bytes that lie together.

use overdrive_ir::row_major;

/// A part of a whole: sizes of both, and where it starts.
pub(super) struct ShardPart<'a> {
    pub(super) whole: &'a [usize],
    pub(super) sizes: &'a [usize],
    pub(super) start: &'a [usize],
}

impl ShardPart<'_> {
    /// Calls `copy` with the first element of each run, in the whole and in the part, and with its
    /// length.
    pub(super) fn runs(&self, copy: &mut dyn FnMut(usize, usize, usize)) {
        // Behind the last dimension that is cut, the part has all of the whole.
        let cut = (0..self.sizes.len()).rev().find(|&dim| self.sizes[dim] != self.whole[dim]);
        let cut = cut.unwrap_or(0);
        let length: usize = self.sizes[cut..].iter().product();
        let strides = row_major(self.whole);
        let outer = &self.sizes[..cut];
        let offset = |index: &[usize]| -> usize {
            let of = |dim: usize| self.start[dim] + index.get(dim).copied().unwrap_or(0);
            (0..self.whole.len()).map(|dim| of(dim) * strides[dim]).sum()
        };
        let mut index = vec![0; cut];
        for run in 0..outer.iter().product() {
            copy(offset(&index), run * length, length);
            for dim in (0..cut).rev() {
                index[dim] += 1;
                if index[dim] < outer[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ShardPart;

    #[test]
    fn runs_cover_the_part_and_nothing_else() {
        let (whole, part, start) = (&[4, 6, 5], &[2, 3, 5], &[2, 3, 0]);
        let mut found = vec![];
        ShardPart { whole, sizes: part, start }
            .runs(&mut |whole, part, length| found.push([whole, part, length]));
        assert_eq!(found, [[75, 0, 15], [105, 15, 15]]);
        let mut found = vec![];
        let (whole, part, start) = (&[2, 4], &[2, 2], &[0, 2]);
        ShardPart { whole, sizes: part, start }
            .runs(&mut |whole, part, length| found.push([whole, part, length]));
        assert_eq!(found, [[2, 0, 2], [6, 2, 2]]);
        let mut found = vec![];
        ShardPart { whole: &[], sizes: &[], start: &[] }.runs(&mut |a, b, n| found.push([a, b, n]));
        assert_eq!(found, [[0, 0, 1]]);
    }
}
