//! `observe` adds outputs that show what flows into contractions. `Evidence` is what a driver
//! gathers from them.
//!
//! Calibration has three parts that know nothing of each other. This pass chooses the values to
//! observe. A driver runs the graph on data and adds up the outputs of each call. Passes that
//! quantize read the sums. Invariant: the outputs and updates of the model stay as they were, and
//! evidence of two batches is that of both together.

use overdrive_ir::ops::Conv2d;
use overdrive_ir::{
    Binary, Builder, DType, Expr, Graph, GraphError, Node, NodeId, Operation, Origin, Pad, Prim,
    Reducer, Tensor,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Statistics that are gathered of the left operand of a contraction.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Statistic {
    /// Smallest and largest element: `[2]`.
    Range,
    /// Largest magnitude at each index of the contracted axis: `[K]`. Magnitudes that SmoothQuant
    /// and AWQ scale by.
    ChannelMagnitude,
    /// Sum of the outer products of all contracted rows: `[K, K]`, half the Hessian of GPTQ
    /// (arXiv:2210.17323). The rows of a convolution are its windows, in the order of its kernel.
    /// Groups of channels that see only each other have sums of their own: `[groups, K, K]`.
    Gram,
    /// How far the inputs of a layer have moved from those `x_f` of the float model. It is the sum
    /// of the outer products `(x_f - x) xᵀ` of all contracted rows, in the form of
    /// [`Statistic::Gram`]. [`observe_beside`](crate::observe_beside) gives it.
    Drift,
    /// Elements by their first [`HISTOGRAM_BITS`] bits as f32. The bins are as wide as 1/32 of what
    /// they hold. They therefore need no range beforehand, and those of two batches add up.
    Histogram,
}

/// Bits of an f32 that make a bin: sign, exponent and five of the mantissa.
pub const HISTOGRAM_BITS: u32 = 14;

/// The value in the middle of a bin of [`Statistic::Histogram`].
pub fn histogram_value(bin: usize) -> f64 {
    let shift = 32 - HISTOGRAM_BITS;
    f64::from(f32::from_bits((bin as u32) << shift | 1 << (shift - 1)))
}

impl Statistic {
    /// All of them.
    pub const ALL: [Statistic; 5] =
        [Self::Range, Self::ChannelMagnitude, Self::Gram, Self::Drift, Self::Histogram];

    /// Its name in outputs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::ChannelMagnitude => "channel-magnitude",
            Self::Gram => "gram",
            Self::Drift => "drift",
            Self::Histogram => "histogram",
        }
    }

    fn of<'b>(
        self,
        b: &'b Builder,
        SiteInput { x, float }: SiteInput<'b>,
        axis: usize,
    ) -> Expr<'b> {
        let all: Vec<usize> = (0..x.rank()).collect();
        let others: Vec<usize> = all.iter().copied().filter(|&a| a != axis).collect();
        match self {
            Self::Range => {
                let ends =
                    [Reducer::Min, Reducer::Max].map(|r| x.reduce(r, &all).reshape([1usize]));
                b.concat(&ends, 0)
            }
            Self::ChannelMagnitude => x.max(-x).reduce(Reducer::Max, &others),
            Self::Gram => outer_products(x, x, &others),
            Self::Drift => outer_products(float - x, x, &others),
            Self::Histogram => {
                let count: usize = x.sizes().iter().product();
                let bits = b.op1(Prim::Bitcast { to: DType::U32 }, &[x.reshape([count])]);
                let shift = bits.constant(f64::from(32 - HISTOGRAM_BITS));
                let bins = bits.binary(Binary::Shr, shift).convert(DType::I32).reshape([count, 1]);
                let (empty, ones) = (
                    b.full(DType::F32, [1usize << HISTOGRAM_BITS], 0.0),
                    b.full(DType::F32, [count], 1.0),
                );
                b.op1(
                    Prim::Scatter { axes: vec![0], reducer: Some(Reducer::Sum) },
                    &[empty, bins, ones],
                )
            }
        }
    }

    /// The statistic of two batches from that of each.
    fn merge(self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let each = |f: fn(f64, f64) -> f64| a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect();
        match self {
            Self::Range => vec![a[0].min(b[0]), a[1].max(b[1])],
            Self::ChannelMagnitude => each(f64::max),
            Self::Gram | Self::Drift | Self::Histogram => each(|a, b| a + b),
        }
    }
}

/// A contraction whose left operand can be observed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Stable name: the scope, numbered where a scope has several.
    pub name: String,
    /// The node, whose first operand is observed.
    pub node: NodeId,
    /// The contracted axis of that operand.
    pub axis: usize,
}

/// The contractions of a graph over a single axis of a float operand, in order.
pub fn sites(graph: &Graph) -> Vec<Site> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(axis) = contracted_axis(graph, node) else { continue };
        let count = seen.entry(&node.scope).or_default();
        let name =
            if *count == 0 { node.scope.to_string() } else { format!("{}#{count}", node.scope) };
        *count += 1;
        found.push(Site { name, node: NodeId(index as u32), axis });
    }
    found
}

/// The axis of the first operand that a node contracts, if it contracts that operand as it is,
/// once, over one axis.
fn contracted_axis(graph: &Graph, node: &Node) -> Option<usize> {
    let float = graph.ty(*node.operands.first()?).dtype.is_float();
    let axis = match &node.op {
        Operation::Prim(Prim::DotGeneral(dot)) => match dot.contract[..] {
            [(axis, _)] => Some(axis),
            _ => None,
        },
        Operation::Prim(Prim::Convolution(_)) => Some(1),
        Operation::Prim(_) => None,
        Operation::Composite(_) => {
            let flat = node.op.expansion(&graph.types(&node.operands), &node.regions);
            let mut inner =
                flat.nodes().iter().filter_map(|n| Some((n, contracted_axis(&flat, n)?)));
            let (first, axis) = inner.next()?;
            let own = flat.origin(first.operands[0]) == Origin::Input(0);
            (own && inner.next().is_none()).then_some(axis)
        }
    };
    axis.filter(|_| float)
}

/// The value that a site reads, and the value that it reads in the float model.
#[derive(Copy, Clone)]
pub(crate) struct SiteInput<'b> {
    pub(crate) x: Expr<'b>,
    pub(crate) float: Expr<'b>,
}

/// The graph with an output for each of `statistics` at each of its [`sites`], after its own
/// outputs. The graph stands for the float model too, from which nothing has drifted.
///
/// # Errors
/// When the graph has unbound dimensions.
pub fn observe(graph: &Graph, statistics: &[Statistic]) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let map = b.append(graph)?;
    b.conclude(graph, |v| map[v.0 as usize]);
    for site in sites(graph) {
        let x = map[graph.node(site.node).operands[0].0 as usize];
        add_outputs(&b, (graph, &site), SiteInput { x, float: x }, statistics);
    }
    b.finish()
}

/// Adds an output for each of `statistics` of the value that a site of `graph` reads.
pub(crate) fn add_outputs<'b>(
    b: &'b Builder,
    (graph, site): (&Graph, &Site),
    SiteInput { x, float }: SiteInput<'b>,
    statistics: &[Statistic],
) {
    let node = graph.node(site.node);
    let [x, float] = [x, float].map(|x| x.convert(DType::F32));
    for &statistic in statistics {
        let found = match (statistic, node.op.composite::<Conv2d>()) {
            (Statistic::Gram | Statistic::Drift, Some(conv)) => {
                let kernel = &graph.ty(node.operands[1]).sizes()[2..];
                let seen = windows(b, x, conv, kernel);
                let other = match statistic {
                    Statistic::Drift => windows(b, float - x, conv, kernel),
                    _ => seen,
                };
                products_by_group(other, seen, conv.groups)
            }
            _ => statistic.of(b, SiteInput { x, float }, site.axis),
        };
        b.output(&output_name(&site.name, statistic), found);
    }
}

/// Sum of the outer products of rows of a and b, over these axes.
fn outer_products<'b>(a: Expr<'b>, b: Expr<'b>, axes: &[usize]) -> Expr<'b> {
    a.dot(b, &[], &axes.iter().map(|&axis| (axis, axis)).collect::<Vec<_>>())
}

/// The elements that each output of a convolution of x `[N, C, H, W]` reads: `[N, C kernel H kernel
/// W, output H, output W]`.
fn windows<'b>(b: &'b Builder, x: Expr<'b>, conv: &Conv2d, kernel: &[usize]) -> Expr<'b> {
    let around = |axis: usize| match conv.pad.get(axis.wrapping_sub(2)) {
        Some(&[low, high]) => Pad { low: low as i64, high: high as i64, interior: 0 },
        None => Pad::default(),
    };
    let x = x.pad((0..4).map(around).collect(), 0.0);
    let sizes = x.sizes();
    let reach = |d: usize| (kernel[d] - 1) * conv.dilation[d] + 1;
    let count =
        |d: usize| (sizes[d + 2] + conv.stride[d]).saturating_sub(reach(d)) / conv.stride[d];
    let tap = |at: [usize; 2]| {
        let start = |d: usize| at[d] * conv.dilation[d];
        let limit = |d: usize| {
            start(d) + count(d).saturating_sub(1) * conv.stride[d] + usize::from(count(d) > 0)
        };
        let slice = Prim::Slice {
            start: vec![0, 0, start(0), start(1)],
            limit: vec![sizes[0], sizes[1], limit(0), limit(1)],
            stride: vec![1, 1, conv.stride[0], conv.stride[1]],
        };
        b.op1(slice, &[x]).reshape([sizes[0], sizes[1], 1, count(0), count(1)])
    };
    let taps: Vec<Expr<'b>> =
        (0..kernel[0]).flat_map(|i| (0..kernel[1]).map(move |j| [i, j])).map(tap).collect();
    let rows = sizes[1] * kernel[0] * kernel[1];
    b.concat(&taps, 2).reshape([sizes[0], rows, count(0), count(1)])
}

/// Sums of outer products of windows `[N, groups K, output H, output W]`, each group for itself.
fn products_by_group<'b>(a: Expr<'b>, b: Expr<'b>, groups: usize) -> Expr<'b> {
    let [n, rows, h, w] = a.sizes()[..] else { unreachable!("windows have four axes") };
    if groups == 1 {
        return outer_products(a, b, &[0, 2, 3]);
    }
    let [a, b] = [a, b].map(|windows| windows.reshape([n, groups, rows / groups, h, w]));
    a.dot(b, &[(1, 1)], &[(0, 0), (3, 3), (4, 4)])
}

fn output_name(site: &str, statistic: Statistic) -> String {
    format!("evidence.{}:{site}", statistic.name())
}

/// Statistics by site, over every batch that was added.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Evidence {
    /// Calls that were added.
    pub batches: u64,
    /// By site, then by statistic; elements in row-major order.
    pub sites: BTreeMap<String, BTreeMap<Statistic, Vec<f64>>>,
}

impl Evidence {
    /// Adds the outputs of one call of an observed graph.
    pub fn add(&mut self, observed: &Graph, outputs: &[Tensor]) {
        assert_eq!(observed.outputs().len(), outputs.len(), "a call gives every output");
        self.batches += 1;
        for (port, tensor) in observed.outputs().iter().zip(outputs) {
            let Some((statistic, site)) = parse(&port.name) else { continue };
            let found = tensor.to_f64();
            let of_site = self.sites.entry(site.to_owned()).or_default();
            let merged = match of_site.get(&statistic) {
                Some(known) => statistic.merge(known, &found),
                None => found,
            };
            of_site.insert(statistic, merged);
        }
    }

    /// A statistic of a site, if it was observed.
    pub fn get(&self, site: &str, statistic: Statistic) -> Option<&[f64]> {
        self.sites.get(site)?.get(&statistic).map(Vec::as_slice)
    }
}

fn parse(output: &str) -> Option<(Statistic, &str)> {
    let (name, site) = output.strip_prefix("evidence.")?.split_once(':')?;
    Some((Statistic::ALL.into_iter().find(|s| s.name() == name)?, site))
}
