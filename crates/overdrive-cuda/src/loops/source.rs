//! A printed body as a `KernelLaunch`: head, parameters, launch bounds.

use super::cpp::Text;
use super::kernel::{Argument, KernelLaunch};
use super::points::Points;
use crate::compiler::KernelSource;
use crate::entry::WAIT;

/// Name of the entry of every printed loop.
pub(super) const ENTRY: &str = "loop";

/// A body with its grid.
pub(super) struct Sketch<'a> {
    pub(super) points: &'a Points<'a>,
    pub(super) text: Text,
    /// Blocks.
    pub(super) grid: usize,
    pub(super) block: ThreadBlock,
    pub(super) workspace: Workspace,
}

/// The threads that share memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct ThreadBlock {
    pub(super) threads: usize,
    /// Blocks that a multiprocessor must have room for, which limits registers; 0 leaves it to the
    /// compiler.
    pub(super) resident: usize,
    /// Blocks of a cluster; 1 for none.
    pub(super) cluster: usize,
    /// Bytes of shared memory that the launch brings.
    pub(super) shared_bytes: usize,
}

/// Whether a kernel has the parameter `workspace`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Workspace {
    Used,
    Unused,
}

/// The beginning of a kernel's text.
pub(super) fn head(block: ThreadBlock, parameters: &str) -> String {
    let ThreadBlock { threads, resident, cluster, .. } = block;
    let mut bounds = match resident {
        0 => format!("__launch_bounds__({threads})"),
        resident => format!("__launch_bounds__({threads}, {resident})"),
    };
    if cluster > 1 {
        bounds = format!("__cluster_dims__({cluster}, 1, 1) {bounds}");
    }
    format!("extern \"C\" __global__ void {bounds} {ENTRY}({parameters})")
}

impl Sketch<'_> {
    /// The whole source.
    pub(super) fn finish(self) -> KernelLaunch {
        let mut text = Text::default();
        text.line("#include \"loop.cuh\"");
        let ThreadBlock { threads, shared_bytes, .. } = self.block;
        let mut parameters = self.points.parameters.declarations();
        let mut arguments = self.points.parameters.arguments();
        if self.workspace == Workspace::Used {
            parameters.push("u8* workspace".to_owned());
            arguments.push(Argument::Workspace);
        }
        let body = self.text.finish();
        text.block(head(self.block, &parameters.join(", ")), |text| {
            text.line(WAIT);
            body.lines().for_each(|line| text.line(line));
        });
        let source =
            KernelSource { name: ENTRY.into(), text: text.finish().into(), defines: vec![] };
        let [grid, block, shared_bytes] = [self.grid, threads, shared_bytes].map(|n| n as u32);
        KernelLaunch { source, grid, block, shared_bytes, arguments }
    }
}
