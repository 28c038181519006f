//! Passes keep what random graphs mean, and gradients of random graphs are their derivatives.

use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::{
    Array, Builder, DType, Description, Graph, GraphError, Node, Prim, Tensor, Value,
    WithoutKernels, gradients, verify,
};
use overdrive_passes::{Recipe, cse, dce, fold, groups, keep_sums, legalize, precision, to_f64};
use testkit::{Tolerance, compare, random_graph, random_inputs};

const SEEDS: u64 = 200;

/// Outputs and new states.
fn results(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    let mut states = States::new();
    let outputs = eval(graph, inputs, &mut states);
    outputs.into_iter().chain(states.into_values()).collect()
}

/// Fails unless `after` computes the same as `before`, up to the error of a sum of `length` rounded
/// terms.
fn same_meaning(name: &str, seed: u64, before: &Graph, after: &Graph, unit: DType) {
    verify(after).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    let inputs = random_inputs(before, seed);
    for (expected, found) in results(before, &inputs).iter().zip(&results(after, &inputs)) {
        let magnitude = expected.to_f64().into_iter().fold(1.0, |max: f64, x| max.max(x.abs()));
        let tolerance = Tolerance::new(unit, 1 << 10, magnitude);
        compare(expected, found, tolerance).unwrap_or_else(|e| panic!("{name}, seed {seed}: {e}"));
    }
}

#[test]
fn simplifications_keep_the_meaning_and_never_add_nodes() {
    type Simplify = fn(&Graph) -> Result<Graph, GraphError>;
    let passes: [(&str, Simplify); 3] = [("dce", dce), ("cse", cse), ("fold", fold)];
    let mut removed = [0; 3];
    for seed in 0..SEEDS {
        let graph = random_graph(seed, DType::F64);
        verify(&graph).unwrap();
        let alive = dce(&graph).unwrap();
        for ((name, run), removed) in passes.iter().zip(&mut removed) {
            let after = run(&graph).unwrap();
            same_meaning(name, seed, &graph, &after, DType::F64);
            assert_eq!(run(&after).unwrap(), after, "{name} is idempotent, seed {seed}");
            let before = if *name == "dce" { &graph } else { &alive };
            *removed += before.nodes().len() as i64 - after.nodes().len() as i64;
        }
    }
    assert!(removed.iter().all(|&nodes| nodes > SEEDS as i64), "each pass finds work: {removed:?}");
}

/// Calls `see` with every node and the graph that it is in.
fn for_each_node<'g>(graph: &'g Graph, see: &mut dyn FnMut(&'g Graph, &'g Node)) {
    for node in graph.nodes() {
        see(graph, node);
        node.regions.iter().for_each(|region| for_each_node(region, see));
    }
}

#[test]
fn precision_lowers_every_contraction_and_nothing_else() {
    let mut contractions = 0;
    for seed in 0..SEEDS {
        let graph = dce(&random_graph(seed, DType::F32)).unwrap();
        for low in [DType::BF16, DType::F16] {
            let lowered = precision(&graph, &Recipe { contractions: low }).unwrap();
            verify(&lowered).unwrap();
            let names = |graph: &Graph| -> Vec<_> {
                graph
                    .outputs()
                    .iter()
                    .map(|o| (o.name.clone(), graph.ty(o.value).clone()))
                    .collect()
            };
            assert_eq!(names(&graph), names(&lowered), "interfaces keep their types");
            let operations = |graph: &Graph| {
                let mut names = Vec::new();
                for_each_node(graph, &mut |_, node| names.push(node.op.name()));
                // A view that others read too is there twice: of the value, and of the converted
                // value.
                names.retain(|name| !["convert", "reshape", "transpose"].contains(&name.as_str()));
                names
            };
            assert_eq!(
                operations(&graph),
                operations(&lowered),
                "only conversions and views are added"
            );
            for_each_node(&lowered, &mut |graph, node| {
                let contracts = ["dot_general", "linear"].contains(&node.op.name().as_str());
                contractions += contracts as usize;
                let is_low = |v: &Value| graph.ty(*v).dtype == low;
                let moves = matches!(
                    node.op.prim(),
                    Some(Prim::Convert { .. } | Prim::Reshape { .. } | Prim::Transpose { .. })
                );
                let lowered = node.operands.iter().all(is_low) && !node.operands.is_empty();
                assert!(moves || lowered == contracts, "seed {seed}: {node:?}");
            });
        }
    }
    assert!(contractions > SEEDS as usize / 2, "{contractions} contractions were seen");
}

#[test]
fn the_f64_graph_has_no_other_float_and_the_same_meaning() {
    for seed in 0..SEEDS {
        let graph = random_graph(seed, DType::F32);
        let wide = to_f64(&graph).unwrap();
        verify(&wide).unwrap();
        assert!(wide.values().all(|v| !matches!(wide.ty(v).dtype, DType::F32)));
        let inputs = random_inputs(&graph, seed);
        let widened: Vec<Array> = inputs
            .iter()
            .map(|a| Array::float(DType::F64, &a.shape, a.floats().to_vec()))
            .collect();
        let expected = eval(&graph, &inputs, &mut States::new());
        let mut states = States::new();
        for state in graph.states() {
            let value = Array::from(&state.init.tensor(&state.name, graph.ty(state.value)));
            states.insert(
                state.name.clone(),
                Array::float(DType::F64, &value.shape, value.floats().to_vec()),
            );
        }
        for (e, f) in expected.iter().zip(eval(&wide, &widened, &mut states)) {
            assert_eq!(e.floats(), f.floats(), "seed {seed}");
        }
    }
}

/// `sum(outputs * weights)` over the float outputs of a random graph.
fn scalar(graph: &Graph) -> Graph {
    let b = Builder::new("loss");
    let map = b.append(graph).unwrap();
    let mut loss = b.constant(Tensor::scalar(DType::F64, 0.0));
    for (i, port) in graph.outputs().iter().enumerate() {
        let y = map[port.value.0 as usize];
        let weights: Vec<f64> = philox::normals(9, i as u64).take(y.ty().elements()).collect();
        let axes: Vec<usize> = (0..y.rank()).collect();
        loss =
            loss + (y * b.constant(Tensor::from_f64(DType::F64, y.sizes(), &weights))).sum(&axes);
    }
    b.output("loss", loss);
    b.finish().unwrap()
}

/// The derivative of the one output of `graph` along fixed directions of its inputs.
fn along(graph: &Graph, directions: &[Array]) -> Graph {
    let b = Builder::new("along");
    let map = b.append(graph).unwrap();
    let one = b.constant(Tensor::scalar(DType::F64, 1.0));
    let wrt: Vec<_> = graph.inputs().iter().map(|p| p.value).collect();
    let found = gradients(&b, graph, &map, &[(graph.outputs()[0].value, one)], &wrt);
    let mut sum = b.constant(Tensor::scalar(DType::F64, 0.0));
    for (dx, direction) in found.iter().zip(directions) {
        let Some(dx) = dx else { continue };
        let axes: Vec<usize> = (0..dx.rank()).collect();
        sum = sum + (*dx * b.constant(direction.to_tensor())).sum(&axes);
    }
    b.output("along", sum);
    dce(&b.finish().unwrap()).unwrap()
}

fn value(graph: &Graph, point: &[Array]) -> f64 {
    eval(graph, point, &mut States::new())[0].get(0)
}

fn central_difference(graph: &Graph, point: &[Array], directions: &[Array], step: f64) -> f64 {
    let moved = |step: f64| -> Vec<Array> {
        let shift = |(x, d): (&Array, &Array)| {
            let values = x.floats().iter().zip(d.floats()).map(|(x, d)| x + step * d).collect();
            Array::float(DType::F64, &x.shape, values)
        };
        point.iter().zip(directions).map(shift).collect()
    };
    (value(graph, &moved(step)) - value(graph, &moved(-step))) / (2.0 * step)
}

#[test]
fn gradients_are_derivatives_to_second_order() {
    let mut checked = 0;
    for seed in 0..SEEDS {
        let mut graph = scalar(&random_graph(seed, DType::F64));
        let point = random_inputs(&graph, seed);
        for order in 1..=2 {
            let directions = random_inputs(&graph, seed + 1000 * order);
            let derivative = along(&graph, &directions);
            verify(&derivative).unwrap();
            let exact = value(&derivative, &point);
            let [coarse, fine] =
                [1e-4, 1e-5].map(|step| central_difference(&graph, &point, &directions, step));
            let scale = 1.0 + coarse.abs() + value(&graph, &point).abs();
            // If two step sizes disagree, the point is at a kink, and there is no derivative to
            // compare with.
            if (coarse - fine).abs() < 1e-5 * scale {
                let error = (exact - fine).abs();
                assert!(error < 2e-5 * scale, "seed {seed}, order {order}: {exact} against {fine}");
                checked += 1;
            }
            // The gradient of a simplified graph is the same gradient.
            let simple = fold(&cse(&graph).unwrap()).unwrap();
            let simplified = value(&along(&simple, &directions), &point);
            assert!(
                (simplified - exact).abs() <= 1e-9 * scale,
                "seed {seed}: {simplified} against {exact}"
            );
            graph = derivative;
        }
    }
    assert!(checked as f64 > 0.9 * 2.0 * SEEDS as f64, "nearly all points are smooth: {checked}");
}

/// The graph with the gradients of the sum of its outputs by its inputs as more outputs.
fn with_gradients(graph: &Graph) -> Graph {
    let b = Builder::new("both");
    let map = b.append(graph).unwrap();
    b.conclude(graph, |value| map[value.0 as usize]);
    let floats = graph.outputs().iter().filter(|port| graph.ty(port.value).dtype.is_float());
    let seeds: Vec<_> = floats
        .map(|port| {
            let y = map[port.value.0 as usize];
            (port.value, b.full(y.dtype(), y.shape(), 1.0))
        })
        .collect();
    let wrt: Vec<_> = graph.inputs().iter().map(|port| port.value).collect();
    for (i, found) in gradients(&b, graph, &map, &seeds, &wrt).into_iter().enumerate() {
        if let Some(found) = found {
            b.output(&format!("gradient{i}"), found);
        }
    }
    b.finish().unwrap()
}

/// Groups read each other's values, or compute them again, of graphs and of their gradients.
#[test]
fn groups_keep_the_meaning() {
    let device =
        WithoutKernels(Description { loop_dtypes: DType::ALL.into(), ..Description::default() });
    for seed in 0..SEEDS {
        for low in [DType::F32, DType::BF16] {
            let graph = dce(&random_graph(seed, DType::F32)).unwrap();
            let lowered = precision(&graph, &Recipe { contractions: low }).unwrap();
            let graph = keep_sums(&with_gradients(&lowered)).unwrap();
            let flat = legalize(&graph, &device, &mut vec![]).unwrap();
            let grouped = groups(&flat, &device, &mut vec![]).unwrap();
            same_meaning("groups", seed, &flat, &grouped, low);
        }
    }
}
