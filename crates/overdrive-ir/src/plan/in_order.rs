//! Calls of attention over pages, as the kernels of few queries take them.

use super::step::{KernelCall, View};
use crate::ops::PagedAttention;

impl KernelCall {
    /// A call of [`PagedAttention`] as if keys and values lay in order, and the numbers of pages.
    /// The first stride of a pool is that of pages.
    pub fn in_order(&self) -> (KernelCall, View) {
        let mut call = self.clone();
        let place = PagedAttention::place_of_pages(self.operands[1].ty.dtype);
        let pages = call.operands.remove(place);
        for pool in &mut call.operands[1..place] {
            let ordered = PagedAttention::in_order(&pool.ty, &pages.ty);
            pool.ty = ordered.expect("the op's operands were checked");
        }
        (call, pages)
    }
}
