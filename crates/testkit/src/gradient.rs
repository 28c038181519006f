//! Gradients against central differences of the definition, in f64, along random directions.
//!
//! One operand moves at a time, so that a wrong gradient is named. Invariant: the numeric side
//! never sees `grad`, and nothing is left out. A result that is not finite (the log-sum-exp of a
//! row that sees nothing) still gets a cotangent, which must not poison the gradients.

use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::{Array, Graph, Tensor, Value, verify};
use overdrive_passes::differentiate;

/// Directions along which each operand moves.
const DIRECTIONS: u64 = 3;
/// Step relative to the spread of an operand. The difference quotient is of fourth order: it errs
/// by about `STEP⁴` of the fifth derivative, and by `ε / STEP` of the loss.
const STEP: f64 = 1e-6;

/// A function at a point, with cotangents of its float results and gradients of its float operands.
#[derive(Clone, Debug)]
pub struct Gradients {
    graph: Graph,
    point: Vec<Array>,
    /// The cotangent of each output; `None` for integers.
    cotangents: Vec<Option<Array>>,
    /// Number of the input, and its gradient.
    pub grads: Vec<(usize, Array)>,
}

impl Gradients {
    /// Differentiates `graph`, whose floats are f64 and which has no states, at `point`.
    pub fn at(graph: &Graph, point: &[Array], seed: u64) -> Result<Self, String> {
        let (derived, cotangents) = derive(graph, seed)?;
        let arguments = point.iter().cloned().chain(cotangents.iter().flatten().cloned());
        let results = eval(&derived, &arguments.collect::<Vec<_>>(), &mut States::new());
        let operands = float_inputs(graph).into_iter().map(|(i, _)| i);
        let grads = operands.zip(results.into_iter().skip(graph.outputs().len())).collect();
        Ok(Self { graph: graph.clone(), point: point.to_vec(), cotangents, grads })
    }

    /// Errs with the operand whose gradient disagrees with the differences.
    pub fn check(&self, seed: u64) -> Result<(), String> {
        for (operand, grad) in &self.grads {
            let name = format!("`{}`: gradient of operand {operand}", self.graph.name());
            let declared = &self.point[*operand];
            if grad.ty() != declared.ty() {
                return Err(format!(
                    "{name} has type {}, the operand {}",
                    grad.ty(),
                    declared.ty()
                ));
            }
            if let Some(wrong) = grad.floats().iter().find(|g| !g.is_finite()) {
                return Err(format!("{name} is {wrong} somewhere"));
            }
            for direction in 0..DIRECTIONS {
                self.check_direction(*operand, grad, seed + direction)
                    .map_err(|e| format!("{name}: {e}"))?;
            }
        }
        Ok(())
    }

    fn check_direction(&self, operand: usize, grad: &Array, seed: u64) -> Result<(), String> {
        let at = &self.point[operand];
        let scale = spread(at);
        let direction: Vec<f64> = philox::normals(seed, 1000 + operand as u64)
            .take(at.len())
            .map(|z| z * scale)
            .collect();
        let terms = || grad.floats().iter().zip(&direction).map(|(g, u)| g * u);
        let (analytic, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        let loss = |t: f64| self.loss(operand, &direction, t * STEP);
        let ([near, far], magnitude) =
            ([loss(1.0).0 - loss(-1.0).0, loss(2.0).0 - loss(-2.0).0], loss(0.0).1);
        let numeric = (8.0 * near - far) / (12.0 * STEP);
        let tolerance = 1e-6 * size + 16.0 * f64::EPSILON * magnitude / STEP;
        if (analytic - numeric).abs() <= tolerance {
            return Ok(());
        }
        Err(format!(
            "{analytic:e} along a direction, differences give {numeric:e}, tolerance {tolerance:e}"
        ))
    }

    /// `Σ cotangent · result` where `operand` has moved by `t direction`, and the sum of the terms'
    /// magnitudes. Results that are not finite at the point itself are constants there and stay
    /// out.
    fn loss(&self, operand: usize, direction: &[f64], t: f64) -> (f64, f64) {
        let mut inputs = self.point.clone();
        let moved = self.point[operand].floats().iter().zip(direction).map(|(x, u)| x + t * u);
        inputs[operand] =
            Array::float(inputs[operand].dtype, &inputs[operand].shape, moved.collect());
        let results = eval(&self.graph, &inputs, &mut States::new());
        let pairs =
            results.iter().zip(&self.cotangents).filter_map(|(y, c)| Some((y, c.as_ref()?)));
        let terms = pairs.flat_map(|(y, c)| y.floats().iter().zip(c.floats()));
        let terms = terms.filter(|(y, _)| y.is_finite()).map(|(y, c)| y * c);
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }
}

/// Returns a graph of `graph` and its gradients, to run on a back end or to differentiate again,
/// and the inputs for it.
pub fn derivative(
    graph: &Graph,
    point: &[Array],
    seed: u64,
) -> Result<(Graph, Vec<Array>), String> {
    let (derived, cotangents) = derive(graph, seed)?;
    Ok((derived, point.iter().cloned().chain(cotangents.into_iter().flatten()).collect()))
}

/// `differentiate` for every float output and input, with random cotangents. A value that is an
/// output twice has one.
fn derive(graph: &Graph, seed: u64) -> Result<(Graph, Vec<Option<Array>>), String> {
    let outputs: Vec<Value> = graph.outputs().iter().map(|port| port.value).collect();
    let seeded = |(i, v): (usize, &Value)| {
        graph.ty(*v).dtype.is_arithmetic_float() && !outputs[..i].contains(v)
    };
    let float: Vec<Value> =
        outputs.iter().enumerate().filter(|o| seeded(*o)).map(|(_, v)| *v).collect();
    let wrt: Vec<Value> = float_inputs(graph).into_iter().map(|(_, v)| v).collect();
    let derived =
        differentiate(graph, &float, &wrt).map_err(|e| format!("`{}`: {e}", graph.name()))?;
    verify(&derived).map_err(|e| format!("`{}`: the gradient is damaged: {e}", graph.name()))?;
    let cotangent = |(i, v): (usize, &Value)| {
        let ty = graph.ty(*v);
        let values: Vec<f64> = philox::normals(seed, 2000 + i as u64).take(ty.elements()).collect();
        seeded((i, v)).then(|| Array::from(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)))
    };
    Ok((derived, outputs.iter().enumerate().map(cotangent).collect()))
}

fn float_inputs(graph: &Graph) -> Vec<(usize, Value)> {
    let inputs = graph.inputs().iter().map(|port| port.value).enumerate();
    inputs.filter(|(_, v)| graph.ty(*v).dtype.is_arithmetic_float()).collect()
}

/// How far an operand may sensibly move: its range, or its magnitude where it has one value, or 1.
fn spread(array: &Array) -> f64 {
    let values = || array.floats().iter().copied().filter(|x| x.is_finite());
    let (low, high) =
        values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    let candidates = [high - low, high.abs(), 1.0];
    candidates.into_iter().find(|s| *s > 0.0 && s.is_finite()).expect("one is positive")
}
