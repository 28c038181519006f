//! Every named kernel compiles for every declared architecture, where NVRTC is found; no GPU is needed.

use overdrive_cuda::Error;
use overdrive_cuda::compiler::{Architecture, compile};
use overdrive_cuda::kernels;

#[test]
fn every_kernel_compiles_for_every_declared_architecture() {
    for source in kernels::sources() {
        for architecture in Architecture::DECLARED {
            match compile(&source, architecture) {
                Ok(code) => assert!(!code.is_empty()),
                Err(missing @ Error::Missing { .. }) => {
                    eprintln!("SKIPPED: {missing}");
                    return;
                }
                Err(error) => panic!("{:?}: {error}", source.defines),
            }
        }
    }
}
