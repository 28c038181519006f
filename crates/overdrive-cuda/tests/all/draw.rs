//! Random initial values, drawn on the device, are bit for bit those of the host.

use crate::support::gpu;
use overdrive_ir::{Backend, DType, Init, TensorType};

/// More than one block of threads, and the last of them not full.
const SIZES: [usize; 2] = [1237, 101];

const TYPES: [DType; 6] =
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2];

#[test]
fn values_are_those_of_the_host() {
    let Some(backend) = gpu() else { return };
    for dtype in TYPES {
        let ty = TensorType::new(dtype, SIZES);
        for init in [Init::Uniform { bound: 0.3, seed: 5 }, Init::Normal { std: 0.02, seed: 5 }] {
            let drawn = backend.initial(&init, "layer.weight", &ty).unwrap();
            let expected = init.tensor("layer.weight", &ty);
            assert!(backend.download(&drawn).unwrap() == expected, "{init:?} {dtype}");
        }
    }
}
