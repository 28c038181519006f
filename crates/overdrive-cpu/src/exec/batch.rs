//! The batch dimensions of a product, brought to the two that `gemm` has.
//!
//! Neighbouring dimensions that every buffer strides through as one become one. Dimensions beyond
//! two are unrolled into calls of their own. Invariant: the products, and the row-major order of
//! their elements, stay the same.

use overdrive_ir::plan::Program;

use super::runnable::Unsupported;
use super::space::{along_columns, fixed, insert, is_random, merge, merges};

/// One call of `gemm`: a program over `[batch0, batch1, m, n]`, and where its operands start.
#[derive(Clone, Debug)]
pub(crate) struct BatchPart {
    pub(crate) lhs_offset: i64,
    pub(crate) rhs_offset: i64,
    pub(crate) program: Program,
}

/// All calls, and the strides that they share.
#[derive(Clone, Debug)]
pub(crate) struct BatchParts {
    pub(crate) parts: Vec<BatchPart>,
    /// Strides of the two batch dimensions.
    pub(crate) lhs_strides: [i64; 2],
    pub(crate) rhs_strides: [i64; 2],
}

impl BatchParts {
    /// The batch of a product with this epilogue over `[batch..., m, n]`, and these strides of its
    /// operands along the batch. An operand without strides is shared by all of the batch.
    pub(crate) fn of(mut program: Program, strides: [&[i64]; 2]) -> Result<Self, Unsupported> {
        let batch = program.extents.len() - 2;
        let [mut lhs, mut rhs] = strides
            .map(|strides| if strides.is_empty() { vec![0; batch] } else { strides.to_vec() });
        for d in (0..batch).rev() {
            if program.extents[d] == 1 {
                program = fixed(&program, d, 0);
                lhs.remove(d);
                rhs.remove(d);
            }
        }
        for d in (1..lhs.len()).rev() {
            let extent = program.extents[d] as i64;
            let follows = |strides: &[i64]| strides[d - 1] == strides[d] * extent;
            if follows(&lhs) && follows(&rhs) && merges(&program, d, follows) {
                merge(&mut program, d);
                lhs.remove(d - 1);
                rhs.remove(d - 1);
            }
        }
        while lhs.len() < 2 {
            insert(&mut program, 0, 1);
            lhs.insert(0, 0);
            rhs.insert(0, 0);
        }
        if lhs.len() > 2 && is_random(&program) {
            return Err(Unsupported::new(
                "random bits after a product of more than two batch dimensions",
            ));
        }
        along_columns(&mut program);
        let mut parts = vec![BatchPart { lhs_offset: 0, rhs_offset: 0, program }];
        while lhs.len() > 2 {
            let (lhs_stride, rhs_stride) = (lhs.remove(0), rhs.remove(0));
            let unrolled = |part: &BatchPart| -> Vec<BatchPart> {
                let one = |i: usize| BatchPart {
                    lhs_offset: part.lhs_offset + i as i64 * lhs_stride,
                    rhs_offset: part.rhs_offset + i as i64 * rhs_stride,
                    program: fixed(&part.program, 0, i),
                };
                (0..part.program.extents[0]).map(one).collect()
            };
            parts = parts.iter().flat_map(unrolled).collect();
        }
        Ok(Self { parts, lhs_strides: [lhs[0], lhs[1]], rhs_strides: [rhs[0], rhs[1]] })
    }
}
