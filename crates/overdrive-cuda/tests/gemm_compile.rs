//! Every kernel for products compiles for the architectures that it is for, where NVRTC is found;
//! no GPU is needed.

use overdrive_cuda::Error;
use overdrive_cuda::compiler::compile;
use overdrive_cuda::gemm;

#[test]
fn every_kernel_compiles_for_its_architectures() {
    for (source, architectures) in gemm::sources() {
        for &architecture in architectures {
            match compile(&source, architecture) {
                Ok(code) => assert!(!code.is_empty()),
                Err(missing @ Error::Missing { .. }) => {
                    return testkit::skip(testkit::Needs::Nvrtc, missing);
                }
                Err(error) => panic!("{error}\n{}", source.text),
            }
        }
    }
}
