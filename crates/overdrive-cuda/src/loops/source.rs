//! A printed body as a `Kernel`: head, parameters, launch bounds.

use super::kernel::Kernel;
use super::points::Points;
use super::text::Text;
use crate::compiler::Source;

/// Name of the entry of every printed loop.
pub(super) const ENTRY: &str = "loop";

/// A body with its grid.
pub(super) struct Sketch<'a> {
    pub(super) points: &'a Points<'a>,
    pub(super) text: Text,
    pub(super) grid: u32,
    pub(super) block: u32,
    pub(super) cluster: u32,
}

impl Sketch<'_> {
    /// The whole source.
    pub(super) fn finish(self) -> Kernel {
        let mut text = Text::default();
        text.line("#include \"loop.cuh\"");
        let parameters = self.points.parameters.declarations().join(", ");
        let bounds = format!("__launch_bounds__({})", self.block);
        let body = self.text.finish();
        text.block(format!("extern \"C\" __global__ void {bounds} {ENTRY}({parameters})"), |text| {
            body.lines().for_each(|line| text.line(line));
        });
        let source = Source { name: ENTRY.into(), text: text.finish().into(), defines: vec![] };
        Kernel {
            source,
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            arguments: self.points.parameters.arguments(),
        }
    }
}
