//! Counters of loops out of one number.

use super::cpp::Text;

/// A number that counts the points of several loops.
pub(super) struct Counter {
    pub(super) name: &'static str,
    /// Its type.
    pub(super) int: &'static str,
    /// Number of the outermost of the loops in the nest.
    pub(super) first: usize,
}

impl Counter {
    /// Declares `i<first>, ...` from the number: loop `d` has `extents[d]` steps of `step(d)`.
    pub(super) fn split(&self, extents: &[usize], step: impl Fn(usize) -> usize, text: &mut Text) {
        let place = |number: usize, index: String| match step(number) {
            1 => index,
            step => format!("{index} * {step}"),
        };
        self.split_to(extents, place, text);
    }

    /// The same, where loop `d` is at `place(d, index)`.
    pub(super) fn split_to(
        &self,
        extents: &[usize],
        place: impl Fn(usize, String) -> String,
        text: &mut Text,
    ) {
        let (int, mut rest) = (self.int, self.name.to_owned());
        for (d, &extent) in extents.iter().enumerate().rev() {
            let number = self.first + d;
            let index = if d == 0 { rest.clone() } else { format!("{rest} % {extent}") };
            let index = place(number, index);
            text.line(format!("const {int} i{number} = {index};"));
            if d > 0 {
                // Unsigned division by a constant is a multiplication and a shift.
                text.line(format!("const {int} r{number} = {rest} / {extent};"));
                rest = format!("r{number}");
            }
        }
    }
}
