//! `Mesh`: ranks as a grid of named axes, and the sharding of values over it (docs/decisions/0009).
//!
//! Invariant: ranks are numbered in row-major order, the last axis fastest, in a mesh and in each
//! of its groups.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Name of an axis of a mesh: `data`, `tensor`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Axis(pub Arc<str>);

impl From<&str> for Axis {
    fn from(name: &str) -> Self {
        Axis(name.into())
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Ranks as a grid; without axes, one rank.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mesh {
    /// Distinct axes with their sizes, slowest first.
    pub axes: Vec<(Axis, usize)>,
}

/// Why a text is no mesh.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a mesh: expected {expected}, found `{found}`; write it like `data=4,tensor=2`")]
pub struct BadMesh {
    /// The expected text.
    pub expected: String,
    /// The text found.
    pub found: String,
}

impl Mesh {
    /// The axis whose ranks have graphs of their own, each a stage of one model. Ranks along all
    /// other axes have one graph.
    pub const PIPELINE: &'static str = "pipeline";

    /// Most ranks of a mesh that a text may name.
    pub const MAX_RANKS: usize = 1 << 20;

    /// A mesh of these axes.
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, usize)>) -> Self {
        Mesh { axes: axes.into_iter().map(|(name, size)| (name.into(), size)).collect() }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Ranks along an axis; 1 for an axis that the mesh lacks.
    pub fn size(&self, axis: &Axis) -> usize {
        self.axes.iter().find(|(name, _)| name == axis).map_or(1, |(_, size)| *size)
    }

    /// The group of this one axis.
    pub fn along(&self, axis: &Axis) -> Mesh {
        Mesh { axes: vec![(axis.clone(), self.size(axis))] }
    }

    /// Whether every axis of `group` with more than one rank is an axis of this mesh, of the same
    /// size, each once.
    pub fn has_group(&self, group: &Mesh) -> bool {
        let once = |(i, (name, _)): (usize, &(Axis, usize))| {
            group.axes[..i].iter().all(|(other, _)| other != name)
        };
        group.axes.iter().all(|(axis, size)| self.size(axis) == *size)
            && group.axes.iter().enumerate().all(once)
    }

    /// Position of a rank along an axis.
    pub fn position(&self, rank: usize, axis: &Axis) -> usize {
        let mut rest = rank;
        for (name, size) in self.axes.iter().rev() {
            if name == axis {
                return rest % size;
            }
            rest /= size;
        }
        0
    }

    /// The ranks of each group, in the group's order: ranks that differ in its axes alone.
    pub fn groups(&self, group: &Mesh) -> Vec<Vec<usize>> {
        assert!(self.has_group(group), "the group {group} is part of the mesh {self}");
        let within = |rank: usize| {
            group.axes.iter().fold(0, |at, (axis, size)| at * size + self.position(rank, axis))
        };
        let outside = |rank: usize| -> Vec<usize> {
            let others = self.axes.iter().filter(|(axis, _)| group.size(axis) == 1);
            others.map(|(axis, _)| self.position(rank, axis)).collect()
        };
        let mut groups: std::collections::BTreeMap<Vec<usize>, Vec<usize>> = Default::default();
        for rank in 0..self.ranks() {
            groups.entry(outside(rank)).or_insert_with(|| vec![0; group.ranks()])[within(rank)] =
                rank;
        }
        groups.into_values().collect()
    }

    /// The group that `rank` is in.
    pub fn group_of(&self, rank: usize, group: &Mesh) -> Vec<usize> {
        let groups = self.groups(group).into_iter();
        groups.into_iter().find(|g| g.contains(&rank)).expect("every rank is in a group")
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.axes.is_empty() {
            return f.write_str("one rank");
        }
        let axes: Vec<String> = self.axes.iter().map(|(n, size)| format!("{n}={size}")).collect();
        f.write_str(&axes.join(","))
    }
}

impl FromStr for Mesh {
    type Err = BadMesh;

    fn from_str(text: &str) -> Result<Self, BadMesh> {
        let bad = |expected: &str, found: &str| {
            Err(BadMesh { expected: expected.to_owned(), found: found.to_owned() })
        };
        let mut mesh = Mesh::default();
        for part in text.split(',') {
            let Some((name, size)) = part.split_once('=') else {
                return bad("an axis and its size", part);
            };
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                return bad("a name of letters, digits and underscores", part);
            }
            if mesh.axes.iter().any(|(axis, _)| &*axis.0 == name) {
                return bad("each axis once", text);
            }
            let ranks = mesh.ranks();
            match size.parse::<usize>() {
                Ok(size) if size > 0 && size.saturating_mul(ranks) <= Self::MAX_RANKS => {
                    mesh.axes.push((name.into(), size))
                }
                Ok(0) | Err(_) => return bad("a size of at least 1", part),
                Ok(_) => return bad(&format!("at most {} ranks", Self::MAX_RANKS), text),
            }
        }
        Ok(mesh)
    }
}

/// How a value is distributed over a mesh. Each mesh axis occurs at most once.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Sharding {
    /// The axis that splits each dimension into equal contiguous parts.
    pub split: Vec<Option<Axis>>,
    /// Axes over which the ranks' values have yet to be summed; sorted.
    pub partial: Vec<Axis>,
}

impl Sharding {
    /// The whole value of `rank` dimensions on every rank.
    pub fn whole(rank: usize) -> Self {
        Self { split: vec![None; rank], partial: vec![] }
    }

    /// The same with dimension `dim` split along `axis`.
    pub fn and_split(mut self, dim: usize, axis: &Axis) -> Self {
        self.split[dim] = Some(axis.clone());
        self
    }

    /// The dimension that `axis` splits.
    pub fn dim_of(&self, axis: &Axis) -> Option<usize> {
        self.split.iter().position(|split| split.as_ref() == Some(axis))
    }

    /// Sizes of one rank's part.
    pub fn local(&self, sizes: &[usize], mesh: &Mesh) -> Vec<usize> {
        let part = |(&size, split): (&usize, &Option<Axis>)| {
            split.as_ref().map_or(size, |axis| size / mesh.size(axis))
        };
        sizes.iter().zip(&self.split).map(part).collect()
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.split.iter().map(|axis| axis.as_ref().map_or("-", |a| &*a.0));
        write!(f, "[{}]", dims.collect::<Vec<_>>().join(", "))?;
        self.partial.iter().try_for_each(|axis| write!(f, " partial {axis}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_differ_in_their_axes_alone() {
        let mesh: Mesh = "data=2,tensor=3".parse().unwrap();
        let groups = |name: &str| mesh.groups(&mesh.along(&name.into()));
        assert_eq!(groups("tensor"), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(groups("data"), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(mesh.groups(&mesh), [[0, 1, 2, 3, 4, 5]]);
        let turned = Mesh::new([("tensor", 3), ("data", 2)]);
        assert_eq!(mesh.groups(&turned), [[0, 3, 1, 4, 2, 5]], "a group has its own order");
        assert_eq!(mesh.groups(&Mesh::default()).len(), 6);
        assert_eq!(mesh.group_of(4, &mesh.along(&"data".into())), [1, 4]);
        assert!(!mesh.has_group(&Mesh::new([("tensor", 2)])));
        assert!(!mesh.has_group(&Mesh::new([("tensor", 3), ("tensor", 3)])));
        assert!(mesh.has_group(&Mesh::new([("expert", 1)])));
    }

    #[test]
    fn bad_meshes_say_why() {
        let error = |text: &str| text.parse::<Mesh>().unwrap_err().to_string();
        assert!(error("").contains("an axis and its size"), "{}", error(""));
        assert!(error("data=0").contains("at least 1"));
        assert!(error("data=2,data=2").contains("each axis once"));
        assert!(error("data=9999999999").contains("at most 1048576 ranks"));
        assert!(error("da ta=2").contains("letters"));
    }
}
