//! A device of a PJRT plugin as a back end.

use super::client::Client;
use super::device_buffer::XlaMemory;
use super::executable::XlaExecutable;
use crate::host_backend::unsupported;
use overdrive_ir::{
    Backend, BackendError, Buffer, DType, Description, Executable, Graph, Mode, Peaks, Target,
    Tensor, TensorType, Tuning, WithoutKernels,
};
use std::path::Path;
use std::sync::Arc;

/// The owner of its buffers, as errors name it.
const OWNER: &str = "the xla back end";

/// XLA behind a plugin.
pub struct XlaBackend {
    client: Arc<Client>,
    target: WithoutKernels,
    version: String,
}

impl XlaBackend {
    /// Device number `ordinal` of the plugin at `path`.
    ///
    /// # Errors
    /// `Device` with the words of the loader or of the plugin.
    pub fn new(path: &Path, ordinal: usize) -> Result<Self, BackendError> {
        let client = Arc::new(Client::open(path, ordinal)?);
        let platform = client.platform()?;
        let is_host = platform == "cpu" || platform == "Host";
        let target = WithoutKernels(Description {
            device: if is_host { "cpu".to_owned() } else { format!("{platform}:{ordinal}") },
            memory_bytes: client.memory_limit().unwrap_or(u64::MAX),
            contraction_dtypes: DType::ALL
                .into_iter()
                .filter(|d| super::api::element(*d).is_some())
                .collect(),
            ..Description::default()
        });
        let (kind, interface) = (client.device_kind()?, client.interface());
        let version = format!("PJRT {interface}, {} on {kind}", client.platform_version()?);
        Ok(Self { client, target, version })
    }

    /// The same with facts about the device from another source: its memory and its peaks.
    pub(super) fn with_limits(mut self, memory_bytes: u64, peaks: Peaks) -> Self {
        let description = &mut self.target.0;
        description.memory_bytes = description.memory_bytes.min(memory_bytes);
        description.peaks = peaks;
        self
    }

    /// Interface, plugin and device, in their own words.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Backend for XlaBackend {
    fn name(&self) -> &str {
        if self.target.0.device == "cpu" { "xla-cpu" } else { "xla" }
    }

    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        _: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        if mode != Mode::Compile {
            let reason = "XLA compiles whole graphs, and decides itself what it captures; use \
                          mode `compile`";
            return Err(unsupported(self.name(), &format!("mode {mode}"), graph.name(), reason));
        }
        Ok(Arc::new(XlaExecutable::new(&self.client, graph, mode)?))
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        let value = self.client.upload(tensor)?;
        Ok(Buffer { ty: tensor.ty().clone(), memory: Box::new(XlaMemory::new(Some(value))) })
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        match buffer.memory_of::<XlaMemory>(OWNER)?.value() {
            Some(value) => value.download(&buffer.ty),
            None => Ok(unwritten(&buffer.ty)),
        }
    }

    /// Takes no memory: each call gives its results as new values.
    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        Ok(Buffer { ty: ty.clone(), memory: Box::new(XlaMemory::new(None)) })
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        buffer.check_type("tensor to write", tensor.ty())?;
        let memory: &mut XlaMemory = buffer.memory_of_mut(OWNER)?;
        memory.replace(self.client.upload(tensor)?);
        Ok(())
    }
}

/// All ones, which is a NaN in every float format that has one.
fn unwritten(ty: &TensorType) -> Tensor {
    Tensor::from_bytes(ty.clone(), vec![0xFF; ty.bytes()]).expect("as many bytes as the type has")
}
