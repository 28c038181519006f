//! Prints the values that [`Pick`] takes from a row.

use super::cpp::Text;
use super::level::Level;
use super::pick::Pick;
use super::points::Points;
use super::print::{constant, statement};
use overdrive_ir::plan::{Instr, Register};

impl Points<'_> {
    /// The value of a picked register, at the counters of its row.
    pub(super) fn picked(&self, register: Register, pick: Pick, text: &mut Text) {
        let (program, lane) = (self.program, self.nest.lane());
        let (int, dtype, last) = (self.int(), program.dtype(register), self.nest.extents[lane] - 1);
        let mut needed = vec![false; program.instrs.len()];
        needed[pick.value.0 as usize] = true;
        for r in (0..needed.len()).rev() {
            if needed[r] && self.stages.levels[r] == Level::Element {
                program.instrs[r].operands().iter().for_each(|o| needed[o.0 as usize] = true);
            }
        }
        let elements = (0..needed.len() as u32)
            .map(Register)
            .filter(|r| needed[r.0 as usize] && self.stages.level(*r) == Level::Element);
        text.line(format!("{dtype} t{};", register.0));
        text.block("", |text| {
            // Read in any case: a branch would keep the loads after it from being under way.
            text.line(format!("const i64 place = convert<i64>(t{});", pick.place.0));
            text.line(format!("const {int} i{lane} = min(max(place, 0ll), {last}ll);"));
            text.line("const int v = 0;");
            for element in elements {
                if matches!(program.instr(element), Instr::Load(_)) {
                    self.load_single(element, text);
                }
                text.line(statement(program, element, self));
            }
            let zero = constant(0.0, dtype);
            text.line(format!("t{} = place == i{lane} ? t{} : {zero};", register.0, pick.value.0));
        });
    }
}
