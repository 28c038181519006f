//! Evaluation over simulated ranks, node by node in lockstep, so that collectives see every rank's
//! operand.

use super::{Array, States};
use crate::prims::collectives;
use crate::{DType, Graph, Mesh, Node, Operation, Prim};

/// Evaluates a bound graph on every rank of a mesh; `states[rank]` is read and updated. Returns the
/// outputs of each rank.
pub fn eval_ranks(
    graph: &Graph,
    mesh: &Mesh,
    inputs: &[Vec<Array>],
    states: &mut [States],
) -> Vec<Vec<Array>> {
    assert_eq!(inputs.len(), mesh.ranks(), "every rank of the mesh has inputs");
    assert_eq!(inputs.len(), states.len(), "every rank has inputs and states");
    let mut values: Vec<Vec<Option<Array>>> = vec![vec![None; graph.value_count()]; inputs.len()];
    for (rank, arguments) in inputs.iter().enumerate() {
        assert_eq!(
            arguments.len(),
            graph.inputs().len(),
            "`{}` is called with its inputs",
            graph.name()
        );
        for (port, argument) in graph.inputs().iter().zip(arguments) {
            let declared = graph.ty(port.value);
            assert_eq!(argument.ty(), *declared, "input `{}` has its declared type", port.name);
            values[rank][port.value.0 as usize] = Some(argument.clone());
        }
        for state in graph.states() {
            let initial = || Array::from(&state.init.tensor(&state.name, graph.ty(state.value)));
            let value = states[rank].get(&state.name).cloned().unwrap_or_else(initial);
            values[rank][state.value.0 as usize] = Some(value);
        }
    }
    let mut remaining = graph.use_counts();
    for node in graph.nodes() {
        let args: Vec<Vec<Array>> = values
            .iter()
            .map(|known| {
                let value = |v: &crate::Value| known[v.0 as usize].clone();
                node.operands
                    .iter()
                    .map(|v| value(v).expect("operands precede their node"))
                    .collect()
            })
            .collect();
        let results = eval_node(node, mesh, &args);
        for (rank, results) in results.into_iter().enumerate() {
            for (value, result) in node.results.iter().zip(results) {
                debug_assert_eq!(
                    result.ty(),
                    *graph.ty(*value),
                    "`{}` gives what it infers",
                    node.op.name()
                );
                values[rank][value.0 as usize] = Some(result);
            }
        }
        // Dead values are dropped at once: a reference run of a real model must fit in memory.
        for operand in &node.operands {
            remaining[operand.0 as usize] -= 1;
            if remaining[operand.0 as usize] == 0 {
                values.iter_mut().for_each(|known| known[operand.0 as usize] = None);
            }
        }
    }
    for (known, states) in values.iter().zip(states.iter_mut()) {
        for state in graph.states() {
            if let Some(update) = state.update {
                let new = known[update.0 as usize].clone().expect("updates are computed");
                states.insert(state.name.clone(), new);
            }
        }
    }
    let output = |known: &Vec<Option<Array>>, v: crate::Value| known[v.0 as usize].clone();
    values
        .iter()
        .map(|known| {
            let outputs = graph.outputs().iter();
            outputs.map(|port| output(known, port.value).expect("outputs are computed")).collect()
        })
        .collect()
}

fn eval_node(node: &Node, mesh: &Mesh, args: &[Vec<Array>]) -> Vec<Vec<Array>> {
    match &node.op {
        Operation::Prim(Prim::If) if args.len() > 1 => {
            let taken = uniform(args.iter().map(|a| a[0].get(0) != 0.0));
            let captures: Vec<Vec<Array>> = args.iter().map(|a| a[1..].to_vec()).collect();
            eval_ranks(
                &node.regions[!taken as usize],
                mesh,
                &captures,
                &mut vec![States::new(); args.len()],
            )
        }
        Operation::Prim(Prim::While { carried, max_trips }) => {
            let mut state = args.to_vec();
            let (condition, body) = (&node.regions[0], &node.regions[1]);
            let mut trips = 0;
            while max_trips.is_none_or(|limit| trips < limit) {
                let on = eval_ranks(condition, mesh, &state, &mut vec![States::new(); args.len()]);
                if !uniform(on.iter().map(|r| r[0].get(0) != 0.0)) {
                    break;
                }
                let next = eval_ranks(body, mesh, &state, &mut vec![States::new(); args.len()]);
                for (state, next) in state.iter_mut().zip(next) {
                    state.splice(..*carried, next);
                }
                trips += 1;
            }
            state.into_iter().map(|s| s[..*carried].to_vec()).collect()
        }
        Operation::Prim(Prim::RankIndex { along }) => {
            let index = |rank| Array::int(DType::I32, &[], vec![mesh.position(rank, along) as _]);
            (0..args.len()).map(|rank| vec![index(rank)]).collect()
        }
        Operation::Prim(prim) if prim.channel().is_some() => {
            let channel = prim.channel().expect("asked above");
            let mut results = vec![vec![]; args.len()];
            for ranks in mesh.groups(&channel.group) {
                let members: Vec<Vec<Array>> = ranks.iter().map(|&r| args[r].clone()).collect();
                for (rank, result) in ranks.iter().zip(collectives::eval(prim, &members)) {
                    results[*rank] = vec![result];
                }
            }
            results
        }
        op => args.iter().map(|args| op.eval(args, &node.regions)).collect(),
    }
}

/// Control flow around collectives must not diverge.
fn uniform(mut decisions: impl Iterator<Item = bool>) -> bool {
    let first = decisions.next().expect("there is at least one rank");
    assert!(decisions.all(|d| d == first), "all ranks must take the same branch");
    first
}
