//! The states of a graph in a file: loading checks the whole set of names and types and reports
//! every difference.

use crate::{FormatError, Tensors, read, write};
use overdrive_ir::{DType, Graph, TensorType};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// Parameters that could not be loaded or saved.
#[derive(Debug, thiserror::Error)]
pub enum ParametersError {
    /// The file itself.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The tensors are not those of the graph.
    #[error("{}: {differences}", path.display())]
    Different {
        /// The file.
        path: PathBuf,
        /// All of them.
        differences: Differences,
    },
}

/// How a set of tensors differs from the states that a graph declares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Differences {
    /// Name of the graph.
    pub graph: String,
    /// States that no tensor has the name of, with their types.
    pub missing: Vec<(String, TensorType)>,
    /// Tensors that no state has the name of, with their types.
    pub unexpected: Vec<(String, TensorType)>,
    /// Tensors of another type than their state: name, the state's type, the tensor's.
    pub mismatched: Vec<(String, TensorType, TensorType)>,
}

impl Differences {
    /// Compares tensors with the states of a bound graph.
    pub fn between(graph: &Graph, tensors: &Tensors) -> Self {
        Self::apart_from(graph, tensors, |found, ty| found == ty)
    }

    /// The same where 16-bit floats stand for the numbers of a state in f32.
    pub fn but_for_width(graph: &Graph, tensors: &Tensors) -> Self {
        let narrow = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        Self::apart_from(graph, tensors, |found, ty| {
            found == ty || found.shape == ty.shape && ty.dtype == DType::F32 && narrow(found.dtype)
        })
    }

    fn apart_from(
        graph: &Graph,
        tensors: &Tensors,
        fits: impl Fn(&TensorType, &TensorType) -> bool,
    ) -> Self {
        let states: BTreeMap<&str, &TensorType> =
            graph.states().iter().map(|s| (s.name.as_str(), graph.ty(s.value))).collect();
        let owned = |name: &str, ty: &TensorType| (name.to_owned(), ty.clone());
        let mut differences = Self { graph: graph.name().to_owned(), ..Self::default() };
        for (name, ty) in &states {
            match tensors.get(*name).map(|t| t.ty()) {
                None => differences.missing.push(owned(name, ty)),
                Some(found) if !fits(found, ty) => {
                    differences.mismatched.push(((*name).to_owned(), (*ty).clone(), found.clone()));
                }
                Some(_) => {}
            }
        }
        let unexpected = tensors.iter().filter(|(name, _)| !states.contains_key(name.as_str()));
        differences.unexpected =
            unexpected.map(|(name, tensor)| owned(name, tensor.ty())).collect();
        differences
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

/// Names printed per kind of difference; their number is always said.
const LISTED: usize = 8;

impl Display for Differences {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "these are not the parameters of `{}`", self.graph)?;
        let typed = |(name, ty): &(String, TensorType)| format!("{name} {ty}");
        let kinds = [
            ("missing", self.missing.iter().map(typed).collect::<Vec<_>>()),
            ("unexpected", self.unexpected.iter().map(typed).collect()),
            (
                "of another type",
                self.mismatched
                    .iter()
                    .map(|(n, ty, found)| format!("{n} expected {ty}, found {found}"))
                    .collect(),
            ),
        ];
        for (kind, entries) in kinds.iter().filter(|(_, entries)| !entries.is_empty()) {
            let more = if entries.len() > LISTED { ", ..." } else { "" };
            let listed = &entries[..entries.len().min(LISTED)];
            write!(f, "; {} {kind}: {}{more}", entries.len(), listed.join(", "))?;
        }
        Ok(())
    }
}

/// Reads the states of a bound graph from a `.safetensors` or `.npz` file. The file holds every
/// state and nothing else, each of exactly its declared type, since nothing is cast silently.
pub fn load_parameters(graph: &Graph, path: &Path) -> Result<Tensors, ParametersError> {
    let tensors = read(path)?;
    check(graph, path, &tensors)?;
    Ok(tensors)
}

/// Writes the states of a bound graph, which `tensors` must hold exactly; the file appears whole or
/// not at all.
pub fn save_parameters(
    graph: &Graph,
    path: &Path,
    tensors: &Tensors,
) -> Result<(), ParametersError> {
    check(graph, path, tensors)?;
    Ok(write(path, tensors)?)
}

fn check(graph: &Graph, path: &Path, tensors: &Tensors) -> Result<(), ParametersError> {
    let differences = Differences::between(graph, tensors);
    if differences.is_empty() {
        return Ok(());
    }
    Err(ParametersError::Different { path: path.to_owned(), differences })
}
