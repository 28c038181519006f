//! `rten-gemm` (MIT or Apache-2.0), the product behind the RTen inference engine.

use crate::matmul::check;
use rayon::ThreadPool;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;
use std::cell::RefCell;

thread_local! {
    /// It takes its threads from the rayon pool that it is called in; making one costs more than a
    /// product.
    static POOL: RefCell<Option<ThreadPool>> = const { RefCell::new(None) };
}

/// `GemmExecutor::gemm` on row-major slices.
pub fn rten_matmul(threads: usize, a: &[f32], b: &[f32], c: &mut [f32], shape: [usize; 3]) {
    check([a.len(), b.len(), c.len()], shape);
    let [m, n, k] = shape;
    let (a, b) = (NdTensorView::from_data([m, k], a), NdTensorView::from_data([k, n], b));
    let mut product = || {
        let executor = GemmExecutor::<f32, f32, f32>::default();
        let (a, b) = (GemmInputA::Unpacked(a.view()), GemmInputB::Unpacked(b.view()));
        executor.gemm(c, a, b, GemmOptions::default()).expect("the shapes were checked");
    };
    POOL.with_borrow_mut(|pool| {
        if pool.as_ref().is_none_or(|pool| pool.current_num_threads() != threads) {
            let new = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            *pool = Some(new.expect("a few threads can be started"));
        }
        pool.as_ref().expect("made above").install(&mut product);
    });
}
