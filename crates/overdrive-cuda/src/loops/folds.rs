//! How a thread folds the elements that it has of a row, before the threads of the row meet.
//!
//! There are three ways. Elements of a loaded vector fold in pairs. Others fold lane by lane, into
//! as many results. A sum beside a maximum takes a vector at a time.

use super::cpp::Text;
use super::pairs::paired;
use super::points::Points;
use overdrive_ir::plan::Register;

/// A reduction with the names of its fold and of the type that it folds, and the value that it
/// folds.
#[derive(Clone)]
pub(super) struct Fold {
    pub(super) register: Register,
    pub(super) kind: &'static str,
    pub(super) ty: String,
    pub(super) value: Register,
}

/// The folds of a pass by their ways.
pub(super) struct FoldsOfPass {
    /// Each with the load whose elements it folds.
    pairs: Vec<(Fold, Register)>,
    lanes: Vec<Fold>,
    /// Each with the maximum that it stands beside.
    online: Vec<(Fold, Register)>,
}

/// The loop over the lanes of a vector, in C++.
pub(super) fn each_lane(vector: usize) -> String {
    format!("for (int v = 0; v < {vector}; ++v)")
}

impl FoldsOfPass {
    pub(super) fn new(folds: Vec<Fold>, points: &Points<'_>) -> Self {
        let mut all = Self { pairs: vec![], lanes: vec![], online: vec![] };
        for fold in folds {
            if let Some(online) = points.stages.online.get(&fold.register) {
                all.online.push((fold, online.max));
            } else if let Some(load) = paired(points, fold.register) {
                all.pairs.push((fold, load));
            } else {
                all.lanes.push(fold);
            }
        }
        all
    }

    /// Declares what each fold starts from.
    pub(super) fn declare(&self, points: &Points<'_>, text: &mut Text) {
        let (program, vector) = (points.program, points.nest.vector);
        for (Fold { register, kind, .. }, load) in &self.pairs {
            let dtype = program.dtype(*load);
            text.line(format!("FoldOfPairs<{kind}, {dtype}, {vector}> a{};", register.0));
        }
        for Fold { register, kind, ty, .. } in &self.lanes {
            text.line(format!("{ty} a{}[{vector}];", register.0));
            text.unrolled(each_lane(vector), |text| {
                text.line(format!("a{}[v] = {kind}::identity<{ty}>();", register.0));
            });
        }
        for (Fold { register, kind, ty, .. }, _) in &self.online {
            text.line(format!("{ty} a{} = {kind}::identity<{ty}>();", register.0));
        }
    }

    /// Takes loaded vectors in pairs.
    pub(super) fn take_pairs(&self, points: &Points<'_>, text: &mut Text) {
        for (fold, load) in &self.pairs {
            text.line(format!("a{}.take({});", fold.register.0, points.loaded(*load)));
        }
    }

    /// Declares the vectors that sums beside a maximum take.
    pub(super) fn declare_online(&self, vector: usize, text: &mut Text) {
        for (fold, _) in &self.online {
            text.line(format!("f32 e{}[{vector}];", fold.register.0));
        }
    }

    /// Takes lane `v`, which may be missing where the row has a tail.
    pub(super) fn take_lane(&self, has_tail: bool, text: &mut Text) {
        for Fold { register, kind, value, .. } in &self.lanes {
            let guard = if has_tail { "if (v < count) " } else { "" };
            let (r, value) = (register.0, value.0);
            text.line(format!("{guard}a{r}[v] = {kind}::of(a{r}[v], t{value});"));
        }
        for (Fold { register, value, .. }, _) in &self.online {
            let none = if has_tail { "v >= count ? Max::identity<f32>() : " } else { "" };
            text.line(format!("e{}[v] = {none}t{};", register.0, value.0));
        }
    }

    /// Takes vectors into the sums beside a maximum.
    pub(super) fn take_online(&self, points: &Points<'_>, text: &mut Text) {
        for (Fold { register, .. }, max) in &self.online {
            let r = register.0;
            let pairs =
                paired(points, *max).map(|load| format!("largest({})", points.loaded(load)));
            let top = pairs.unwrap_or_else(|| format!("fold_lanes<Max>(e{r})"));
            text.line(format!("a{r}.take(e{r}, {top});"));
        }
    }

    /// A thread's part of each fold at the end, in C++.
    pub(super) fn of_thread(&self) -> Vec<(&Fold, String)> {
        let of_pairs =
            self.pairs.iter().map(|(fold, _)| (fold, format!("a{}.result()", fold.register.0)));
        let of_lanes = self
            .lanes
            .iter()
            .map(|fold| (fold, format!("fold_lanes<{}>(a{})", fold.kind, fold.register.0)));
        let of_online = self.online.iter().map(|(fold, _)| (fold, format!("a{}", fold.register.0)));
        of_pairs.chain(of_lanes).chain(of_online).collect()
    }
}
