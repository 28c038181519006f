//! Index maps: where an element of a value lies in the iteration space of a loop nest.
//!
//! Each axis of a value is an affine function of the loop indices. Views (transpose, broadcast,
//! slice, most reshapes) only compose maps, so inside a loop nest they cost nothing.

use overdrive_ir::Prim;
use overdrive_ir::plan::{Access, View};

/// `offset + sum(coefficient * index[dim])`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) offset: i64,
    /// Pairs (loop dimension, coefficient), sorted by dimension, coefficients not zero.
    pub(crate) terms: Vec<(usize, i64)>,
}

impl Affine {
    /// The index of one loop dimension.
    pub(crate) fn dim(dim: usize) -> Self {
        Self { offset: 0, terms: vec![(dim, 1)] }
    }

    fn scale(&self, by: i64) -> Self {
        let terms = self.terms.iter().map(|&(d, c)| (d, c * by)).filter(|&(_, c)| c != 0).collect();
        Self { offset: self.offset * by, terms }
    }

    fn add(mut self, other: &Affine) -> Self {
        self.offset += other.offset;
        for &(dim, coefficient) in &other.terms {
            match self.terms.binary_search_by_key(&dim, |t| t.0) {
                Ok(at) => self.terms[at].1 += coefficient,
                Err(at) => self.terms.insert(at, (dim, coefficient)),
            }
        }
        self.terms.retain(|t| t.1 != 0);
        self
    }
}

/// One affine function per axis of a value.
pub(crate) type IndexMap = Vec<Affine>;

/// The access that reads (or writes) a view under `map`, in a space of `rank` dimensions.
pub(crate) fn access(view: &View, map: &IndexMap, rank: usize) -> Access {
    let mut result = Access { slot: view.slot, offset: view.offset, strides: vec![0; rank] };
    for (affine, &stride) in map.iter().zip(&view.strides) {
        result.offset += affine.offset * stride;
        affine.terms.iter().for_each(|&(dim, c)| result.strides[dim] += c * stride);
    }
    result
}

/// The map of the operand of a view primitive, given the map of its result. `None` where it is not
/// affine.
pub(crate) fn through_view(prim: &Prim, operand: &[usize], map: &IndexMap) -> Option<IndexMap> {
    match prim {
        Prim::Broadcast { dims, .. } => {
            let axis = |(&size, &d): (&usize, &usize)| {
                if size == 1 { Affine::default() } else { map[d].clone() }
            };
            Some(operand.iter().zip(dims).map(axis).collect())
        }
        Prim::Transpose { perm } => {
            let mut result = vec![Affine::default(); perm.len()];
            perm.iter().enumerate().for_each(|(i, &p)| result[p] = map[i].clone());
            Some(result)
        }
        Prim::Slice { start, stride, .. } => {
            let axis = |d: usize| {
                let mut affine = map[d].scale(stride[d] as i64);
                affine.offset += start[d] as i64;
                affine
            };
            Some((0..map.len()).map(axis).collect())
        }
        Prim::Reshape { shape } => reshape(operand, &shape.known()?, map),
        _ => None,
    }
}

/// True for primitives that `through_view` may see through.
pub(crate) fn is_view(prim: &Prim) -> bool {
    matches!(
        prim,
        Prim::Broadcast { .. } | Prim::Transpose { .. } | Prim::Slice { .. } | Prim::Reshape { .. }
    )
}

/// Splits two shapes of equal, non-zero volume into runs of axes of equal product.
fn runs(from: &[usize], to: &[usize]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let (mut i, mut j) = (0, 0);
    let mut result = Vec::new();
    while i < from.len() && j < to.len() {
        let (first_i, first_j) = (i, j);
        let (mut a, mut b) = (from[i], to[j]);
        (i, j) = (i + 1, j + 1);
        while a != b {
            if a < b {
                a *= from[i];
                i += 1;
            } else {
                b *= to[j];
                j += 1;
            }
        }
        result.push((first_i..i, first_j..j));
    }
    // Only dimensions of 1 are left on either side.
    result.push((i..from.len(), j..to.len()));
    result
}

/// Index of the operand of a reshape: affine where each run of operand axes has at most one axis
/// over 1.
fn reshape(operand: &[usize], result: &[usize], map: &IndexMap) -> Option<IndexMap> {
    if operand.contains(&0) || result.contains(&0) {
        return None;
    }
    let mut out = vec![Affine::default(); operand.len()];
    for (from, to) in runs(operand, result) {
        let wide: Vec<usize> = from.filter(|&axis| operand[axis] > 1).collect();
        let mut position = Affine::default();
        for axis in to {
            position = position.scale(result[axis] as i64);
            if result[axis] > 1 {
                position = position.add(&map[axis]);
            }
        }
        match wide.as_slice() {
            [] => {}
            [axis] => out[*axis] = position,
            _ => return None,
        }
    }
    Some(out)
}

/// Strides of a reshaped view, without moving an element. `None` where a copy is needed.
pub(crate) fn reshape_strides(from: &[usize], strides: &[i64], to: &[usize]) -> Option<Vec<i64>> {
    let mut out = vec![0; to.len()];
    if from.contains(&0) {
        return Some(out);
    }
    for (old, new) in runs(from, to) {
        let wide: Vec<usize> = old.filter(|&axis| from[axis] > 1).collect();
        let collapses = wide.windows(2).all(|w| strides[w[0]] == strides[w[1]] * from[w[1]] as i64);
        if !collapses {
            return None;
        }
        let mut stride = wide.last().map_or(0, |&axis| strides[axis]);
        for axis in new.rev() {
            out[axis] = stride;
            stride *= to[axis] as i64;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_split_and_merge_where_strides_allow() {
        assert_eq!(reshape_strides(&[4, 6], &[6, 1], &[24]), Some(vec![1]));
        assert_eq!(reshape_strides(&[4, 6], &[12, 1], &[24]), None);
        assert_eq!(reshape_strides(&[4, 6], &[12, 1], &[2, 2, 3, 2]), Some(vec![24, 12, 2, 1]));
        assert_eq!(reshape_strides(&[4, 1, 6], &[6, 6, 1], &[4, 6]), Some(vec![6, 1]));
        assert_eq!(reshape_strides(&[1, 1], &[5, 5], &[1]).map(|s| s.len()), Some(1));
        assert_eq!(reshape_strides(&[8], &[2], &[2, 1, 4]), Some(vec![8, 8, 2]));
    }

    #[test]
    fn a_split_axis_reads_back_as_one_affine_index() {
        let map: IndexMap = (0..3).map(Affine::dim).collect();
        let merged = reshape(&[2, 12], &[2, 3, 4], &map).unwrap();
        assert_eq!(merged[1], Affine { offset: 0, terms: vec![(1, 4), (2, 1)] });
        assert_eq!(reshape(&[3, 4], &[12], &[Affine::dim(0)].to_vec()), None);
        assert_eq!(
            reshape(&[3, 1], &[3], &[Affine::dim(0)].to_vec()).unwrap()[1],
            Affine::default()
        );
    }
}
