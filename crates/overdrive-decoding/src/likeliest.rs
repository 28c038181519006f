//! Graphs that choose the likeliest token on the device. A step leaves it where the next step finds
//! it; a run of several tokens gives one for each.
//!
//! The host then waits once for several steps, and no logits travel. Invariant: the token is that
//! of `Sampling::GREEDY`, the first of the largest logits.

use crate::DecodeError;
use overdrive_ir::{
    Backend, BackendError, Buffer, Builder, Compare, DType, Expr, Graph, GraphError, Mode, Port,
    Reducer, Session, State, Tensor, TensorType, Tuning,
};

/// Most tokens of each sequence that are chosen before the host looks.
pub(crate) const MOST: usize = 8;

/// A session of such a step. Its calls swap three inputs with the outputs: `x`, `position`, and the
/// tokens made.
pub(crate) struct Choosing {
    session: Box<dyn Session>,
    inputs: Vec<Buffer>,
    outputs: [Buffer; 3],
    /// Places of the three among the inputs.
    handed: [usize; 3],
    /// V.
    vocabulary: i128,
}

/// The step that gives its next `x` and `position` instead of logits `[S, V]`, and the last tokens
/// made, i32 `[MOST, S]`. A token is V if the largest logit is no finite number. Positions stay
/// below `capacity`.
fn chosen(step: &Graph, capacity: usize) -> Result<Graph, GraphError> {
    let b = Builder::new(step.name());
    let map = b.append(step)?;
    let of = |port: &Port| map[port.value.0 as usize];
    let [x, position] = ["x", "position"].map(|name| of(&step.inputs()[place(step, name)]));
    let logits = of(&step.outputs()[0]);
    let sequences = logits.size(0);
    let made = b.input("made", TensorType::new(DType::I32, [MOST, sequences]));

    let token = first_of_largest(logits);

    b.output("next.x", token.reshape(x.shape()));
    let last = position.constant(capacity.saturating_sub(1) as f64);
    b.output("next.position", (position + position.constant(1.0)).min(last));
    let earlier = made.slice_axis(0, 1, MOST);
    b.output("next.made", b.concat(&[earlier, token.reshape([1, sequences])], 0));
    update_states(&b, step, &map);
    b.finish()
}

/// The graph with the likeliest tokens, i32 `[S, N]`, in place of its logits `[S, N, V]`; -1 where
/// the largest logit is no finite number.
pub(crate) fn likeliest_alone(graph: &Graph) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let map = b.append(graph)?;
    let logits = map[graph.outputs()[0].value.0 as usize];
    let [sequences, tokens, vocabulary] = [0, 1, 2].map(|axis| logits.size(axis));
    let token = first_of_largest(logits.reshape([sequences * tokens, vocabulary]));
    let is_one = token.compare(Compare::Lt, token.constant(vocabulary as f64));
    let token = is_one.select(token, token.constant(-1.0));
    b.output("likeliest", token.reshape([sequences, tokens]));
    update_states(&b, graph, &map);
    b.finish()
}

/// Updates the states of a graph that was appended, as it does.
fn update_states(b: &Builder, graph: &Graph, map: &[Expr<'_>]) {
    for state in graph.states() {
        if let Some(update) = state.update {
            b.update(&state.name, map[update.0 as usize]);
        }
    }
}

/// The first of the largest logits `[n, V]` of each row, i32 `[n, 1]`; V where that is no finite
/// number.
fn first_of_largest(logits: Expr<'_>) -> Expr<'_> {
    let [rows, vocabulary] = [0, 1].map(|axis| logits.size(axis));
    let places = logits.builder().iota(DType::I32, [rows, vocabulary], 1);
    let none = places.constant(vocabulary as f64);
    let largest = logits.reduce_keep(Reducer::Max, &[1]);
    let of_largest = logits.compare(Compare::Eq, largest).select(places, none);
    let first = of_largest.reduce_keep(Reducer::Min, &[1]);
    let [low, high] = [f64::NEG_INFINITY, f64::INFINITY].map(|end| largest.constant(end));
    let below = largest.compare(Compare::Lt, high).select(first, none);
    largest.compare(Compare::Gt, low).select(below, none)
}

/// Fills these inputs with integers, one list for each; an empty list leaves its input as it is.
pub(crate) fn write_integers(
    backend: &dyn Backend,
    inputs: &mut [Buffer],
    given: &[&[usize]],
) -> Result<(), BackendError> {
    for (input, values) in inputs.iter_mut().zip(given).filter(|(_, list)| !list.is_empty()) {
        let values: Vec<i128> = values.iter().map(|&value| value as i128).collect();
        let tensor = Tensor::from_ints(input.ty.dtype, input.ty.shape.clone(), &values);
        backend.write(input, &tensor)?;
    }
    Ok(())
}

fn place(graph: &Graph, input: &str) -> usize {
    let found = graph.inputs().iter().position(|port| port.name == input);
    found.expect("a step has this input")
}

impl Choosing {
    /// Compiles it for a step of sequences with room for so many tokens.
    pub(crate) fn new(
        (backend, mode): (&dyn Backend, Mode),
        step: &Graph,
        capacity: usize,
    ) -> Result<Self, DecodeError> {
        let graph = chosen(step, capacity)?;
        let session = backend.compile(&graph, mode, &Tuning::default())?.session()?;
        let buffer = |port: &Port| backend.output(graph.ty(port.value));
        let inputs = graph.inputs().iter().map(buffer).collect::<Result<_, _>>()?;
        let [x, position, made] = [0, 1, 2].map(|at| buffer(&graph.outputs()[at]));
        let handed = ["x", "position", "made"].map(|name| place(&graph, name));
        let vocabulary = step.ty(step.outputs()[0].value).sizes()[1] as i128;
        Ok(Self { session, inputs, outputs: [x?, position?, made?], handed, vocabulary })
    }

    /// The tokens of so many steps, at most [`MOST`], each of all sequences; `None` where logits
    /// are no numbers. `given` are the integers of each input of the step.
    pub(crate) fn call(
        &mut self,
        (backend, state): (&dyn Backend, &mut State),
        given: &[&[usize]],
        steps: usize,
    ) -> Result<Vec<Option<u32>>, DecodeError> {
        write_integers(backend, &mut self.inputs, given)?;
        let mut under_way = Vec::with_capacity(steps);
        for _ in 0..steps {
            under_way.push(self.session.run(state.with(&self.inputs, &mut self.outputs))?);
            for (&input, output) in self.handed.iter().zip(&mut self.outputs) {
                std::mem::swap(&mut self.inputs[input], output);
            }
        }
        for call in under_way {
            call.wait()?;
        }
        let made = backend.download(&self.inputs[self.handed[2]])?.to_ints();
        let first = made.len() / MOST * (MOST - steps);
        let is_one = |&token: &i128| (0..self.vocabulary).contains(&token).then_some(token as u32);
        Ok(made[first..].iter().map(is_one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampling;
    use overdrive_ir::eval::eval_tensors;

    const ROWS: [[f32; 5]; 7] = [
        [0.0, 3.0, -1.0, 2.0, 1.0],
        [1.0, 4.0, 4.0, -8.0, 4.0],
        [f32::NEG_INFINITY, -2.0, f32::NEG_INFINITY, -2.0, -3.0],
        [0.0, 3.0, f32::NAN, 2.0, 1.0],
        [0.0, f32::INFINITY, 0.0, 0.0, 0.0],
        [f32::NEG_INFINITY; 5],
        [f32::NAN; 5],
    ];

    /// A step whose logits are the row of a table that `x` names.
    fn step() -> Graph {
        let b = Builder::new("table");
        let x = b.input("x", TensorType::new(DType::I32, [ROWS.len(), 1]));
        b.input("position", TensorType::new(DType::I64, [ROWS.len()]));
        let values: Vec<f64> = ROWS.iter().flatten().map(|&x| x.into()).collect();
        let table = b.constant(Tensor::from_f64(DType::F32, [ROWS.len(), 5], &values));
        b.output("y", table.gather(x, &[0]));
        b.finish().unwrap()
    }

    #[test]
    fn a_token_is_that_of_the_host_and_no_number_is_none() {
        let graph = chosen(&step(), 9).unwrap();
        let count = ROWS.len();
        let ids: Vec<i128> = (0..count as i128).collect();
        let x = Tensor::from_ints(DType::I32, [count, 1], &ids);
        let position = Tensor::from_ints(DType::I64, [count], &[0, 1, 2, 3, 7, 8, 9]);
        let made: Vec<i128> = (0..(MOST * count) as i128).collect();
        let made = Tensor::from_ints(DType::I32, [MOST, count], &made);
        let outputs = eval_tensors(&graph, &[x, position, made.clone()]);
        let [next, position, all] = [0, 1, 2].map(|at| outputs[at].to_ints());
        for ((row, &found), of) in ROWS.iter().zip(&next).zip("abcdefg".chars()) {
            let expected = Sampling::GREEDY.pick(row, 0).map_or(5, i128::from);
            assert_eq!(found, expected, "row {of}");
        }
        assert_eq!(position, [1, 2, 3, 4, 8, 8, 8]);
        assert_eq!(all, [&made.to_ints()[count..], &next].concat());
    }
}
