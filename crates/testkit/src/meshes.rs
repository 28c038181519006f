//! Meshes, and random ways to lay a graph out on them.

use overdrive_ir::eval::philox;
use overdrive_ir::{Graph, Mesh, Origin, Sharding, Value};
use std::collections::BTreeMap;

/// Meshes of 2 to 16 ranks with one to three axes.
pub fn meshes() -> [Mesh; 7] {
    [
        Mesh::new([("data", 2)]),
        Mesh::new([("data", 3)]),
        Mesh::new([("data", 2), ("tensor", 2)]),
        Mesh::new([("data", 3), ("tensor", 2)]),
        Mesh::new([("data", 2), ("tensor", 2), ("sequence", 2)]),
        Mesh::new([("data", 2), ("tensor", 3), ("sequence", 2)]),
        Mesh::new([("data", 4), ("tensor", 2), ("sequence", 2)]),
    ]
}

/// Random shardings of inputs, states and some other values; the same for the same seed.
pub fn random_shardings(graph: &Graph, mesh: &Mesh, seed: u64) -> BTreeMap<Value, Sharding> {
    let mut next = 0;
    let mut below = |n: usize| {
        next += 1;
        philox::bits(seed, 5, next) as usize % n
    };
    let mut shardings = BTreeMap::new();
    for value in graph.values() {
        let is_border = !matches!(graph.origin(value), Origin::Node(..));
        if !is_border && below(8) != 0 {
            continue;
        }
        let sizes = graph.ty(value).sizes();
        let mut sharding = Sharding::whole(sizes.len());
        for (axis, ranks) in &mesh.axes {
            let fits =
                |&dim: &usize| sizes[dim].is_multiple_of(*ranks) && sharding.split[dim].is_none();
            let dims: Vec<usize> = (0..sizes.len()).filter(fits).collect();
            if !dims.is_empty() && below(4) != 0 {
                sharding.split[dims[below(dims.len())]] = Some(axis.clone());
            }
        }
        shardings.insert(value, sharding);
    }
    shardings
}
