//! The resources of a multiprocessor that a kernel takes, as the assembler tells.

/// Registers and memory of one entry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// Name of the entry.
    pub entry: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block that is known when it is compiled, in bytes.
    pub shared_bytes: u32,
    /// Stack of a thread, in bytes.
    pub stack_bytes: u32,
    /// Registers that a thread moves to its stack and back, in bytes.
    pub spilled_bytes: u32,
}

/// Reads the log of `--ptxas-options=-v`.
pub(super) fn parse(log: &str) -> Vec<Resources> {
    let mut all: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let entry = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Resources { entry, ..Resources::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        if let Some(bytes) = number_before(line, " bytes stack frame") {
            last.stack_bytes = bytes;
            last.spilled_bytes = number_before(line, " bytes spill stores").unwrap_or(0);
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
            last.shared_bytes = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    all
}

fn number_before(line: &str, words: &str) -> Option<u32> {
    let (before, _) = line.split_once(words)?;
    let digits = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_the_assembler_is_read() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'loop' for 'sm_90a'
ptxas info    : Function properties for loop
ptxas         .     24 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 24 bytes cumulative stack size, 68 bytes \
                   smem, 544 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 9 registers, used 0 barriers";
        let first = Resources {
            entry: "loop".to_owned(),
            registers: 64,
            shared_bytes: 68,
            stack_bytes: 24,
            spilled_bytes: 12,
        };
        let second = Resources { entry: "second".to_owned(), registers: 9, ..Resources::default() };
        assert_eq!(parse(log), [first, second]);
    }
}
