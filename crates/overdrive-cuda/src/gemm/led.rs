//! The loop that the blocks of a product compute for themselves, in the text of its kernel.

use crate::launch::Site;
use crate::loops::Lead;
use overdrive_ir::SlotId;

/// The source of a block's rows of x.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum RowsSource {
    /// Another step made them.
    Given,
    /// It computes them.
    Led,
}

impl RowsSource {
    /// Who makes the rows, given the loop that may.
    pub(super) fn of(lead: Option<&Lead>) -> Self {
        if lead.is_some() { RowsSource::Led } else { RowsSource::Given }
    }
}

/// Slots to prefetch early, by their number among those of the loop, with their bytes. The bulk
/// copy engine does not bring them, and no step of the call writes them.
pub(super) fn asks(site: &Site<'_>, lead: Option<&Lead>) -> Vec<(usize, usize)> {
    const MOST_BYTES: usize = 64 << 10;
    let slots = lead.map_or(vec![], Lead::slots);
    let bytes = |slot: SlotId| site.plan.slot(slot).bytes();
    let near = |(_, slot): &(usize, SlotId)| site.is_settled(*slot) && bytes(*slot) <= MOST_BYTES;
    slots.into_iter().enumerate().filter(near).map(|(at, slot)| (at, bytes(slot))).collect()
}

/// The loop, and the macros `LEAD_ROWS` that computes rows to `rows` and `ASK` that prefetches.
pub(super) fn print(lead: Option<&Lead>, asks: &[(usize, usize)]) -> String {
    let (text, call) = lead.map_or(("", ""), |lead| (&lead.text, &lead.call));
    let asks: String =
        asks.iter().map(|(at, bytes)| format!("ask_for(given[{at}], {bytes}); ")).collect();
    format!("{text}#define LEAD_ROWS(rows, given) {call}\n#define ASK(given) {asks}\n")
}

/// How many addresses the kernel is given for the loop; an array has an element.
pub(super) fn count(lead: Option<&Lead>) -> usize {
    lead.map_or(1, |lead| lead.slots().len())
}
