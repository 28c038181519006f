//! `Communicator`: one rank's way to the others of a run (docs/decisions/0014).
//!
//! A transport does one thing: ranks of a group show each other bytes. The meaning of collectives
//! is written once, in the code that uses it. Invariant: all ranks make the same exchanges in the
//! same order, and one that does not is named by an error on every rank.

use crate::plan::{Plan, Step, StepKind};
use crate::{Axis, BackendError, Mesh, RankError};
use std::fmt;
use std::time::Duration;

/// The bytes that one rank shows the others.
#[derive(Copy, Clone, Debug)]
pub struct Exchange<'a> {
    /// The ranks that take part, in their order; the caller's is among them.
    pub group: &'a [usize],
    /// Its purpose, the same on all of them.
    pub what: &'a str,
    /// The caller's bytes.
    pub bytes: &'a [u8],
}

/// One rank's way to the others. Dropped without [`leave`](Self::leave), it tells them that this
/// rank has failed.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// This rank, below `mesh().ranks()`.
    fn rank(&self) -> usize;

    /// All ranks.
    fn mesh(&self) -> &Mesh;

    /// Calls `read` with each member's position in the group and its bytes, in their order, once
    /// all have come.
    ///
    /// # Errors
    /// When a member is gone, comes too late, or is at something else. No later exchange succeeds
    /// then.
    fn share(
        &self,
        exchange: &Exchange<'_>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RankError>;

    /// Time to wait for a rank before it counts as hung.
    fn patience(&self) -> Duration;

    /// Errs once a rank is known to have failed: for those who wait for a device meanwhile.
    ///
    /// # Errors
    /// With the rank that has.
    fn check(&self) -> Result<(), RankError>;

    /// Says that this rank is done, so that its end is no failure.
    fn leave(&self);
}

/// Errs where a rank does not have the same `text` as rank 0.
///
/// # Errors
/// With the first rank that differs and what both have; or as `share`.
pub fn agree(communicator: &dyn Communicator, what: &str, text: &str) -> Result<(), RankError> {
    let all: Vec<usize> = (0..communicator.mesh().ranks()).collect();
    agree_among(communicator, &all, (what, text))
}

/// Errs where a rank of a group does not have the same text as its first.
fn agree_among(
    communicator: &dyn Communicator,
    group: &[usize],
    (what, text): (&str, &str),
) -> Result<(), RankError> {
    let all = texts(communicator, group, (what, text))?;
    let Some(at) = all.iter().position(|other| *other != all[0]) else { return Ok(()) };
    let mut lines = all[0].lines().zip(all[at].lines());
    let differs = lines.find(|(expected, found)| expected != found);
    // One has more lines than the other.
    let [first, other] = [&all[0], &all[at]].map(|text| format!("{} lines", text.lines().count()));
    let (expected, found) =
        differs.map_or((first, other), |(expected, found)| (expected.into(), found.into()));
    let [expected, found] = [expected, found].map(|line: String| format!("{what} `{line}`"));
    Err(RankError::Differs { rank: group[at], other: group[0], expected, found })
}

/// The texts of the ranks of a group.
fn texts(
    communicator: &dyn Communicator,
    group: &[usize],
    (what, text): (&str, &str),
) -> Result<Vec<String>, RankError> {
    let mut all: Vec<String> = vec![];
    let exchange = Exchange { group, what, bytes: text.as_bytes() };
    communicator
        .share(&exchange, &mut |_, bytes| all.push(String::from_utf8_lossy(bytes).into_owned()))?;
    Ok(all)
}

/// Whether the ranks' plans have the same collectives in the same order. All ranks of a stage get
/// the same answer. A plan without collectives asks nobody.
///
/// # Errors
/// When another rank fails meanwhile.
pub fn have_one_order(communicator: &dyn Communicator, plan: &Plan) -> Result<bool, RankError> {
    let text = collectives(plan);
    if text.is_empty() {
        return Ok(true);
    }
    let what = format!("order of collectives of `{}`", plan.name);
    let all = texts(communicator, &same_stage(communicator), (&what, &text))?;
    Ok(all.iter().all(|other| *other == text))
}

/// The collectives of a plan, a line each.
fn collectives(plan: &Plan) -> String {
    let line = |step: &Step| {
        let StepKind::CollectiveStart { prim } = &step.kind else { return None };
        let types = step.reads.iter().map(|&slot| plan.slot(slot).ty.to_string());
        Some(format!("{prim:?} of {}\n", types.collect::<Vec<_>>().join(", ")))
    };
    plan.steps.iter().filter_map(line).collect()
}

/// Errs where collectives of a plan are not of a mesh.
///
/// # Errors
/// `Mismatch` with the first group that is not there.
pub fn check_mesh(mesh: &Mesh, plan: &Plan) -> Result<(), BackendError> {
    for step in &plan.steps {
        let StepKind::CollectiveStart { prim } = &step.kind else { continue };
        let group = &prim.channel().expect("collectives have a channel").group;
        if !mesh.has_group(group) {
            return Err(BackendError::Mismatch {
                what: format!("mesh of `{}`", plan.name),
                expected: format!("one with {group}"),
                found: mesh.to_string(),
            });
        }
    }
    Ok(())
}

/// Errs where the ranks' plans do not have the same collectives in the same order. A plan without
/// collectives asks nobody. Stages of a pipeline have plans of their own, so that each rank
/// compares with those of its stage.
///
/// # Errors
/// With the first collective that differs; when another rank fails meanwhile.
pub fn agree_on(communicator: &dyn Communicator, plan: &Plan) -> Result<(), RankError> {
    let text = collectives(plan);
    if text.is_empty() {
        return Ok(());
    }
    let what = format!("collectives of `{}`", plan.name);
    agree_among(communicator, &same_stage(communicator), (&what, &text))
}

/// The ranks whose plan is this one's.
fn same_stage(communicator: &dyn Communicator) -> Vec<usize> {
    let (mesh, axis) = (communicator.mesh(), Axis::from(Mesh::PIPELINE));
    let stage = |rank: usize| mesh.position(rank, &axis);
    (0..mesh.ranks()).filter(|rank| stage(*rank) == stage(communicator.rank())).collect()
}
