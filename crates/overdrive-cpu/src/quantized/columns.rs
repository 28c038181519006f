//! Weights as the right operand of a product: columns that become numbers while they are packed.

use std::ops::Range;

use super::matrix::QuantizedMatrix;
use crate::gemm::Columns;

impl Columns<f32> for QuantizedMatrix<'_> {
    fn shape(&self) -> [usize; 2] {
        [self.k, self.n]
    }

    fn fill(&self, column: usize, k: Range<usize>, to: &mut [f32]) {
        self.decode(column, k, to);
    }

    #[cfg(target_arch = "x86_64")]
    fn fill_panel(&self, columns: [usize; 2], k: Range<usize>, to: &mut [f32]) -> bool {
        super::panels::panel(self, columns, k, to)
    }
}
