//! `ShardError`: why a graph cannot be sharded as asked.

use overdrive_ir::GraphError;

/// Why a graph cannot be sharded as asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ShardError {
    /// The ranks along an axis do not divide a dimension.
    #[error(
        "{value}: expected dimension {dim} to be a multiple of `{axis}` ({ranks}), found {size}; \
         use a mesh whose `{axis}` is one of {divisors}, or leave that dimension whole"
    )]
    Undivided {
        /// The annotated value.
        value: String,
        /// The dimension.
        dim: usize,
        /// Its size.
        size: usize,
        /// Name of the axis.
        axis: String,
        /// Ranks along it.
        ranks: usize,
        /// Numbers of ranks that would divide it.
        divisors: String,
    },
    /// The annotation is none for this value or mesh.
    #[error("{value}: expected {expected}, found {found}; {remedy}")]
    Annotation {
        /// The annotated value.
        value: String,
        /// The expected form of an annotation.
        expected: String,
        /// The form found.
        found: String,
        /// The remedy.
        remedy: String,
    },
    /// Groups of ranks that were to share the heads of attention do not divide them.
    #[error(
        "{value}: expected dimension 1, the heads, to be divided among {group} of the {ranks} \
         ranks along `{axis}`, found {heads} heads of queries and {key_heads} of keys; exchange \
         by one of {fitting}"
    )]
    Heads {
        /// The attention.
        value: String,
        /// Name of the axis that splits its sequence.
        axis: String,
        /// Ranks along it.
        ranks: usize,
        /// Ranks of a group.
        group: usize,
        /// Heads of queries that the ranks have to divide.
        heads: usize,
        /// Heads of keys.
        key_heads: usize,
        /// The exchanges that divide them.
        fitting: String,
    },
    /// No layers of the graph could be split along an axis.
    #[error(
        "{graph}: expected two projections in a row, or a table of a vocabulary, to split along \
         `{axis}`, found none; leave `{axis}` out of the mesh"
    )]
    Unsplittable {
        /// Name of the graph.
        graph: String,
        /// Name of the axis.
        axis: String,
    },
    /// The layers of a graph do not make so many stages.
    #[error(
        "{graph}: expected layers for {stages} stages along `pipeline`, found enough for {most}; \
         use a mesh whose `pipeline` is at most {most}"
    )]
    Stages {
        /// Name of the graph.
        graph: String,
        /// The stages asked for.
        stages: usize,
        /// The most stages that it could have.
        most: usize,
    },
    /// The graph is ill-formed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
