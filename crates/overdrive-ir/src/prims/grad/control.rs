//! Gradients of `if` and `while`.
//!
//! An `if` is differentiated into an `if` whose regions repeat the taken branch and run it
//! backwards. A bounded `while` runs again, stacking what it carries before each trip; a second
//! loop walks the stacks backwards. Both are ordinary nodes, so that second derivatives exist.

use super::{undifferentiable, zeros};
use crate::gradients::gradients;
use crate::{Builder, Compare, DType, Expr, Gradient, Graph, Prim, Tensor, TensorType, Value};

/// Builds a region over inputs `0, 1, ...` of these types; `None` (and an error in `outer`) where
/// it fails.
fn region(
    outer: &Builder,
    name: &str,
    inputs: &[TensorType],
    body: impl for<'r> FnOnce(&'r Builder, &[Expr<'r>]) -> Vec<Expr<'r>>,
) -> Option<Graph> {
    let b = outer.for_region(name);
    let args: Vec<Expr<'_>> =
        inputs.iter().enumerate().map(|(i, ty)| b.input(&i.to_string(), ty.clone())).collect();
    let results = body(&b, &args);
    results.iter().enumerate().for_each(|(i, result)| b.output(&i.to_string(), *result));
    b.finish().map_err(|error| outer.keep(error)).ok()
}

/// Cotangents of the inputs `wrt` of `of`, called with `args`; `seeds` are those of its numbered
/// outputs.
fn pull_back<'r>(
    b: &'r Builder,
    of: &Graph,
    args: &[Expr<'r>],
    seeds: &[(usize, Expr<'r>)],
    wrt: &[usize],
) -> Vec<Expr<'r>> {
    let map = b.inline_values(of, args);
    let seeds: Vec<(Value, Expr<'r>)> =
        seeds.iter().map(|&(i, dy)| (of.outputs()[i].value, dy)).collect();
    let inputs: Vec<Value> = wrt.iter().map(|&i| of.inputs()[i].value).collect();
    let found = gradients(b, of, &map, &seeds, &inputs);
    found.into_iter().zip(wrt).map(|(dx, &i)| dx.unwrap_or_else(|| zeros(args[i]))).collect()
}

fn floats(values: &[Expr<'_>]) -> Vec<usize> {
    (0..values.len()).filter(|&i| values[i].dtype().is_float()).collect()
}

fn types(values: &[Expr<'_>]) -> Vec<TensorType> {
    values.iter().map(|value| value.ty()).collect()
}

pub(super) fn branch<'b>(g: &Gradient<'b, '_>) -> Vec<Option<Expr<'b>>> {
    let mut cotangents = vec![None; g.inputs.len()];
    let captures = &g.inputs[1..];
    let wrt = floats(captures);
    let (arriving, seeds): (Vec<usize>, Vec<Expr<'b>>) =
        g.cotangents.iter().enumerate().filter_map(|(i, dy)| Some((i, (*dy)?))).unzip();
    let operands = [captures, &seeds[..]].concat();
    let backward = |of: &Graph| {
        region(g.builder, of.name(), &types(&operands), |b, args| {
            let (args, seeds) = args.split_at(captures.len());
            let seeds: Vec<_> = arriving.iter().copied().zip(seeds.iter().copied()).collect();
            pull_back(b, of, args, &seeds, &wrt)
        })
    };
    if let (Some(yes), Some(no)) = (backward(&g.regions[0]), backward(&g.regions[1])) {
        let results = g.builder.if_else(g.inputs[0], &operands, [yes, no]);
        wrt.iter().zip(results).for_each(|(&i, dx)| cotangents[1 + i] = Some(dx));
    }
    cotangents
}

/// The two loops of the backward pass of one `while`.
struct Loop<'b, 'a> {
    g: &'a Gradient<'b, 'a>,
    carried: usize,
    trips: usize,
}

pub(super) fn repeat<'b>(
    g: &Gradient<'b, '_>,
    carried: usize,
    max_trips: Option<usize>,
) -> Vec<Option<Expr<'b>>> {
    let Some(trips) = max_trips else {
        let remedy = "set `max_trips`: the backward pass keeps what each trip carries, and must \
                      know how many";
        undifferentiable(g, "while", "the gradient of a loop without a bound", remedy);
        return vec![None; g.inputs.len()];
    };
    let differentiated = Loop { g, carried, trips };
    let backward = differentiated.stacks().and_then(|stacks| differentiated.backward(&stacks));
    backward.unwrap_or_else(|| vec![None; g.inputs.len()])
}

/// Row `trip` of a stack of values like `like`: where it starts, and the type of one row.
fn row<'r>(trip: Expr<'r>, like: &TensorType) -> (Expr<'r>, Vec<usize>) {
    let b = trip.builder();
    let zeros = b.full(DType::I64, [like.rank()], 0.0);
    let sizes = std::iter::once(1).chain(like.sizes()).collect();
    (b.concat(&[trip.reshape([1usize]), zeros], 0), sizes)
}

/// Those of `(trip, carried, stacks, captures)` that the original regions take.
fn unstacked<'r>(args: &[Expr<'r>], carried: usize) -> Vec<Expr<'r>> {
    [&args[1..=carried], &args[1 + 2 * carried..]].concat()
}

impl<'b> Loop<'b, '_> {
    fn repeat(
        &self,
        operands: &[Expr<'b>],
        carried: usize,
        regions: [Graph; 2],
    ) -> Option<Vec<Expr<'b>>> {
        let prim = Prim::While { carried, max_trips: Some(self.trips) };
        let results = self.g.builder.node(prim, operands, regions.into());
        (!self.g.builder.failed()).then_some(results)
    }

    /// Runs the loop again: the number of trips, and what was carried into each of them.
    fn stacks(&self) -> Option<Vec<Expr<'b>>> {
        let (b, n) = (self.g.builder, self.carried);
        let (state, captures) = self.g.inputs.split_at(n);
        let stack = |value: &Expr<'b>| {
            let sizes: Vec<usize> =
                std::iter::once(self.trips.max(1)).chain(value.sizes()).collect();
            b.full(value.dtype(), sizes, 0.0)
        };
        let trip = b.constant(Tensor::scalar(DType::I64, 0.0));
        let stacks: Vec<Expr<'b>> = state.iter().map(stack).collect();
        let operands = [&[trip], state, &stacks[..], captures].concat();
        let types = types(&operands);
        let condition = region(b, "condition", &types, |b, args| {
            b.inline(&self.g.regions[0], &unstacked(args, n))
        })?;
        let body = region(b, "body", &types, |b, args| {
            let next = b.inline(&self.g.regions[1], &unstacked(args, n));
            let push = |i: usize| {
                let (value, stack) = (args[1 + i], args[1 + n + i]);
                let (start, sizes) = row(args[0], &value.ty());
                b.op1(Prim::DynamicUpdateSlice, &[stack, value.reshape(sizes), start])
            };
            let stacks: Vec<_> = (0..n).map(push).collect();
            let trip = args[0] + 1.0;
            [&[trip], &next[..n], &stacks[..]].concat()
        })?;
        let mut results = self.repeat(&operands, 1 + 2 * n, [condition, body])?;
        results.drain(1..=n);
        Some(results)
    }

    /// Walks the stacks backwards, carrying the cotangents of the carried floats and the sums of
    /// those of the captured ones.
    fn backward(&self, stacks: &[Expr<'b>]) -> Option<Vec<Option<Expr<'b>>>> {
        let (g, b, n) = (self.g, self.g.builder, self.carried);
        let (state, captures) = g.inputs.split_at(n);
        let wrt = floats(g.inputs);
        let of_state = wrt.iter().filter(|&&i| i < n).count();
        let seed = |&i: &usize| match g.cotangents.get(i) {
            Some(Some(dy)) => *dy,
            _ => zeros(g.inputs[i]),
        };
        let seeds: Vec<Expr<'b>> = wrt.iter().map(seed).collect();
        let carried = 1 + seeds.len();
        let operands = [&stacks[..1], &seeds[..], &stacks[1..], captures].concat();
        let types = types(&operands);
        let rows: Vec<TensorType> = state.iter().map(|value| value.ty()).collect();
        let condition = region(b, "condition", &types, |_, args| {
            vec![args[0].compare(Compare::Gt, args[0].constant(0.0))]
        })?;
        let body = region(b, "body", &types, |b, args| {
            let trip = args[0] - 1.0;
            let (stacks, captures) = args[carried..].split_at(n);
            let pop = |i: usize| {
                let (start, sizes) = row(trip, &rows[i]);
                b.op1(Prim::DynamicSlice { sizes }, &[stacks[i], start])
                    .reshape(rows[i].shape.clone())
            };
            let state: Vec<_> = (0..n).map(pop).collect();
            let arriving: Vec<_> =
                wrt[..of_state].iter().copied().zip(args[1..].iter().copied()).collect();
            let inner =
                pull_back(b, &g.regions[1], &[&state[..], captures].concat(), &arriving, &wrt);
            let sum = |(k, dx)| if k < of_state { dx } else { args[1 + k] + dx };
            std::iter::once(trip).chain(inner.into_iter().enumerate().map(sum)).collect()
        })?;
        let results = self.repeat(&operands, carried, [condition, body])?;
        let mut cotangents = vec![None; g.inputs.len()];
        wrt.iter().zip(&results[1..]).for_each(|(&i, dx)| cotangents[i] = Some(*dx));
        Some(cotangents)
    }
}
