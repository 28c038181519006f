//! A fault on the device becomes an `Err` in CUDA's words. A program of its own: the context does
//! not come back.
#![allow(unsafe_code, clippy::unwrap_used)] // The launch of a kernel that faults.

#[path = "all/support/mod.rs"]
#[allow(dead_code, unused_imports)] // A part is enough here.
mod support;

use cudarc::driver::{LaunchConfig, PushKernelArg};
use overdrive_cuda::compiler::KernelSource;
use overdrive_ir::{Backend, BackendError, DType, Tensor};
use support::gpu;

#[test]
fn a_fault_is_an_error_in_the_words_of_cuda() {
    let Some(backend) = gpu() else { return };
    let text = r#"extern "C" __global__ void fault(int* p) { p[threadIdx.x] = 1; }"#;
    let source = KernelSource { name: "fault".into(), text: text.into(), defines: vec![] };
    let device = backend.device();
    let function = device.function(&source, "fault").unwrap();
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
    let mut launch = device.stream().launch_builder(&function);
    let nowhere = 0u64;
    launch.arg(&nowhere);
    // SAFETY: it is not: that is the test. The fault stays on the device.
    unsafe { launch.launch(config) }.unwrap();
    // Whichever call comes after it meets the fault.
    let uploaded = backend.upload(&Tensor::from_f64(DType::F32, [1], &[1.0]));
    let error = uploaded.and_then(|buffer| backend.download(&buffer)).unwrap_err();
    let BackendError::Device { message, .. } = &error else { panic!("{error}") };
    assert!(
        message.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && message.contains("new process"),
        "{message}"
    );
}
