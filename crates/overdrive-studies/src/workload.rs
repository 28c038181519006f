//! A workload: a bound graph, its inputs by seed, and the f64 outputs that every variant is held
//! against.

mod oracle;

use overdrive_bench::case;
use overdrive_bench::oracle::normal_inputs;
use overdrive_bench::work::{Items, Work};
use overdrive_ir::eval::philox;
use overdrive_ir::{Graph, GraphError, Port, Tensor};
use overdrive_passes::Indices;
use serde_json::Value;
use std::collections::BTreeMap;

/// Above this many FLOPs the reference computes some samples of a batch, as many as come to this:
/// seconds on two threads.
const SAMPLED_FLOPS: u64 = 100_000_000_000;

/// The computation, independent of who runs it.
pub struct Workload {
    /// Name and sizes.
    pub key: case::Workload,
    /// The bound graph in f32.
    pub graph: Graph,
    /// The share of the graph's FLOPs that a call computes: below 1 if data let it skip some.
    pub computed: f64,
    /// The items that a call handles, for a throughput.
    pub items: Option<Items>,
    /// Integer inputs are drawn below this.
    pub vocabulary: usize,
    /// Those of other bounds, by name.
    pub bounds: BTreeMap<String, usize>,
    /// Inputs by name that are the same for every seed.
    pub given: BTreeMap<String, Tensor>,
    /// The config.json of a published architecture whose graph this is, for whoever has it in an
    /// implementation of their own.
    pub config: Option<Value>,
    /// The rows that the reference computes, where it need not compute all.
    pub sampled: Option<SampledRows>,
    /// The model at small sizes: a device that computes the reference is held against the host on
    /// it. Without it the host computes the reference.
    pub probe: Option<Graph>,
}

/// Rows that stand for all. Every row of every output must depend on the same row of some inputs
/// and on nothing else of them. The reference of a large contraction or of a thousand long rows is
/// then small.
pub struct SampledRows {
    /// The workload's graph, for as many rows as are picked.
    graph: Graph,
    /// Number of inputs that have those rows; they are the first ones.
    inputs: usize,
    picked: Vec<usize>,
}

impl SampledRows {
    /// The most rows that are compared.
    const MOST: usize = 64;
    /// The fewest: the first and the last.
    const FEWEST: usize = 2;

    fn of(&self, tensor: &Tensor) -> Tensor {
        tensor.rows(&self.picked)
    }
}

impl Workload {
    /// A workload of this name and sizes.
    pub fn new<'a>(
        name: &str,
        dimensions: impl IntoIterator<Item = (&'a str, usize)>,
        graph: Graph,
    ) -> Self {
        let dimensions = dimensions.into_iter().map(|(name, size)| (name, size as u64));
        let (key, given) = (case::Workload::new(name, dimensions), BTreeMap::new());
        Self {
            key,
            graph,
            computed: 1.0,
            items: None,
            vocabulary: 2,
            bounds: BTreeMap::new(),
            given,
            config: None,
            sampled: None,
            probe: None,
        }
    }

    /// The same, compared with the reference on some of the rows of its first `inputs` inputs: the
    /// first, the last and others at random. `build` gives the graph for a number of rows.
    ///
    /// # Errors
    /// When that graph is ill-formed.
    pub fn with_sampled_rows(
        self,
        (rows, inputs): (usize, usize),
        build: impl FnOnce(usize) -> Result<Graph, GraphError>,
    ) -> Result<Self, GraphError> {
        self.with_rows((rows, SampledRows::MOST), inputs, build)
    }

    /// The same, compared on some samples of the batch if the reference of all would take long and
    /// samples are independent. `build` gives the graph for a batch of a size.
    ///
    /// # Errors
    /// When that graph is ill-formed.
    pub(crate) fn with_sampled_batch(
        self,
        batch: usize,
        build: impl FnOnce(usize) -> Result<Graph, GraphError>,
    ) -> Result<Self, GraphError> {
        let flops = self.graph.cost().flops;
        let per_sample = flops / (batch as u64).max(1);
        let count = (SAMPLED_FLOPS / per_sample.max(1)).min(SampledRows::MOST as u64) as usize;
        let count = count.max(SampledRows::FEWEST);
        let has_batch = |port: &Port| self.graph.ty(port.value).sizes().first() == Some(&batch);
        let inputs = self.graph.inputs().iter().take_while(|port| has_batch(port)).count();
        let is_long = flops > SAMPLED_FLOPS && batch > count && inputs > 0;
        if !is_long || !overdrive_passes::independent_rows(&self.graph, inputs) {
            return Ok(self);
        }
        self.with_rows((batch, count), inputs, build)
    }

    /// The same, compared on so many of the rows. `build` gives the graph for a number of rows.
    ///
    /// # Errors
    /// When that graph is ill-formed.
    pub(crate) fn with_rows(
        self,
        (rows, count): (usize, usize),
        inputs: usize,
        build: impl FnOnce(usize) -> Result<Graph, GraphError>,
    ) -> Result<Self, GraphError> {
        if rows <= count {
            return Ok(self);
        }
        let between = philox::uniforms(rows as u64, 0).map(|u| (u * rows as f64) as usize);
        let picked: Vec<usize> = [0, rows - 1].into_iter().chain(between).take(count).collect();
        Ok(Self {
            sampled: Some(SampledRows { graph: build(picked.len())?, inputs, picked }),
            ..self
        })
    }

    /// The same with other graphs for the whole and for the sampled rows.
    pub(crate) fn with_graphs(&self, of: impl Fn(&Graph) -> Graph) -> Self {
        let sampled = self.sampled.as_ref();
        let sampled =
            sampled.map(|s| SampledRows { graph: of(&s.graph), picked: s.picked.clone(), ..*s });
        let (key, items, given) = (self.key.clone(), self.items.clone(), self.given.clone());
        let (config, probe) = (self.config.clone(), self.probe.as_ref().map(&of));
        let (graph, bounds) = (of(&self.graph), self.bounds.clone());
        Self { key, graph, items, bounds, given, config, sampled, probe, ..*self }
    }

    /// The same with indices drawn from the whole range that the graph proves, for integer inputs
    /// of unknown meaning.
    #[must_use]
    pub fn with_proven_bounds(self) -> Self {
        let bounds = Indices::of(&self.graph).map(|indices| indices.bounds()).unwrap_or_default();
        Self { bounds, ..self }
    }

    /// Describes random inputs: `x normal, ids below 1000`.
    pub fn drawn(&self) -> String {
        let of = |port: &Port| {
            let name = &port.name;
            match self.below(name) {
                _ if self.given.contains_key(name) => format!("`{name}` fixed"),
                _ if self.graph.ty(port.value).dtype.is_float() => format!("`{name}` normal"),
                2 => format!("`{name}` 0 or 1"),
                below => format!("`{name}` below {below}"),
            }
        };
        self.graph.inputs().iter().map(of).collect::<Vec<_>>().join(", ")
    }

    fn below(&self, input: &str) -> usize {
        self.bounds.get(input).copied().unwrap_or(self.vocabulary)
    }

    /// FLOPs that a call computes, and compulsory bytes: inputs and states read once, outputs
    /// written once.
    pub fn work(&self) -> Work {
        let graph = &self.graph;
        let ports = graph.inputs().iter().chain(graph.outputs()).map(|p| p.value);
        let values = ports.chain(graph.states().iter().map(|s| s.value));
        let bytes = values.map(|v| graph.ty(v).bytes() as u64).sum();
        let all = graph.cost().flops;
        let skipped = ((1.0 - self.computed) * all as f64) as u64;
        Work { flops: all - skipped, bytes, items: self.items.clone() }
    }

    /// Bytes that any back end holds in a call, before a plan says what else: states, inputs and
    /// outputs.
    pub fn least_bytes(&self) -> u64 {
        let states = self.graph.states().iter().map(|state| state.value);
        let ports = self.graph.inputs().iter().chain(self.graph.outputs()).map(|port| port.value);
        states
            .chain(ports)
            .fold(0, |sum: u64, value| sum.saturating_add(self.graph.ty(value).bytes() as u64))
    }

    /// Inputs of a seed: what is given, else standard normal, integers uniform below their bound.
    pub fn inputs(&self, seed: u64) -> Vec<Tensor> {
        let draw = |(port, normal): (&Port, Tensor)| {
            let ty = self.graph.ty(port.value);
            if let Some(given) = self.given.get(&port.name) {
                return given.clone();
            }
            if ty.dtype.is_float() {
                return normal;
            }
            let bound = self.below(&port.name) as f64;
            let below = |u: f64| (u * bound) as i128;
            let ids =
                philox::uniforms(seed, philox::site_of(&port.name)).take(ty.elements()).map(below);
            Tensor::from_ints(ty.dtype, ty.shape.clone(), &ids.collect::<Vec<_>>())
        };
        self.graph.inputs().iter().zip(normal_inputs(&self.graph, seed)).map(draw).collect()
    }
}
