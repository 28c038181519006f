//! `Label`: the batch and the stage that a node works for, as its scope says them.
//!
//! Passes keep scopes, and a gradient stands in the scope of the node that it differentiates. So a
//! label written before a graph is differentiated and sharded is still there behind both.

/// Begins the label in the outermost name of a scope: `block2#3.1/attention`.
const MARK: char = '#';

/// Ends the scope of what differentiates a node.
const GRADIENT: &str = "grad";

/// The batch and the stage of a node.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Label {
    /// `None` for work that all batches share.
    pub(super) batch: Option<usize>,
    /// The stage.
    pub(super) stage: usize,
}

impl Label {
    /// The scope with this label.
    pub(super) fn on(self, scope: &str) -> String {
        let (first, rest) = scope.split_once('/').map_or((scope, None), |(a, b)| (a, Some(b)));
        let batch = self.batch.map_or(String::new(), |batch| batch.to_string());
        let rest = rest.map_or(String::new(), |rest| format!("/{rest}"));
        format!("{first}{MARK}{batch}.{}{rest}", self.stage)
    }

    /// The label of a scope, if it has one.
    pub(super) fn of(scope: &str) -> Option<Self> {
        let (_, label) = scope.split('/').next()?.rsplit_once(MARK)?;
        let (batch, stage) = label.split_once('.')?;
        let batch = if batch.is_empty() { None } else { Some(batch.parse().ok()?) };
        Some(Self { batch, stage: stage.parse().ok()? })
    }
}

/// Whether a scope is that of a gradient.
pub(super) fn is_gradient(scope: &str) -> bool {
    scope.split('/').any(|part| part == GRADIENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_keep_their_labels() {
        for (batch, scope, expected) in [
            (Some(3), "block2/attention", "block2#3.1/attention"),
            (Some(0), "", "#0.1"),
            (None, "send", "send#.1"),
        ] {
            let label = Label { batch, stage: 1 };
            assert_eq!(label.on(scope), expected);
            assert_eq!(Label::of(expected), Some(label));
            assert_eq!(Label::of(&format!("{expected}/grad")), Some(label));
        }
        assert!(is_gradient("block2#3.1/attention/grad") && !is_gradient("gradual#3.1"));
        for scope in ["", "block2", "block#2", "a#b.c", "optimizer/a#1.2"] {
            assert_eq!(Label::of(scope), None, "{scope}");
        }
    }
}
