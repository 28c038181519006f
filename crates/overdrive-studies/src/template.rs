//! A model before its dimensions are bound, as read from a name, a folder or a file.

use crate::Workload;
use overdrive_bench::work::Items;
use overdrive_formats::{ModelFolder, TableColumns};
use overdrive_ir::{Graph, GraphError, Port, Tensor};
use overdrive_models::BuiltInModel;
use serde_json::Value;
use std::collections::BTreeMap;

/// A model and what is needed to make a workload of it.
#[derive(Clone, Debug)]
pub struct Template {
    /// Its name in results.
    pub name: String,
    /// The forward graph; its states begin as the weights.
    pub graph: Graph,
    /// Size of each named dimension unless the user says otherwise.
    pub dimensions: BTreeMap<String, usize>,
    /// The largest size of a named dimension, where the model has one: beyond it a graph would
    /// compute nonsense.
    pub limits: BTreeMap<String, usize>,
    /// Number of ids that its integer inputs index; all ids are below it.
    pub vocabulary: Option<usize>,
    /// The meaning of the columns, if it learnt from a table.
    pub columns: Option<TableColumns>,
    /// The config.json of a published architecture, see [`Workload::config`].
    pub config: Option<Value>,
}

impl Template {
    /// A built-in model.
    ///
    /// # Errors
    /// When it does not build, which its tests exclude.
    pub fn built_in(model: &BuiltInModel) -> Result<Self, GraphError> {
        let dimensions =
            model.dimensions.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
        let (name, vocabulary) = (model.name.to_owned(), model.vocabulary);
        let (limits, columns, config) = (BTreeMap::new(), None, None);
        Ok(Self { name, graph: (model.build)()?, dimensions, limits, vocabulary, columns, config })
    }

    /// The graph in which every named dimension has one of `sizes`.
    ///
    /// # Errors
    /// When a size is missing, exceeds a limit, or does not fit the model.
    pub fn graph_of(&self, sizes: &BTreeMap<String, usize>) -> Result<Graph, GraphError> {
        for (name, &limit) in &self.limits {
            if let Some(size) = sizes.get(name).filter(|&&size| size > limit) {
                return Err(GraphError {
                    op: "bind".into(),
                    scope: self.name.clone(),
                    expected: format!("`{name}` of at most {limit}"),
                    found: size.to_string(),
                    remedy: "the model has learnt nothing beyond".into(),
                });
            }
        }
        overdrive_passes::bind(&self.graph, sizes)
    }

    /// The workload in which named dimensions have `sizes` where given, else their defaults.
    ///
    /// # Errors
    /// When a size does not fit the model.
    pub fn bind(&self, sizes: &BTreeMap<String, usize>) -> Result<Workload, GraphError> {
        let mut bound = self.dimensions.clone();
        bound.extend(sizes.clone());
        let graph = self.graph_of(&bound)?;
        let dimensions = bound.iter().map(|(name, &size)| (name.as_str(), size));
        let items =
            bound.get("batch").map(|&n| Items { per_call: n as u64, name: "samples".to_owned() });
        let vocabulary = self.vocabulary.unwrap_or(2);
        // An encoder's mask lets every token through: numbers at random would be a mask to some and
        // none to others.
        let masks = graph.inputs().iter().filter(|port| port.name == "mask");
        let ones = |port: &Port| {
            let ty = graph.ty(port.value);
            (
                port.name.clone(),
                Tensor::from_f64(ty.dtype, ty.shape.clone(), &vec![1.0; ty.elements()]),
            )
        };
        let (given, config) = (masks.map(ones).collect(), self.config.clone());
        // A model that has no such sizes is left to the host.
        let probe = self.graph_of(&small(&bound)).ok();
        let whole = Workload::new(&self.name, dimensions, graph);
        let whole = Workload { items, vocabulary, given, config, probe, ..whole };
        let Some(&batch) = bound.get("batch") else { return Ok(whole) };
        whole.with_sampled_batch(batch, |batch| {
            let sizes = bound.iter().map(|(name, &size)| (name.clone(), size));
            self.graph_of(&sizes.chain([("batch".to_owned(), batch)]).collect())
        })
    }
}

impl Workload {
    /// A built-in model, its named dimensions bound to `sizes` where given, else to its defaults.
    ///
    /// # Errors
    /// When a size does not fit the model.
    pub fn of_model(
        model: &BuiltInModel,
        sizes: &BTreeMap<String, usize>,
    ) -> Result<Self, GraphError> {
        Template::built_in(model)?.bind(sizes)
    }
}

/// One sample, and of everything else a few.
fn small(sizes: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let least = |name: &str| if name == "batch" { 1 } else { 8 };
    sizes.iter().map(|(name, &size)| (name.clone(), size.min(least(name)))).collect()
}

impl From<ModelFolder> for Template {
    fn from(ModelFolder { config, graph }: ModelFolder) -> Self {
        let limits = BTreeMap::new();
        Self {
            name: config.name,
            graph,
            dimensions: config.dimensions,
            limits,
            vocabulary: config.vocabulary,
            columns: config.columns,
            config: None,
        }
    }
}
