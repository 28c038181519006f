//! `Text`: C++ as it is written, line by line, indented by its braces.

/// Lines of a source.
#[derive(Default, Debug)]
pub(super) struct Text {
    lines: String,
    depth: usize,
}

impl Text {
    /// One line.
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        (0..self.depth).for_each(|_| self.lines.push_str("    "));
        self.lines.push_str(line.as_ref());
        self.lines.push('\n');
    }

    /// A line that opens a block, its content, and the closing brace.
    pub(super) fn block(&mut self, head: impl AsRef<str>, content: impl FnOnce(&mut Self)) {
        self.line(format!("{} {{", head.as_ref()).trim_start());
        self.depth += 1;
        content(self);
        self.depth -= 1;
        self.line("}");
    }

    /// A loop whose trip count is known and small.
    pub(super) fn unrolled(&mut self, head: impl AsRef<str>, content: impl FnOnce(&mut Self)) {
        self.line("#pragma unroll");
        self.block(head, content);
    }

    /// All that was written.
    pub(super) fn finish(self) -> String {
        self.lines
    }
}
