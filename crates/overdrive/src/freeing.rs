//! A model as one ONNX file with as many free dimensions as can be.
//!
//! All dimensions without a size are tried at once; where that fails, one after the other, the
//! batch first. Invariant: a dimension that could not be freed has a size in the file, and is
//! listed with the reason.

use crate::failure::Failure;
use crate::terminal::note;
use overdrive::formats::onnx::{self, Dialect, Free, OnnxFile};
use overdrive::ir::{Dim, Graph, Port, TensorType};
use std::collections::BTreeMap;
use std::path::Path;

/// A named dimension, and the size that it has where nobody says otherwise, if there is one.
pub(crate) type NamedSize = (String, Option<usize>);

/// Builds a model at given sizes of all its named dimensions.
pub(crate) type BuildAtSizes<'b> = &'b dyn Fn(&BTreeMap<String, usize>) -> Result<Graph, Failure>;

/// The written file.
pub(crate) struct Freed {
    /// The file.
    pub(crate) file: OnnxFile,
    /// Names of its free dimensions.
    pub(crate) names: Vec<String>,
    /// Dimensions that have a size in the file, and why they are not free.
    pub(crate) fixed: Vec<(String, usize, String)>,
    /// Inputs and outputs; their free dimensions are names.
    pub(crate) inputs: Vec<(String, TensorType)>,
    pub(crate) outputs: Vec<(String, TensorType)>,
}

/// A try: the file, and the graphs at the first corner and at the witness.
type Tried = (OnnxFile, [Graph; 2]);

impl Freed {
    /// The file of a model in which `sizes` are given and every other of `dimensions` is free, if
    /// it can be; `path` is what errors call it.
    pub(crate) fn encode(
        path: &Path,
        dimensions: &[NamedSize],
        sizes: &BTreeMap<String, usize>,
        (build, dialect): (BuildAtSizes<'_>, Dialect),
    ) -> Result<Self, Failure> {
        let open: Vec<&NamedSize> =
            dimensions.iter().filter(|(name, _)| !sizes.contains_key(name)).collect();
        let attempt = |free: &[&NamedSize]| -> Result<Tried, Failure> {
            let mut fixed = sizes.clone();
            for (name, usual) in open.iter().filter(|dimension| !free.contains(dimension)) {
                let size =
                    usual.ok_or_else(|| Failure::bad_input(format!("`{name}` has no size")))?;
                fixed.insert(name.clone(), size);
            }
            encoded(path, free, &fixed, (build, dialect))
        };
        let (mut free, mut reasons) = (Vec::new(), Vec::new());
        let all = match open.len() {
            0..=Free::MOST => attempt(&open),
            count => {
                Err(Failure::bad_input(format!("at most {} of {count} can be free", Free::MOST)))
            }
        };
        let tried = match all {
            Ok(tried) => {
                free.clone_from(&open);
                tried
            }
            Err(reason) => {
                // Those of a file have no usual size, at which one could be left while another is
                // tried.
                if let Some((name, _)) = open.iter().find(|(_, usual)| usual.is_none()) {
                    let text = format!(
                        "not all dimensions can be free: {}; give one a size: --shape {name}=N",
                        reason.message
                    );
                    return Err(Failure::bad_input(text));
                }
                let mut last = None;
                for dimension in &open {
                    let more: Vec<&NamedSize> = free.iter().copied().chain([*dimension]).collect();
                    let attempted = match more.len() {
                        0..=Free::MOST => attempt(&more),
                        _ => Err(Failure::bad_input(format!("at most {} can be free", Free::MOST))),
                    };
                    match attempted {
                        Ok(tried) => (free, last) = (more, Some(tried)),
                        Err(reason) => reasons.push((*dimension, reason.message)),
                    }
                }
                last.map_or_else(|| attempt(&[]), Ok)?
            }
        };
        let (file, graphs) = tried;
        let fixed = reasons.into_iter().map(|((name, usual), reason)| {
            (name.clone(), usual.expect("else it had been refused"), reason)
        });
        let names: Vec<String> = free.iter().map(|(name, _)| name.clone()).collect();
        let ports = |of: fn(&Graph) -> &[Port]| named(&graphs, of, &free);
        let (inputs, outputs) = (ports(Graph::inputs), ports(Graph::outputs));
        Ok(Self { file, names, fixed: fixed.collect(), inputs, outputs })
    }

    /// Says which dimensions are fixed.
    pub(crate) fn note(&self) {
        for (name, size, reason) in &self.fixed {
            note!("note: `{name}` is {size} in the file and cannot be free: {reason}");
        }
    }

    /// The free dimensions in a sentence.
    pub(crate) fn said(&self) -> String {
        match &self.names[..] {
            [] => "fixed sizes".to_owned(),
            names => format!("any {}", names.join(", any ")),
        }
    }
}

/// A size that is more than most limits of kernels, windows and paddings of models.
const LARGE: usize = 67;

fn encoded(
    path: &Path,
    free: &[&NamedSize],
    fixed: &BTreeMap<String, usize>,
    (build, dialect): (BuildAtSizes<'_>, Dialect),
) -> Result<Tried, Failure> {
    if free.is_empty() {
        let graph = build(fixed)?;
        let file = onnx::made(path, &graph, dialect).map_err(Failure::bad_input)?;
        return Ok((file, [graph.clone(), graph]));
    }
    let at =
        |corner: BTreeMap<String, usize>| build(&fixed.clone().into_iter().chain(corner).collect());
    let built = |free: Free| -> Result<(Free, Vec<Graph>), Failure> {
        let graphs = free.corners().into_iter().map(at).collect::<Result<Vec<Graph>, Failure>>()?;
        Ok((free, graphs))
    };
    // A model may have no such sizes; what it is at those that it has is then seen at smaller ones.
    let (free, graphs) =
        built(witnessed(free, Some(LARGE))).or_else(|_| built(witnessed(free, None)))?;
    let file = free.made(path, &graphs, dialect).map_err(Failure::bad_input)?;
    let [first, .., last] = &graphs[..] else { unreachable!("corners and the witness") };
    Ok((file, [first.clone(), last.clone()]))
}

/// The dimensions with the sizes at which they are looked at once more: the usual ones, or this
/// where it is larger.
fn witnessed(free: &[&NamedSize], least: Option<usize>) -> Free {
    Free::new(free.iter().map(|(name, usual)| (name.as_str(), (*usual).max(least))))
}

/// Types of ports, in which dimensions that differ are names.
fn named(
    graphs: &[Graph; 2],
    of: fn(&Graph) -> &[Port],
    free: &[&NamedSize],
) -> Vec<(String, TensorType)> {
    let [first, last] = graphs;
    // The size of a dimension at the first corner is no other's.
    let corner = witnessed(free, None).corners().swap_remove(0);
    let ports = of(first).iter().zip(of(last));
    let port = |(port, other): (&Port, &Port)| {
        let (ty, other) = (first.ty(port.value), last.ty(other.value));
        let dims = ty.sizes().into_iter().zip(other.sizes()).map(|(a, b)| {
            match free.iter().find(|(name, _)| corner[name] == a) {
                _ if a == b => Dim::Size(a),
                Some((name, _)) => Dim::from(name.as_str()),
                None => Dim::from("computed"),
            }
        });
        (port.name.clone(), TensorType::new(ty.dtype, overdrive::ir::Shape(dims.collect())))
    };
    ports.map(port).collect()
}
