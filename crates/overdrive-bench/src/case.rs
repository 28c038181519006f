//! The subject of a figure: the case, split into *what* is computed and *how*.
//!
//! Two records may be compared when their [`Workload`]s are equal; their [`Configuration`]s are
//! what the comparison is about. Keeping the two apart in the type makes that rule a comparison of
//! one field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The computation, independent of who runs it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Workload {
    /// The model's or the kernel's name: `transformer`, `matmul`.
    pub name: String,
    /// Sizes by name, batch included: `B`, `T`, `D`, or `m`, `n`, `k`.
    pub dimensions: BTreeMap<String, u64>,
}

impl Workload {
    /// A workload and its sizes: `Workload::new("matmul", [("m", 512), ("n", 512), ("k", 512)])`.
    pub fn new<'a>(
        name: impl Into<String>,
        dimensions: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Self {
        let dimensions =
            dimensions.into_iter().map(|(name, size)| (name.to_owned(), size)).collect();
        Self { name: name.into(), dimensions }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (name, size)) in self.dimensions.iter().enumerate() {
            write!(f, "{}{name}={size}", if index == 0 { " " } else { "," })?;
        }
        Ok(())
    }
}

/// How it is computed: everything that a speed-up may be about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Name of the back end or library: `cpu`, `cuda`, `onnxruntime`.
    pub backend: String,
    /// The device's kind as the back end names it: `cpu`, `cuda:0`.
    pub device: String,
    /// Execution mode: `eager`, `jit`, `compile`, `graph`; a kernel study may name an
    /// implementation.
    pub mode: String,
    /// Number format that the work is done in: `f32`, `bf16`.
    pub dtype: String,
    /// Worker threads on the host; 0 where another program measured it and does not tell.
    pub threads: u32,
    /// Anything else that sets this configuration apart: `fused`, `rematerialized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Configuration {
    /// The label that readers see. A GPU of this machine is `cuda:0`, since its name stands once
    /// with the environment. The host's thread is left out, since nobody chose it. So is whatever
    /// all cases have in common.
    pub fn label(&self, common: &Common) -> String {
        let mut shown = self.shown();
        if common.threads == Some(shown.threads) {
            shown.threads = 0;
        }
        if common.device.as_ref() == Some(&shown.device) {
            shown.device.clone_from(&shown.backend);
        }
        shown.words(threads)
    }

    /// The parts that a label shows.
    pub fn shown(&self) -> Self {
        match self.backend.starts_with("cuda:") {
            true => Self { device: self.backend.clone(), threads: 0, ..self.clone() },
            false => self.clone(),
        }
    }

    fn words(&self, threads: impl Fn(u32) -> String) -> String {
        let mut words = self.backend.clone();
        if self.device != self.backend {
            words += &format!("@{}", self.device);
        }
        let threads = if self.threads == 0 { String::new() } else { threads(self.threads) };
        let variant = self.variant.as_deref().unwrap_or_default();
        // Fields that an imported file does not tell are empty and take no room.
        for part in [&self.mode, &self.dtype, &threads, variant] {
            if !part.is_empty() {
                words += &format!(" {part}");
            }
        }
        words
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words(|threads| format!("t{threads}")))
    }
}

fn threads(count: u32) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// The part that the configurations of several cases have in common, said once instead of in each
/// label.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Common {
    device: Option<String>,
    threads: Option<u32>,
}

impl Common {
    /// Device and threads, where all that have one have the same.
    pub fn of<'a>(configurations: impl IntoIterator<Item = &'a Configuration>) -> Self {
        let shown: Vec<_> = configurations.into_iter().map(Configuration::shown).collect();
        let devices: BTreeSet<&String> = shown.iter().map(|one| &one.device).collect();
        let threads = shown.iter().map(|one| one.threads).filter(|&threads| threads > 0);
        let threads: BTreeSet<u32> = threads.collect();
        let device = devices.first().filter(|_| devices.len() == 1).map(|name| (*name).clone());
        Self { device, threads: threads.first().copied().filter(|_| threads.len() == 1) }
    }
}

impl fmt::Display for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [self.device.clone(), self.threads.map(threads)];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Case {
    /// The study that it belongs to.
    pub study: String,
    /// The computation.
    pub workload: Workload,
    /// How.
    pub configuration: Configuration,
}

impl Case {
    /// A readable key, unique within one set of results: `study: workload: configuration`.
    pub fn id(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.study, self.workload, self.configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_a_gpu_by_its_place() {
        let configuration = |backend: &str, device: &str| Configuration {
            backend: backend.into(),
            device: device.into(),
            mode: "graph".into(),
            dtype: "bf16".into(),
            threads: 1,
            variant: None,
        };
        let gpu = configuration("cuda:0", "NVIDIA H200");
        assert_eq!(gpu.to_string(), "cuda:0@NVIDIA H200 graph bf16 t1");
        let nothing = Common::default();
        assert_eq!(gpu.label(&nothing), "cuda:0 graph bf16");
        assert_eq!(configuration("cpu", "cpu").label(&nothing), "cpu graph bf16 1 thread");
        let engine = configuration("tract", "cpu");
        let common = Common::of([&engine, &configuration("cpu", "cpu")]);
        assert_eq!(common.to_string(), "cpu, 1 thread");
        assert_eq!(engine.label(&common), "tract graph bf16");
        assert_eq!(engine.label(&Common::of([&engine, &gpu])), "tract@cpu graph bf16");
    }

    #[test]
    fn an_id_names_sizes_and_configuration() {
        let case = Case {
            study: "kernels".into(),
            workload: Workload::new("matmul", [("m", 512), ("k", 64)]),
            configuration: Configuration {
                backend: "cpu".into(),
                device: "cpu".into(),
                mode: "compile".into(),
                dtype: "f32".into(),
                threads: 2,
                variant: Some("fused".into()),
            },
        };
        assert_eq!(case.id(), "kernels: matmul k=64,m=512: cpu compile f32 t2 fused");
    }
}
