//! Our skinny GEMM kernel for Hopper (a batch of a small network, decoding). This file says which
//! products it takes and how it cuts the contracted index, and launches it. `kernels/skinny.cu`
//! says how it works.
//!
//! Invariant: two blocks fit on a multiprocessor, so that the next layer's weights are on their way
//! while this one finishes.

use super::base::Base;
use super::bunch::FewRows;
use super::epilogue;
use super::hopper::{Fit, promotes, wgmma};
use super::led::{self, RowsSource};
use super::problem::sums;
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::loops::Lead;
use crate::tensor_map::{Boxes, Maps};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::DType;
use overdrive_ir::plan::{GemmCall, SlotId};
use std::ffi::c_void;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most rows: they are columns of one matrix instruction, and their sums stay in registers.
const ROWS: usize = 64;
/// The same of integers, whose instructions have not every width beyond.
const ROWS_OF_INTEGERS: usize = 32;
/// Outputs of a block: rows of one matrix instruction.
const OUTPUTS: usize = 64;
/// Bytes of a tile's lines: the span of the widest swizzle.
const LINE: usize = 128;
/// Warpgroups of a block.
const GROUPS: usize = 4;
/// Threads of a block.
pub(super) const THREADS: usize = GROUPS * 128;
/// Blocks that may share the contracted index.
pub(super) const SPLITS: [usize; 3] = [1, 2, 4];
/// Dynamic shared memory that each of two blocks may have, less the room of the barriers.
const SHARED_BYTES: usize = 113 * 1024 - 512;
/// For bringing the first tile to its alignment.
const SLACK: usize = 1024;

/// How a launch is cut.
#[derive(Clone)]
pub(super) struct Cut {
    split: usize,
    /// Blocks of the grid.
    blocks: usize,
    /// Rows of x, as columns of an instruction.
    columns: usize,
    /// Tiles of a part in flight.
    stages: usize,
    /// The most parts of a block.
    parts: usize,
    /// Bytes of x that a block computes itself: tiles, and the rows that they are made of.
    led: [usize; 2],
}

impl Cut {
    /// A product alone.
    pub(super) fn new(call: &GemmCall, split: usize) -> Self {
        Self::of(call, (1, call.n.div_ceil(OUTPUTS)), split, RowsSource::Given)
            .expect("the tiles of one product leave room")
    }

    /// Products like this one, in so many tiles of outputs that each have so many parts. `None`
    /// where they do not fit in a block.
    pub(super) fn of(
        call: &GemmCall,
        (parts, tiles): (usize, usize),
        split: usize,
        rows: RowsSource,
    ) -> Option<Self> {
        let columns = call.m.next_multiple_of(8);
        let own = call.k.div_ceil(LINE * 8 / call.lhs.dtype.bits()).div_ceil(split);
        let led = match rows {
            RowsSource::Given => [0, 0],
            RowsSource::Led => {
                let rows = call.m * call.k * call.lhs.dtype.bits() / 8;
                [own * columns * LINE, rows.next_multiple_of(LINE)]
            }
        };
        let groups = GROUPS / parts;
        let one = Self { split, blocks: tiles * split, columns, stages: groups, parts, led };
        let beside = SLACK + parts * one.share_bytes() + led.iter().sum::<usize>();
        let fitting = SHARED_BYTES.checked_sub(beside)? / (parts * one.stage_bytes());
        let stages = own.next_multiple_of(groups).min(fitting / groups * groups);
        (stages > 0).then_some(Self { stages, ..one })
    }

    /// Whether a block has prefetched all of its weights before the kernel before it is over: half
    /// of them copied, half brought near. If it has not, it streams them, and less of its memory
    /// should go to anything else.
    pub(super) fn is_ahead(&self, call: &GemmCall) -> bool {
        let tiles = call.k.div_ceil(LINE * 8 / call.lhs.dtype.bits()).div_ceil(self.split);
        tiles <= 2 * self.stages
    }

    fn stage_bytes(&self) -> usize {
        let inputs = if self.led == [0, 0] { self.columns } else { 0 };
        (OUTPUTS + inputs) * LINE
    }

    /// Bytes that a block gets of the sums of its cluster, of one part.
    fn share_bytes(&self) -> usize {
        if self.split > 1 { OUTPUTS * self.columns * 4 } else { 0 }
    }

    fn shared_bytes(&self) -> usize {
        let part = self.stages * self.stage_bytes() + self.share_bytes();
        SLACK + self.parts * part + self.led.iter().sum::<usize>()
    }
}

/// The call as the Hopper kernels see it, if this one takes it.
pub(super) fn fit(call: &GemmCall) -> Option<Fit> {
    let most = if call.lhs.dtype == DType::I8 { ROWS_OF_INTEGERS } else { ROWS };
    let skinny = (1..=most).contains(&call.m);
    let single = call.batch.iter().product::<usize>() == 1;
    Fit::of(call).filter(|fit| skinny && single && fit.lhs.by_k)
}

/// Tiles of a product's outputs.
pub(super) fn tiles(call: &GemmCall) -> usize {
    call.n.div_ceil(OUTPUTS)
}

/// Whether clusters of so many blocks find room for so many tiles. A cluster needs room in one part
/// of the device. Clusters of four are no slower alone. Beside the kernel before they find room
/// only while half of the multiprocessors are free. Eight blocks were slower in any case.
pub(super) fn has_room(tiles: usize, split: usize, multiprocessors: u32) -> bool {
    let places = if split > 2 { multiprocessors / 2 } else { multiprocessors };
    split == 1 || tiles * split <= places as usize
}

/// The ways to cut the contracted index that are worth timing, best guess first; none where the
/// kernel cannot take the call.
pub(super) fn splits(call: &GemmCall, multiprocessors: u32) -> Vec<usize> {
    let room = |&split: &usize| has_room(tiles(call), split, multiprocessors);
    if fit(call).is_none() { vec![] } else { SPLITS.into_iter().filter(room).rev().collect() }
}

/// Whether a step of the call may write the weights while it runs.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum WeightWrites {
    /// None does.
    Settled,
    /// One may.
    Moving,
}

/// The source of the kernel for products that it takes. `asks` are the addresses of the loop that
/// are prefetched early, with their bytes.
pub(super) fn source(
    parts: FewRows<'_>,
    cut: &Cut,
    weights: WeightWrites,
    asks: &[(usize, usize)],
) -> Option<KernelSource> {
    let call = &parts.tiles[0][0];
    let fit = fit(call)?;
    // Parts differ in the number of outputs alone.
    let mut defines = epilogue::defines(call, sums(call));
    defines.retain(|(name, _)| *name != "N");
    defines.extend([
        ("SPLIT", cut.split.to_string()),
        ("GROUPS", GROUPS.to_string()),
        ("STAGES", cut.stages.to_string()),
        ("PARTS", cut.parts.to_string()),
        ("LEAD", u8::from(parts.lead.is_some()).to_string()),
        ("RHS_BY_K", u8::from(fit.rhs.by_k).to_string()),
        ("PROMOTE", u8::from(promotes(call)).to_string()),
        ("SETTLED", u8::from(weights == WeightWrites::Settled).to_string()),
    ]);
    let operands = [call.rhs.dtype, call.lhs.dtype];
    let mut text = wgmma("wgmma", cut.columns, operands, [fit.rhs.by_k, true]);
    let count = parts.calls().count();
    let _ =
        write!(text, "#include \"hopper.cuh\"\nstruct Maps {{\n    TensorMap at[{count}];\n}};\n");
    text += &print_parts(parts);
    text += &led::print(parts.lead, asks);
    let _ = writeln!(text, "#define BODIES {}", bodies(parts));
    text += include_str!("kernels/skinny.cu");
    Some(epilogue::source("gemm_skinny", &defines, &text))
}

/// A namespace for each part, with its epilogue and `Part`, and the addresses `Given` of all.
pub(super) fn print_parts(work: FewRows<'_>) -> String {
    let (mut text, mut slots) = (String::new(), String::new());
    for (at, call) in work.calls().enumerate() {
        let (n, epilogue) = (call.n, epilogue::print(call).text);
        let _ = write!(text, "namespace part{at} {{\nconstexpr int N = {n};\n{epilogue}{PART}}}\n");
        let _ = writeln!(slots, "    part{at}::Slots of{at};");
    }
    let given = led::count(work.lead);
    text + &format!("struct Given {{\n{slots}    void* lead[{given}];\n}};\n")
}

/// The facts that a kernel needs of a part.
const PART: &str = "struct Part {
    typedef Slots Buffers;
    static constexpr int EXTENT = N;
    __device__ __forceinline__ static void ask(const Slots& slots, int r, int c) {
        prefetch(slots, 0, r, c);
    }
    __device__ __forceinline__ static void store(const Slots& slots, int r, int c, SUM value) {
        const SUM sum[1] = {value};
        OUT out[1];
        epilogue<1>(slots, 0, r, c, sum, 1, out);
        store_result<1>(slots, 0, r, c, out, 1);
    }
};
";

/// The products that a block computes, by the number of its tile.
fn bodies(parts: FewRows<'_>) -> String {
    let (mut text, mut id, mut first) = (String::new(), 0, 0);
    for calls in parts.tiles {
        let last = first + calls[0].n.div_ceil(OUTPUTS);
        let product = |place: usize| {
            let id = id + place;
            format!(", product(part{id}::Part(), {id}, {place}, given.of{id}, {first})")
        };
        let products: String = (0..calls.len()).map(product).collect();
        let _ = write!(text, "if (tile < {last}) return compute(here, led, before{products}); ");
        (id, first) = (id + calls.len(), last);
    }
    text
}

struct SkinnyGemm {
    entry: Entry,
    /// Bases of x and of the weights of each product.
    bases: Vec<Base>,
    maps: Maps,
    /// Buffers of the epilogues, one product's after the other's, then those of the loop.
    slots: Vec<SlotId>,
}

/// Compiles the kernel for a product alone; `None` where it does not apply.
pub(super) fn compile(
    site: &Site<'_>,
    call: &GemmCall,
    split: usize,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let tiles = [vec![call.clone()]];
    compile_parts(site, FewRows { tiles: &tiles, lead: None }, &Cut::new(call, split))
}

/// Compiles the kernel for several; `None` where it does not apply.
pub(super) fn compile_parts(
    site: &Site<'_>,
    parts: FewRows<'_>,
    cut: &Cut,
) -> Result<Option<Box<dyn Launch>>, Refusal> {
    let call = &parts.tiles[0][0];
    let Some(fit_of_x) = fit(call).filter(|_| site.device.architecture() == Architecture::Sm90a)
    else {
        return Ok(None);
    };
    let settled = parts.calls().all(|call| site.is_settled(call.rhs.slot));
    let weights = if settled { WeightWrites::Settled } else { WeightWrites::Moving };
    let asks = led::asks(site, parts.lead);
    let Some(source) = source(parts, cut, weights, &asks) else { return Ok(None) };
    let config = LaunchConfig {
        grid_dim: (cut.blocks as u32, 1, 1),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: cut.shared_bytes() as u32,
    };
    let dtype = call.lhs.dtype;
    let rows = fit_of_x.lhs.boxes(cut.columns, dtype);
    let mut boxes = vec![Boxes::new(dtype, fit_of_x.lhs.extents(call.m, call), rows)];
    let mut bases = vec![fit_of_x.lhs.base];
    let mut slots = vec![];
    for call in parts.calls() {
        let Some(fit) = fit(call) else { return Ok(None) };
        let tile = fit.rhs.boxes(OUTPUTS, dtype);
        boxes.push(Boxes::new(dtype, fit.rhs.extents(call.n, call), tile));
        bases.push(fit.rhs.base);
        slots.extend(epilogue::print(call).slots);
    }
    slots.extend(parts.lead.map_or(vec![], Lead::slots));
    Ok(Some(Box::new(SkinnyGemm {
        entry: Entry::new(site.device, (&source, "gemm_skinny"), config)?,
        bases,
        maps: Maps::new(boxes),
        slots,
    })))
}

impl Launch for SkinnyGemm {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let bases: Vec<u64> = self.bases.iter().map(|base| base.address(addresses)).collect();
        let mut maps = self.maps.at(&bases)?;
        let mut slots: Vec<u64> = self.slots.iter().map(|&slot| addresses.of(slot)).collect();
        // Without a loop, its array in `Given` still has an element.
        slots.push(0);
        let (inputs, weights) = maps.split_at_mut(1);
        let mut parameters: [*mut c_void; 3] =
            [inputs.as_mut_ptr().cast(), weights.as_mut_ptr().cast(), slots.as_mut_ptr().cast()];
        // SAFETY: the kernel takes a map, one for each product, and the addresses of `Given`.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
