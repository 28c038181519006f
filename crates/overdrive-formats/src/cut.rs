//! `Cut`: a part of a tensor, under a name of its own. Ranks that share a model read their parts
//! alone.
//!
//! Bytes of a part lie in the whole as runs of one length. Invariant: a reader takes these runs and
//! no other byte of the tensor.

use crate::Tensors;
use overdrive_files::Digest;
use overdrive_ir::{Tensor, TensorType, row_major};

/// A part of a tensor whose elements are whole bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The part's own name.
    pub name: String,
    /// Its first index in each dimension.
    pub start: Vec<usize>,
    /// Its size in each dimension.
    pub sizes: Vec<usize>,
}

/// The wanted parts of a tensor, by the name and type that its file says. `None` is all of it,
/// under that name; an empty list is nothing.
pub type Cuts<'c> = dyn Fn(&str, &TensorType) -> Option<Vec<Cut>> + 'c;

/// The wanted parts of tensors in memory. `digest` takes in the tensors.
pub fn parts(tensors: Tensors, cuts: &Cuts<'_>, digest: &mut Digest) -> Tensors {
    let of = |(name, tensor): (String, Tensor)| {
        note_tensor(digest, &name, &tensor);
        match cuts(&name, tensor.ty()) {
            None => vec![(name, tensor)],
            Some(cuts) => cuts.iter().map(|cut| (cut.name.clone(), cut.of(&tensor))).collect(),
        }
    };
    tensors.into_iter().flat_map(of).collect()
}

/// First bytes of a tensor that tell whether two are the same. A tensor that learnt something else
/// differs in nearly all of its bytes.
pub(crate) const NOTED: usize = 4096;

/// Takes in a tensor by its name, its type and its first bytes.
pub(crate) fn note(digest: &mut Digest, (name, ty): (&str, &TensorType), first: &[u8]) {
    digest.add(name.as_bytes());
    digest.add(ty.to_string().as_bytes());
    digest.add(first);
}

/// The same of one in memory.
pub(crate) fn note_tensor(digest: &mut Digest, name: &str, tensor: &Tensor) {
    let bytes = tensor.bytes();
    note(digest, (name, tensor.ty()), &bytes[..bytes.len().min(NOTED)]);
}

impl Cut {
    /// The part of a whole in memory.
    pub fn of(&self, whole: &Tensor) -> Tensor {
        let mut bytes = vec![];
        let read = self.copy(whole.ty(), &mut |at, length| {
            bytes.extend_from_slice(&whole.bytes()[at..][..length]);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = read;
        Tensor::from_bytes(self.ty(whole.ty()), bytes).expect("runs are all of a part")
    }

    /// The type of the part.
    pub(crate) fn ty(&self, whole: &TensorType) -> TensorType {
        whole.with_shape(self.sizes.clone())
    }

    /// Calls `run` with the first byte of each run in the whole and its length, in the order of the
    /// part.
    pub(crate) fn copy<E>(
        &self,
        whole: &TensorType,
        run: &mut dyn FnMut(usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let sizes = whole.sizes();
        let bytes = whole.dtype.bits() / 8;
        // Behind the last dimension that is cut, the part has all of the whole.
        let cut = (0..sizes.len()).rev().find(|&dim| self.sizes[dim] != sizes[dim]).unwrap_or(0);
        let length = bytes * self.sizes[cut..].iter().product::<usize>();
        let strides = row_major(&sizes);
        let first: usize = self.start.iter().zip(&strides).map(|(at, stride)| at * stride).sum();
        let outer = row_major(&self.sizes[..cut]);
        for number in 0..self.sizes[..cut].iter().product() {
            let index = outer.iter().zip(&self.sizes).map(|(stride, size)| number / stride % size);
            let beyond: usize = index.zip(&strides).map(|(at, stride)| at * stride).sum();
            run(bytes * (first + beyond), length)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn a_part_has_its_elements_and_no_others() {
        let whole: Vec<i128> = (0..24).collect();
        let whole = Tensor::from_ints(DType::I16, [2, 4, 3], &whole);
        let of = |start: [usize; 3], sizes: [usize; 3]| {
            Cut { name: "part".into(), start: start.into(), sizes: sizes.into() }.of(&whole)
        };
        assert_eq!(of([0, 0, 0], [2, 4, 3]), whole);
        assert_eq!(of([1, 0, 0], [1, 4, 3]).to_ints(), (12..24).collect::<Vec<i128>>());
        assert_eq!(of([0, 2, 0], [2, 1, 3]).to_ints(), [6, 7, 8, 18, 19, 20]);
        assert_eq!(of([1, 1, 2], [1, 2, 1]).to_ints(), [17, 20]);
        let scalar = Tensor::scalar(DType::F32, 3.0);
        assert_eq!(Cut { name: "x".into(), start: vec![], sizes: vec![] }.of(&scalar), scalar);
    }
}
