//! The tensors that grew in a run whose loss has risen. They are the weight, the gradient and the
//! output of a layer that are the most times as large as at the start. Beside them are tensors that
//! codes of fp8 do not hold.
//!
//! One batch is measured twice, with the weights as they are and with those of the start. The graph
//! is that of the step up to its gradients. Its outputs are numbers, so nothing but them is kept.
//! All this happens after the event: a run that is well pays nothing.

use crate::kept_model::stored;
use crate::step::in_formats;
use crate::{Recipe, TrainError, parameters};
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::ops::{Float8Linear, Linear};
use overdrive_ir::{Binary, Builder, Compare, DType, Expr, Graph, Node, Unary, Value, gradients};
use overdrive_passes::{cse, dce, fold};

/// The results of a layer on codes that are the scales of x and w.
const SCALES: [usize; 2] = [3, 4];

/// Share of the elements of a tensor that become 0 in codes, from which on it is told. Codes of a
/// tensor without outliers lose a few per cent.
const LOST: f64 = 0.5;
/// Share of them that are at the largest code.
const SATURATED: f64 = 0.01;

/// Growth from which on it is told.
const GROWN: f64 = 2.0;

/// A number of the graph.
enum Measured {
    /// The root mean square of this tensor of a kind.
    Size(Kind, String),
    /// A share of the elements of this tensor: those that become 0, else those that saturate.
    Share { is_lost: bool, of: String, dtype: DType },
}

/// Tensors that are compared with each other.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Output,
    Gradient,
    Weight,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Output, "the output of layer"),
        (Self::Gradient, "the gradient of"),
        (Self::Weight, "the weight"),
    ];
}

/// The graph that measures a step, and the meaning of its outputs.
pub(crate) struct Growth {
    pub(crate) graph: Graph,
    measured: Vec<Measured>,
}

fn root_mean_square(x: Expr<'_>) -> Expr<'_> {
    mean(x.convert(DType::F32) * x.convert(DType::F32)).sqrt()
}

fn mean(x: Expr<'_>) -> Expr<'_> {
    let count = x.ty().elements().max(1) as f64;
    x.sum(&(0..x.rank()).collect::<Vec<_>>()) * (1.0 / count)
}

/// A layer's name: that of its weight without the last part.
fn name(node: &Node) -> String {
    if node.scope.is_empty() { "output".to_owned() } else { node.scope.replace('/', ".") }
}

fn is_layer(node: &Node) -> bool {
    node.op.composite::<Linear>().is_some() || node.op.composite::<Float8Linear>().is_some()
}

impl Growth {
    /// That of a bound graph with output `loss`.
    ///
    /// # Errors
    /// As the step.
    pub(crate) fn of(graph: &Graph, recipe: &Recipe) -> Result<Self, TrainError> {
        let names: Vec<&str> = parameters(graph, recipe).map(|(name, _)| name).collect();
        let graph = &in_formats(&stored(graph, recipe)?, recipe)?;
        let b = Builder::new(&format!("{}.growth", graph.name()));
        let values = b.append(graph)?;
        let value = |v: Value| values[v.0 as usize];
        let loss = graph.outputs().iter().find(|port| port.name == "loss");
        let loss = loss.expect("the step has a loss").value;
        let layers: Vec<&Node> = graph.nodes().iter().filter(|node| is_layer(node)).collect();
        let state = |name: &&str| graph.states().iter().find(|state| state.name == **name);
        let weights: Vec<Value> =
            names.iter().map(|name| state(name).expect("passes keep states").value).collect();
        let outputs = layers.iter().map(|layer| layer.results[0]);
        let wrt: Vec<Value> = weights.iter().copied().chain(outputs).collect();
        let seed = value(loss).constant(1.0);
        let found = gradients(&b, graph, &values, &[(loss, seed)], &wrt);
        let (of_weights, of_outputs) = found.split_at(names.len());
        let mut measured = vec![];
        let mut tell = |what: Measured, number: Expr<'_>| {
            b.output(&format!("%{}", measured.len()), number.convert(DType::F32));
            measured.push(what);
        };
        for ((name, weight), gradient) in names.iter().zip(&weights).zip(of_weights) {
            let of = |kind| Measured::Size(kind, (*name).to_owned());
            tell(of(Kind::Weight), root_mean_square(value(*weight)));
            if let Some(gradient) = gradient {
                tell(of(Kind::Gradient), root_mean_square(*gradient));
            }
        }
        for (layer, dy) in layers.iter().zip(of_outputs) {
            let y = value(layer.results[0]);
            tell(Measured::Size(Kind::Output, name(layer)), root_mean_square(y));
            let Some(op) = layer.op.composite::<Float8Linear>() else { continue };
            if op.granularity != Float8Granularity::Tensor {
                continue;
            }
            let [x, w] = [0, 1].map(|i| value(layer.operands[i]));
            let [of_x, of_w] = SCALES.map(|i| value(layer.results[i]));
            let given = layer.operands.get(Float8Linear::GIVEN[2]).map(|scale| value(*scale));
            let of_dy = dy.zip(given).map(|(dy, scale)| (dy, scale, op.gradient, "gradient"));
            let coded = [(x, of_x, op.forward, "input"), (w, of_w, op.forward, "weight")];
            for (tensor, scale, dtype, what) in coded.into_iter().chain(of_dy) {
                for is_lost in [true, false] {
                    let of = format!("{what} of layer `{}`", name(layer));
                    let share = share(tensor, scale, (dtype, is_lost));
                    tell(Measured::Share { is_lost, of, dtype }, share);
                }
            }
        }
        let graph = dce(&cse(&dce(&fold(&b.finish()?)?)?)?)?;
        Ok(Self { graph, measured })
    }

    /// These outputs in words, `now` and at the start; empty where nothing stands out.
    pub(crate) fn said(&self, now: &[f64], start: &[f64]) -> String {
        let mut said = String::new();
        let grown = Kind::ALL.iter().filter_map(|(kind, words)| {
            let (name, now, start) = self.most((*kind, now), start)?;
            Some(format!("{words} `{name}` {:.0} times, to {now:.1e}", now / start))
        });
        let grown: Vec<String> = grown.collect();
        if !grown.is_empty() {
            said = format!(
                "; since the start, in root mean square, most has grown: {}",
                grown.join(", ")
            );
        }
        for is_lost in [true, false] {
            said += &self.worst(is_lost, now).unwrap_or_default();
        }
        said
    }

    /// The tensor of a kind that grew the most times, with its size now and at the start.
    fn most(&self, (kind, now): (Kind, &[f64]), start: &[f64]) -> Option<(&str, f64, f64)> {
        let sizes = self.measured.iter().zip(now.iter().zip(start));
        let sizes = sizes.filter_map(|(measured, (now, start))| match measured {
            Measured::Size(of, name) if *of == kind && *start > 0.0 => {
                Some((&**name, *now, *start))
            }
            _ => None,
        });
        let most = sizes.max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))?;
        (most.1 >= GROWN * most.2).then_some(most)
    }

    /// The tensor that codes hold worst, if it is told.
    fn worst(&self, lost: bool, now: &[f64]) -> Option<String> {
        let shares = self.measured.iter().zip(now).filter_map(|(measured, share)| match measured {
            Measured::Share { is_lost, of, dtype } if *is_lost == lost => Some((of, dtype, *share)),
            _ => None,
        });
        let (of, dtype, share) = shares.max_by(|a, b| a.2.total_cmp(&b.2))?;
        let percent = 100.0 * share;
        match lost {
            true if share >= LOST => Some(format!(
                "; {percent:.0} % of the {of} become 0 in {dtype}, since the largest element is \
                 far above the others: give each row a scale (fp8-rows), or leave the layer out \
                 (`except` of a recipe)"
            )),
            false if share >= SATURATED => Some(format!(
                "; {percent:.0} % of the {of} are beyond {dtype} under the scale of the steps \
                 before: take it from the tensor itself (fp8-current)"
            )),
            _ => None,
        }
    }
}

/// The share of the elements of x that become 0 in codes of a type, or that its largest code does
/// not reach.
fn share<'b>(x: Expr<'b>, scale: Expr<'b>, (dtype, is_lost): (DType, bool)) -> Expr<'b> {
    let format = dtype.float_format().expect("codes are floats");
    let size = x.convert(DType::F32).unary(Unary::Abs);
    let is = |kind, times: f64| size.compare(kind, scale.convert(DType::F32) * times);
    let counted = match is_lost {
        // Half of the least code is rounded to the even one, 0.
        true => {
            let is_some = size.compare(Compare::Gt, size.constant(0.0));
            is(Compare::Le, format.decode(1) / 2.0).binary(Binary::And, is_some)
        }
        false => is(Compare::Gt, dtype.max_value()),
    };
    mean(counted.convert(DType::F32))
}
