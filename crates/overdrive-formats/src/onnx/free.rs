//! A file whose dimensions are free, out of files that were written for given sizes.
//!
//! A bound graph has its sizes in shapes all over. Written at several sizes, the same model gives
//! files that differ in just those numbers. Each such number is a sum of products of the free
//! dimensions. It can therefore be computed from the shape of an input when the model runs.
//! Invariant: the file says at one more choice of sizes, the witness, what was written there. Any
//! other difference is an error that names the node.
//!
//! Long because every part of a file is merged by the same rule, and errors name the part.

mod lattice;
mod sizes;
mod sum;

use super::export::{Dialect, ExportForm, initializer, model_of, packings};
use super::onnx_file::OnnxFile;
use super::proto::tensor_shape_proto::dimension::Value as Extent;
use super::proto::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, type_proto};
use super::tensor::ExternalData;
use crate::FormatError;
use lattice::Lattice;
use overdrive_ir::{Graph, Tensor};
use sizes::Sizes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use sum::Sum;

/// Two sizes for each dimension in turn. No size occurs twice, and none is 1 or 2, which graphs
/// treat as they treat no other size. The two of a pair differ by a prime, so that no quotient of
/// theirs looks like a whole number.
const PAIRS: [[usize; 2]; 4] = [[3, 8], [4, 11], [5, 12], [7, 18]];
/// Sizes of the witness, where the usual ones are among those above or are not known.
const WITNESS: [usize; 4] = [13, 17, 19, 23];

/// The free dimensions of a model.
#[derive(Clone, Debug)]
pub struct Free {
    names: Vec<String>,
    witness: Vec<usize>,
}

impl Free {
    /// The most dimensions that can be free: the model is built at two sizes of each, in all
    /// combinations.
    pub const MOST: usize = PAIRS.len();

    /// These named dimensions, each with a size that the model is often run at, if one is known.
    /// That size shows what changes only beyond small sizes.
    ///
    /// # Panics
    /// For more than [`Free::MOST`] names.
    pub fn new<'n>(names: impl IntoIterator<Item = (&'n str, Option<usize>)>) -> Self {
        let (names, usual): (Vec<String>, Vec<Option<usize>>) =
            names.into_iter().map(|(name, usual)| (name.to_owned(), usual)).unzip();
        assert!(names.len() <= Self::MOST, "at most {} dimensions can be free", Self::MOST);
        let largest = PAIRS.as_flattened().iter().max().copied().unwrap_or_default();
        let size = |(usual, small): (Option<usize>, usize)| {
            usual.filter(|&n| n > largest).unwrap_or(small)
        };
        let mut witness: Vec<usize> = usual.into_iter().zip(WITNESS).map(size).collect();
        for at in 1..witness.len() {
            // Two that are equal would hide which one a number is.
            while witness[..at].contains(&witness[at]) {
                witness[at] -= 1;
            }
        }
        Self { names, witness }
    }

    /// The names, in the order that was given.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Sizes at which the model is to be built for [`Free::made`], the witness last.
    pub fn corners(&self) -> Vec<BTreeMap<String, usize>> {
        let named = |sizes: Vec<usize>| self.names.iter().cloned().zip(sizes).collect();
        self.sizes().into_iter().map(named).collect()
    }

    fn sizes(&self) -> Vec<Vec<usize>> {
        let count = self.names.len();
        let corner = |set: usize| (0..count).map(|axis| PAIRS[axis][set >> axis & 1]).collect();
        (0..1 << count).map(corner).chain([self.witness.clone()]).collect()
    }

    /// A file whose dimensions are free, from the graphs at [`Free::corners`]; `path` is what
    /// errors call it.
    ///
    /// # Errors
    /// Those of `encode`. Also for a name that is no dimension of an input. Also if shape
    /// arithmetic cannot express how a node depends on the dimensions; the error names the first
    /// such node.
    pub fn made(
        &self,
        path: &Path,
        graphs: &[Graph],
        dialect: Dialect,
    ) -> Result<OnnxFile, FormatError> {
        let sizes = self.sizes();
        assert_eq!(graphs.len(), sizes.len(), "a graph for each of the corners");
        let models = graphs
            .iter()
            .map(|graph| model_of(path, graph, (ExportForm::Bare, dialect)))
            .collect::<Result<Vec<ModelProto>, _>>()?;
        let storage = ExternalData::beside(path);
        let merge = Merge { path, free: self, corners: sizes, storage, dialect };
        Ok(OnnxFile::new(path, merge.models(models, graphs)?))
    }
}

/// Data about the models that are merged into one.
struct Merge<'a> {
    path: &'a Path,
    free: &'a Free,
    corners: Vec<Vec<usize>>,
    storage: ExternalData,
    dialect: Dialect,
}

impl Merge<'_> {
    fn refused(&self, place: &str, found: &str) -> FormatError {
        let names = self.free.names.join(", ");
        let expected = format!("numbers that are sums of products of {names}");
        let error = FormatError::damaged(self.path, place, expected, found);
        error.remedy("give one of these dimensions a size")
    }

    fn models(
        &self,
        mut models: Vec<ModelProto>,
        graphs: &[Graph],
    ) -> Result<ModelProto, FormatError> {
        let mut bodies: Vec<GraphProto> =
            models.iter_mut().filter_map(|model| model.graph.take()).collect();
        let mut inputs = bodies[0].input.clone();
        let places = self.inputs(&mut inputs, &bodies)?;
        let mut sizes = Sizes::new(&places);
        let names = bodies[0].node.iter().flat_map(|node| &node.output);
        names.chain(places.iter().map(|(name, _)| name)).for_each(|name| sizes.reserve(name));
        let mut written = GraphProto {
            name: bodies[0].name.clone(),
            input: inputs,
            output: bodies[0].output.clone(),
            ..GraphProto::default()
        };
        self.outputs(&mut written.output, &bodies)?;
        let mut renamed = HashMap::new();
        self.states(graphs, (&mut sizes, &mut renamed), &mut written.initializer)?;
        let nodes = bodies.iter_mut().map(|body| std::mem::take(&mut body.node)).collect();
        self.nodes(nodes, &mut sizes, renamed)?;
        written.node = sizes.finish();
        let mut model = models.swap_remove(0);
        model.graph = Some(written);
        Ok(model)
    }

    /// Names the free dimensions of inputs; gives for each the input and axis that has it.
    fn inputs(
        &self,
        inputs: &mut [ValueInfoProto],
        bodies: &[GraphProto],
    ) -> Result<Vec<(String, usize)>, FormatError> {
        let mut places: Vec<Option<(String, usize)>> = vec![None; self.free.names.len()];
        for (at, port) in inputs.iter_mut().enumerate() {
            let name = port.name().to_owned();
            for (axis, sum) in self.extents(&name, bodies.iter().map(|body| &body.input[at]))? {
                let Some(dimension) = sum.dimension() else {
                    let formula = sum.formula(&self.free.names);
                    return Err(self.refused(
                        &format!("input `{name}`"),
                        &format!("a dimension of {formula}"),
                    ));
                };
                name_axis(port, axis, &self.free.names[dimension]);
                places[dimension].get_or_insert((name.clone(), axis));
            }
        }
        let missing = |at: usize| {
            let found = format!("no dimension of an input that is `{}`", self.free.names[at]);
            self.refused("inputs", &found)
        };
        places.into_iter().enumerate().map(|(at, place)| place.ok_or_else(|| missing(at))).collect()
    }

    /// Says what the free dimensions of outputs are.
    fn outputs(
        &self,
        outputs: &mut [ValueInfoProto],
        bodies: &[GraphProto],
    ) -> Result<(), FormatError> {
        for (at, port) in outputs.iter_mut().enumerate() {
            let name = port.name().to_owned();
            for (axis, sum) in self.extents(&name, bodies.iter().map(|body| &body.output[at]))? {
                name_axis(port, axis, &sum.formula(&self.free.names));
            }
        }
        Ok(())
    }

    /// The extents of a port that differ.
    fn extents<'p>(
        &self,
        name: &str,
        ports: impl Iterator<Item = &'p ValueInfoProto>,
    ) -> Result<Vec<(usize, Sum)>, FormatError> {
        let shapes: Vec<Vec<i64>> = ports.map(extents).collect();
        let differing =
            (0..shapes[0].len()).filter(|&axis| shapes.iter().any(|s| s[axis] != shapes[0][axis]));
        let sum = |axis: usize| {
            let values: Vec<i128> = shapes.iter().map(|shape| shape[axis].into()).collect();
            let found = || format!("an extent of {} at {}", said(&values), self.choices());
            Ok((
                axis,
                self.sum(&values).ok_or_else(|| self.refused(&format!("`{name}`"), &found()))?,
            ))
        };
        differing.map(sum).collect()
    }

    /// The sum that has these values at the corners and the witness.
    fn sum(&self, values: &[i128]) -> Option<Sum> {
        let (witness, corners) = values.split_last()?;
        let found = Sum::fit(corners, &PAIRS[..self.free.names.len()])?;
        (found.at(&self.free.witness) == *witness).then_some(found)
    }

    /// The sizes of the corners, as errors list them.
    fn choices(&self) -> String {
        let one = |sizes: &Vec<usize>| {
            let named =
                self.free.names.iter().zip(sizes).map(|(name, size)| format!("{name}={size}"));
            named.collect::<Vec<_>>().join(" ")
        };
        self.corners.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    /// Writes the states that are the same at every size as they are, and the others as what they
    /// are a function of.
    fn states(
        &self,
        graphs: &[Graph],
        (sizes, renamed): (&mut Sizes, &mut HashMap<String, String>),
        initializers: &mut Vec<TensorProto>,
    ) -> Result<(), FormatError> {
        let names = |graph: &Graph| {
            graph.states().iter().map(|state| state.name.clone()).collect::<Vec<_>>()
        };
        if let Some(other) = graphs.iter().find(|graph| names(graph) != names(&graphs[0])) {
            let found =
                format!("{} parameters and {}", graphs[0].states().len(), other.states().len());
            return Err(self.refused("parameters", &found));
        }
        let packed = packings(&graphs[0], self.dialect);
        for (at, state) in graphs[0].states().iter().enumerate() {
            sizes.reserve(&state.name);
            let ty = graphs[0].ty(state.value);
            let is_same = |graph: &Graph| {
                let other = &graph.states()[at];
                graph.ty(other.value) == ty && other.init == state.init
            };
            if graphs.iter().all(is_same) {
                let proto = initializer(&graphs[0], state, &packed);
                initializers.push(proto.map_err(|reason| self.refused(&state.name, &reason.0))?);
                continue;
            }
            let of = |graph: &Graph| {
                let state = &graph.states()[at];
                state.init.tensor(&state.name, graph.ty(state.value))
            };
            let tensors: Vec<Tensor> = graphs.iter().map(of).collect();
            let value = self.computed(&format!("parameter `{}`", state.name), &tensors, sizes)?;
            renamed.insert(state.name.clone(), value);
        }
        Ok(())
    }

    /// Writes the nodes; constants that differ are computed.
    fn nodes(
        &self,
        models: Vec<Vec<NodeProto>>,
        sizes: &mut Sizes,
        mut renamed: HashMap<String, String>,
    ) -> Result<(), FormatError> {
        let [first, others @ ..] = &models[..] else { unreachable!("at least one corner") };
        let shapes = shapes_of_reshapes(first);
        for (at, node) in first.iter().enumerate() {
            let place = format!("node `{}`", node.name());
            let same = others.iter().all(|nodes| nodes.get(at) == Some(node));
            if same {
                let mut node = node.clone();
                for input in &mut node.input {
                    if let Some(name) = renamed.get(input) {
                        input.clone_from(name);
                    }
                }
                sizes.push(node);
                continue;
            }
            let but_value = |other: &NodeProto| NodeProto {
                attribute: node.attribute.clone(),
                ..other.clone()
            };
            let unlike = others.iter().map(|nodes| nodes.get(at)).find(|other| {
                node.op_type() != "Constant" || other.is_none_or(|other| but_value(other) != *node)
            });
            if let Some(other) = unlike {
                let other =
                    other.map_or("no such node".to_owned(), |other| format!("{}", Brief(other)));
                return Err(self.refused(
                    &place,
                    &format!("{} at one size and {other} at another", Brief(node)),
                ));
            }
            let tensors = models
                .iter()
                .map(|nodes| self.constant(&nodes[at]))
                .collect::<Result<Vec<_>, _>>()?;
            let name = &node.output[0];
            let inferred = shapes.contains(name.as_str()).then(|| shape(&tensors)).flatten();
            let value = match inferred {
                Some(shape) => sizes.ints(&shape),
                None => self.computed(&place, &tensors, sizes)?,
            };
            renamed.insert(name.clone(), value);
        }
        match others.iter().find(|nodes| nodes.len() != first.len()) {
            Some(other) => {
                let found =
                    format!("{} of them at one size and {} at another", first.len(), other.len());
                Err(self.refused("nodes", &found))
            }
            None => Ok(()),
        }
    }

    /// The value of a Constant.
    fn constant(&self, node: &NodeProto) -> Result<Tensor, FormatError> {
        let proto = node.attribute.first().and_then(|attribute| attribute.t.as_ref());
        let none =
            || self.refused(&format!("node `{}`", node.name()), "a constant that is no tensor");
        self.storage.tensor(proto.ok_or_else(none)?)
    }

    /// The name of what is these tensors at the corners.
    fn computed(
        &self,
        place: &str,
        tensors: &[Tensor],
        sizes: &mut Sizes,
    ) -> Result<String, FormatError> {
        let sum = |values: &[i128]| self.sum(values);
        let found = || {
            let one = |tensor: &Tensor| match tensor.ty().elements() {
                0..=8 => format!("{:?}", tensor.to_f64()),
                _ => format!("{}", tensor.ty()),
            };
            format!(
                "{} at {}",
                tensors.iter().map(one).collect::<Vec<_>>().join(", "),
                self.choices()
            )
        };
        let lattice = Lattice::find(tensors, &sum).ok_or_else(|| self.refused(place, &found()))?;
        lattice.write(sizes).map_err(|reason| self.refused(place, &reason.0))
    }
}

/// A node in an error.
struct Brief<'n>(&'n NodeProto);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.op_type())?;
        for attribute in self.0.attribute.iter().filter(|attribute| !attribute.ints.is_empty()) {
            write!(f, " {}={:?}", attribute.name(), attribute.ints)?;
        }
        Ok(())
    }
}

/// Values that are nothing but the shape of Reshape.
fn shapes_of_reshapes(nodes: &[NodeProto]) -> HashSet<&str> {
    let operands = nodes
        .iter()
        .flat_map(|node| node.input.iter().enumerate().map(move |(at, name)| (node, at, name)));
    let (shapes, others): (Vec<_>, Vec<_>) =
        operands.partition(|(node, at, _)| node.op_type() == "Reshape" && *at == 1);
    let others: HashSet<&str> = others.into_iter().map(|(.., name)| name.as_str()).collect();
    shapes
        .into_iter()
        .map(|(.., name)| name.as_str())
        .filter(|name| !others.contains(name))
        .collect()
}

/// A shape with a single extent that depends on the sizes. Reshape infers that one itself.
fn shape(tensors: &[Tensor]) -> Option<Vec<i64>> {
    let lists: Vec<Vec<i128>> = tensors.iter().map(Tensor::to_ints).collect();
    let extent = |at: usize| {
        let same = lists.iter().all(|list| list.get(at) == lists[0].get(at));
        if same { i64::try_from(lists[0][at]).ok() } else { Some(-1) }
    };
    let shape = (0..lists[0].len()).map(extent).collect::<Option<Vec<i64>>>()?;
    let is_decided = shape.iter().filter(|n| **n == -1).count() == 1 && !shape.contains(&0);
    is_decided.then_some(shape)
}

fn said(values: &[i128]) -> String {
    values.iter().map(i128::to_string).collect::<Vec<_>>().join(", ")
}

fn extents(port: &ValueInfoProto) -> Vec<i64> {
    let tensor = match port.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor,
        _ => return vec![],
    };
    let size = |value: Option<&Extent>| match value {
        Some(Extent::DimValue(size)) => *size,
        _ => -1,
    };
    tensor.shape.iter().flat_map(|shape| &shape.dim).map(|dim| size(dim.value.as_ref())).collect()
}

fn name_axis(port: &mut ValueInfoProto, axis: usize, name: &str) {
    let value = port.r#type.as_mut().and_then(|ty| ty.value.as_mut());
    if let Some(type_proto::Value::TensorType(tensor)) = value {
        let shape = tensor.shape.as_mut().expect("our files have shapes");
        shape.dim[axis].value = Some(Extent::DimParam(name.to_owned()));
    }
}
