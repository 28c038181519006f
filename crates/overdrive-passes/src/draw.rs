//! Random initial values, drawn by all cores.
//!
//! Each element depends on its index alone, so the number of threads does not change it. Invariant:
//! values are those of `Init::tensor`.

use overdrive_ir::{Init, Tensor, TensorType};
use std::num::NonZeroUsize;
use std::thread;

/// The initial value of the state `name` of type `ty`, which must be bound.
pub fn draw(init: &Init, name: &str, ty: &TensorType) -> Tensor {
    let parts = ty.elements().div_ceil(Init::PART);
    if parts < 2 || !matches!(init, Init::Normal { .. } | Init::Uniform { .. }) {
        return init.tensor(name, ty);
    }
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (share, part_bytes) = (parts.div_ceil(cores), ty.dtype.bytes_for(Init::PART));
    let mut bytes = vec![0; ty.bytes()];
    thread::scope(|scope| {
        for (core, span) in bytes.chunks_mut(share * part_bytes).enumerate() {
            scope.spawn(move || {
                for (part, bytes) in span.chunks_mut(part_bytes).enumerate() {
                    bytes.copy_from_slice(init.part(name, ty, core * share + part).bytes());
                }
            });
        }
    });
    Tensor::from_bytes(ty.clone(), bytes).expect("every element was drawn")
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn values_are_those_of_one_thread() {
        for (dtype, count) in [(DType::F32, 3 * Init::PART + 5), (DType::BF16, 2 * Init::PART)] {
            let ty = TensorType::new(dtype, [count]);
            for init in [
                Init::Normal { std: 0.5, seed: 7 },
                Init::Uniform { bound: 2.0, seed: 8 },
                Init::Constant(3.0),
                Init::ZEROS,
            ] {
                assert_eq!(draw(&init, "w", &ty), init.tensor("w", &ty), "{init:?} {dtype}");
            }
        }
    }
}
