//! How a thread walks its groups of a row: those that registers hold, or those that memory holds,
//! several at once.

use super::coordinates::Counter;
use super::cpp::Text;
use super::points::Points;
use super::row_printer::RowPrinter;
use super::row_shape::BYTES_OF_THREAD;
use overdrive_ir::plan::Register;

/// Most groups at once, where they are small.
const MOST_AT_ONCE: usize = 8;

impl RowPrinter<'_> {
    /// A loop over this thread's groups of the row that registers hold, at whose counters `content`
    /// stands.
    pub(super) fn each_kept(&self, kept: usize, text: &mut Text, content: impl Fn(&mut Text)) {
        let (int, threads, groups) =
            (self.points.int(), self.shape.threads_of_row(), self.shape.groups);
        text.unrolled(format!("for (int k = 0; k < {kept}; ++k)"), |text| {
            let first = if self.shape.ahead { "first" } else { "t" };
            let step = if self.shape.ahead { self.shape.threads } else { threads };
            text.line(format!("const {int} group = k * {step} + {first};"));
            if kept * threads == groups {
                self.at_group(text, content);
            } else {
                text.block(format!("if (group < {groups})"), |text| self.at_group(text, content));
            }
        });
    }

    /// The same for values in memory, for several groups at once. `loads` of all of them come
    /// first, so that as many bytes are under way, then `content` for group `u`.
    pub(super) fn each_batch(
        &self,
        loads: &[Register],
        text: &mut Text,
        content: impl Fn(&mut Text),
    ) {
        let (points, int) = (self.points, self.points.int());
        let (threads, groups, parts) =
            (self.shape.threads_of_row(), self.shape.groups, self.share.parts);
        let length = groups.div_ceil(parts);
        let bytes: usize =
            loads.iter().map(|r| points.nest.vector * points.program.dtype(*r).bits() / 8).sum();
        let steps = length.div_ceil(threads);
        let batch = (BYTES_OF_THREAD / bytes.max(1)).min(MOST_AT_ONCE).min(steps).max(1);
        let is_whole = parts == 1 && groups == steps * threads && steps.is_multiple_of(batch);
        let mut end = groups.to_string();
        if self.share.is_split() {
            text.line(format!("const {int} end = min((part + 1) * {length}, ({int}){groups});"));
            end = "end".to_owned();
        }
        let first =
            if self.share.is_split() { format!("part * {length} + ") } else { String::new() };
        text.block(format!("for (int k = 0; k < {steps}; k += {batch})"), |text| {
            loads.iter().for_each(|r| points.declare(*r, &format!("[{batch}]"), text));
            let each = |text: &mut Text, content: &dyn Fn(&mut Text)| {
                text.unrolled(format!("for (int u = 0; u < {batch}; ++u)"), |text| {
                    text.line(format!("const {int} group = {first}(k + u) * {threads} + t;"));
                    if is_whole {
                        self.at_group(text, content);
                    } else {
                        text.block(format!("if (group < {end})"), |text| {
                            self.at_group(text, content)
                        });
                    }
                });
            };
            each(text, &|text| loads.iter().for_each(|r| self.batched(loads).load(*r, text)));
            each(text, &content);
        });
    }

    /// The points where `loads` are several groups' at once.
    pub(super) fn batched(&self, loads: &[Register]) -> Points<'_> {
        Points { grouped: loads.to_vec(), group: "[u]", ..self.points.clone() }
    }

    /// `content` at the counters of `group`.
    fn at_group(&self, text: &mut Text, content: impl Fn(&mut Text)) {
        let nest = self.points.nest;
        let mut extents = nest.folded().to_vec();
        if let Some(lane) = extents.last_mut() {
            *lane = lane.div_ceil(nest.vector);
        }
        let counter = Counter { name: "group", int: self.points.int(), first: nest.kept().len() };
        counter.split(&extents, |d| if d == nest.lane() { nest.vector } else { 1 }, text);
        self.points.count_lanes(text);
        content(text);
    }
}
