//! `Region`: a box of elements of a tensor, row-major.

use overdrive_ir::row_major;

/// The start of a part in its whole, and its sizes, for each dimension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Region {
    pub(crate) start: Vec<usize>,
    pub(crate) sizes: Vec<usize>,
}

impl Region {
    /// All of a tensor of these sizes.
    pub(crate) fn whole(sizes: Vec<usize>) -> Self {
        Self { start: vec![0; sizes.len()], sizes }
    }

    /// Number of its elements.
    pub(crate) fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Whether it lies in a tensor of these sizes.
    pub(crate) fn is_in(&self, whole: &[usize]) -> bool {
        let ends = self.start.iter().zip(&self.sizes).map(|(start, n)| start.checked_add(*n));
        self.start.len() == whole.len()
            && self.sizes.len() == whole.len()
            && ends.zip(whole).all(|(end, whole)| end.is_some_and(|end| end <= *whole))
    }

    /// The elements that are in both; `None` if there are none.
    fn overlap(&self, other: &Self) -> Option<Self> {
        let both = |dim: usize| {
            let start = self.start[dim].max(other.start[dim]);
            let end = |of: &Self| of.start[dim] + of.sizes[dim];
            let end = end(self).min(end(other));
            (start < end).then(|| (start, end - start))
        };
        let (start, sizes) = (0..self.sizes.len()).map(both).collect::<Option<_>>()?;
        Some(Self { start, sizes })
    }

    /// The place of an element of the whole in this region.
    fn at(&self, index: &[usize]) -> usize {
        let strides = row_major(&self.sizes);
        (0..index.len()).map(|dim| (index[dim] - self.start[dim]) * strides[dim]).sum()
    }

    /// Calls `visit` for each run of elements that lie together in both. It is given the run's
    /// first element in this one and in the other, and its length.
    pub(crate) fn runs<E>(
        &self,
        other: &Self,
        visit: &mut dyn FnMut(usize, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(common) = self.overlap(other) else { return Ok(()) };
        let is_cut = |dim: &usize| {
            let n = common.sizes[*dim];
            n != self.sizes[*dim] || n != other.sizes[*dim]
        };
        // Behind the last dimension that is cut, both have all.
        let cut = (0..common.sizes.len()).rev().find(is_cut).unwrap_or(0);
        let length = common.sizes[cut..].iter().product();
        let mut index = common.start.clone();
        for _ in 0..common.sizes[..cut].iter().product() {
            visit(self.at(&index), other.at(&index), length)?;
            for dim in (0..cut).rev() {
                index[dim] += 1;
                if index[dim] < common.start[dim] + common.sizes[dim] {
                    break;
                }
                index[dim] = common.start[dim];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: &[usize], sizes: &[usize]) -> Region {
        Region { start: start.to_vec(), sizes: sizes.to_vec() }
    }

    fn runs(a: &Region, b: &Region) -> Vec<[usize; 3]> {
        let mut found = vec![];
        a.runs(b, &mut |at, from, n| {
            found.push([at, from, n]);
            Ok::<_, ()>(())
        })
        .unwrap();
        found
    }

    #[test]
    fn runs_are_the_elements_of_both() {
        let whole = Region::whole(vec![4, 6]);
        assert_eq!(runs(&whole, &whole), [[0, 0, 24]]);
        // Rows 2 and 3 of columns 3 to 5.
        let part = region(&[2, 3], &[2, 3]);
        assert_eq!(runs(&whole, &part), [[15, 0, 3], [21, 3, 3]]);
        assert_eq!(runs(&part, &whole), [[0, 15, 3], [3, 21, 3]]);
        let rows = region(&[1, 0], &[2, 6]);
        assert_eq!(runs(&rows, &part), [[9, 0, 3]]);
        assert!(runs(&region(&[0, 0], &[2, 6]), &part).is_empty());
        let scalar = Region::whole(vec![]);
        assert_eq!(runs(&scalar, &scalar), [[0, 0, 1]]);
    }

    #[test]
    fn every_element_of_a_part_comes_once() {
        let sizes = [3, 4, 5];
        let part = region(&[1, 1, 2], &[2, 2, 3]);
        for pieces in [[region(&[0, 0, 0], &[3, 2, 5]), region(&[0, 2, 0], &[3, 2, 5])]] {
            let mut seen = vec![0; part.elements()];
            for piece in &pieces {
                assert!(piece.is_in(&sizes));
                for [at, from, n] in runs(&part, piece) {
                    assert!(from + n <= piece.elements());
                    seen[at..at + n].iter_mut().for_each(|count| *count += 1);
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{seen:?}");
        }
        assert!(!region(&[2, 0, 0], &[2, 1, 1]).is_in(&sizes));
        assert!(!region(&[usize::MAX, 0, 0], &[2, 1, 1]).is_in(&sizes));
    }
}
