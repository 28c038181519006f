//! Random initial values, drawn on the device, against those of the host.

use crate::support::gpu;
use overdrive_ir::{Array, Backend, DType, Init, TensorType};

/// More than one block of threads, and the last of them not full.
const SIZES: [usize; 2] = [1237, 101];

const TYPES: [DType; 6] =
    [DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8E4M3, DType::F8E5M2];

#[test]
fn uniform_values_are_those_of_the_host() {
    let Some(backend) = gpu() else { return };
    for dtype in TYPES {
        let (init, ty) = (Init::Uniform { bound: 0.3, seed: 5 }, TensorType::new(dtype, SIZES));
        let drawn = backend.initial(&init, "layer.weight", &ty).unwrap();
        assert!(backend.download(&drawn).unwrap() == init.tensor("layer.weight", &ty), "{dtype}");
    }
}

/// Logarithm, cosine and root are within two units of the last place of f64 each. In f32 hardly any
/// element of these is so near half way that it rounds to another number.
#[test]
fn normal_values_are_those_of_the_host() {
    let Some(backend) = gpu() else { return };
    for dtype in TYPES {
        let (init, ty) = (Init::Normal { std: 0.02, seed: 5 }, TensorType::new(dtype, SIZES));
        let drawn = backend.initial(&init, "layer.weight", &ty).unwrap();
        let drawn = Array::from(&backend.download(&drawn).unwrap()).to_f64();
        let expected = Array::from(&init.tensor("layer.weight", &ty)).to_f64();
        let other = drawn.iter().zip(&expected).filter(|(a, b)| a != b).count();
        if dtype == DType::F64 {
            let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 8.0 * f64::EPSILON * b.abs();
            assert!(drawn.iter().zip(&expected).all(is_near));
        } else {
            assert!(other <= 1, "{other} of {} in {dtype}", drawn.len());
        }
    }
}
