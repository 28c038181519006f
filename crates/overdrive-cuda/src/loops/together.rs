//! Loops without reductions that differ in their operands and length alone, as one launch. An
//! example is an optimizer's updates of all parameters. Most of them are too small to be worth a
//! launch each.
//!
//! They are one grid over the blocks of all. A block looks up its loop in a table that the launch
//! brings as its one parameter. The idea is that of apex's `multi_tensor_apply`, which copies such
//! tables in portions. Loops are alike where their printed text is.

use super::compile::refuse_shared_bytes;
use super::cpp::Text;
use super::kernel::Argument;
use super::map::{Groups, block, body};
use super::nest::LoopNest;
use super::points::Points;
use super::source::{ENTRY, head};
use super::stages::Stages;
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, PARAMETER_BYTES, Refusal, Site};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{Program, Step, StepKind};
use std::ffi::c_void;
use std::sync::Arc;

/// Most blocks and groups, which are counted in 32 bits.
const MOST: usize = i32::MAX as usize;

/// A loop as a member of a launch.
struct Member {
    /// Declarations of its parameters, and the work of a block that found them.
    text: (Vec<String>, String),
    arguments: Vec<Argument>,
    groups: Groups,
}

impl Member {
    /// A loop that could be one.
    fn new(step: &Step) -> Option<Member> {
        let StepKind::Loop(program) = &step.kind else { return None };
        let is_map = program.reduced == 0 && program.points() > 0;
        is_map.then(|| Member::of(program, step)).filter(|member| member.groups.count <= MOST)
    }

    fn of(program: &Program, step: &Step) -> Member {
        let nest = LoopNest::new(program);
        let stages = Stages::in_place(program, &nest, &step.aliases);
        let mut points = Points::new(program, (&nest, &stages), &step.aliases);
        let (text, groups) = body(&mut points, ("number", "part.groups"));
        let parameters = &points.parameters;
        Member {
            text: (parameters.declarations(), text.finish()),
            arguments: parameters.arguments(),
            groups,
        }
    }

    /// Bytes of its line in the table: addresses, its first block and its groups.
    fn bytes(&self) -> usize {
        8 * (self.arguments.len() + 1)
    }
}

/// Whether one launch can do a step beside others.
pub fn joins(steps: &[&Step], step: &Step) -> bool {
    let (Some(of), Some(other)) = (Member::new(steps[0]), Member::new(step)) else { return false };
    of.text == other.text && (steps.len() + 1) * of.bytes() <= PARAMETER_BYTES
}

/// Compiles loops that were gathered.
///
/// # Errors
/// As `compile` of one.
pub fn compile_together(site: &Site<'_>, steps: &[Step]) -> Result<Box<dyn Launch>, Refusal> {
    for step in steps {
        if let StepKind::Loop(program) = &step.kind {
            refuse_shared_bytes(program, &LoopNest::new(program))?;
        }
    }
    let members: Vec<Member> = steps.iter().filter_map(Member::new).collect();
    let (source, blocks) = print(&members);
    if blocks > MOST {
        return Err(Refusal::Unsupported(format!(
            "{blocks} blocks of loops are too many for one launch"
        )));
    }
    let config = LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (block().threads as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    let entry = Entry::new(site.device, (&source, ENTRY), config)?;
    Ok(Box::new(Loops { entry, members }))
}

/// The source that steps which join are compiled from.
pub fn source_together(steps: &[Step]) -> KernelSource {
    print(&steps.iter().filter_map(Member::new).collect::<Vec<_>>()).0
}

/// The source of loops of one text, and the blocks of its grid.
fn print(members: &[Member]) -> (KernelSource, usize) {
    let (declarations, body) = &members[0].text;
    let mut text = Text::default();
    text.line("#include \"loop.cuh\"");
    text.block("struct Part", |text| {
        declarations.iter().for_each(|declaration| text.line(format!("{declaration};")));
        text.line("u32 first;");
        text.line("i32 groups;");
    });
    // Closes a struct's block.
    text.line(";");
    text.line(format!("struct Parts {{ Part at[{}]; }};", members.len()));
    text.block(head(block(), "const __grid_constant__ Parts parts"), |text| {
        text.line(crate::entry::WAIT);
        text.line("const Part& part = parts.at[last_from(parts.at, blockIdx.x)];");
        for declaration in declarations {
            let name = declaration.rsplit([' ', '*']).next().unwrap_or_default();
            text.line(format!("{declaration} = part.{name};"));
        }
        text.line("const u32 number = blockIdx.x - part.first;");
        body.lines().for_each(|line| text.line(line));
    });
    let blocks = members.iter().map(|member| member.groups.blocks()).sum();
    (KernelSource { name: ENTRY.into(), text: text.finish().into(), defines: vec![] }, blocks)
}

struct Loops {
    entry: Entry,
    members: Vec<Member>,
}

impl Launch for Loops {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let (mut table, mut first) = (Vec::<u64>::new(), 0);
        for member in &self.members {
            table.extend(member.arguments.iter().map(|argument| argument.address(addresses)));
            table.push(first | (member.groups.count as u64) << 32);
            first += member.groups.blocks() as u64;
        }
        let mut parameters: [*mut c_void; 1] = [table.as_mut_ptr().cast()];
        // SAFETY: the table is a `Parts` of the source; the plan gives every slot its bytes.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
