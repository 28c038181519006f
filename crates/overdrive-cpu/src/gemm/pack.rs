//! Packing: copies a block of an operand into the panels that a micro-kernel walks down.
//!
//! A panel is `width` lines (rows of A, or columns of B) over a range of k. Consecutive k form
//! groups: group `g` holds for each of the `width` lines its `group` elements, one line after
//! another. A micro-kernel never asks where the matrix ends. Past the end of k a panel holds zeros.
//! Past the last line it repeats that line, and the results are never stored. Unlike leftovers in
//! memory, these values cannot be denormal, which is slow.
//!
//! Packing's share of the time of a product shrinks as 1/m and 1/n. At 1024 a slow loop here would
//! be 10 % of the whole. Two orders occur in practice: lines contiguous and k contiguous. They have
//! paths of their own; any other order goes element by element.
//!
//! Long because each order of a matrix and each width of its elements has its own fast path.
#![allow(unsafe_code)] // Raw pointers into operands and panels.

use super::conversion::Widen;
use super::panel::{OperandLines, Panel};
#[cfg(target_arch = "x86_64")]
use super::transpose::transpose_units;

/// Packs a block whose elements stay what they are. `to` receives panel after panel.
///
/// # Safety
/// Every element of `block` can be read, and `to` has room for the panels.
pub(super) unsafe fn pack<T: Copy + Default>(block: OperandLines<T>, panel: Panel, to: *mut u8) {
    // SAFETY: the block can be read, each panel begins at its `start`, and `to` has room for all of
    // them.
    unsafe {
        let packed = pack_side_by_side(block, panel, to.cast::<T>());
        for (part, start) in block.panels(panel).skip(packed) {
            pack_panel(part, panel, to.cast::<T>().add(start));
        }
    }
}

/// Packs the whole panels of a block whose lines lie side by side, and returns how many that were.
/// It packs none if there is no path for their form.
unsafe fn pack_side_by_side<T: Copy + Default>(
    block: OperandLines<T>,
    panel: Panel,
    to: *mut T,
) -> usize {
    if block.line_stride != 1 {
        return 0;
    }
    // SAFETY: each path reads elements of the block and writes whole panels, for which `to` has
    // room.
    unsafe {
        match (panel.group, panel.width) {
            (1, 32) => copy_rows::<T, 32>(block, panel, to),
            (1, 16) => copy_rows::<T, 16>(block, panel, to),
            (1, 14) => copy_rows::<T, 14>(block, panel, to),
            (1, 8) => copy_rows::<T, 8>(block, panel, to),
            (2, 32) => group_rows::<T, 32, 2>(block, panel, to),
            (2, 16) => group_rows::<T, 16, 2>(block, panel, to),
            (2, 14) => group_rows::<T, 14, 2>(block, panel, to),
            (4, 32) => group_rows::<T, 32, 4>(block, panel, to),
            #[cfg(target_arch = "x86_64")]
            (32, 32) if size_of::<T>() == 2 => turn_rows::<T, 2>(block, panel, to),
            #[cfg(target_arch = "x86_64")]
            (64, 32) if size_of::<T>() == 1 => turn_rows::<T, 4>(block, panel, to),
            _ => 0,
        }
    }
}

/// Packs a block as a wider format.
///
/// # Safety
/// As for [`pack`].
pub(super) unsafe fn pack_widened<T: Widen<W>, W: Copy + Default>(
    block: OperandLines<T>,
    panel: Panel,
    to: *mut u8,
) {
    /// Wide enough for any panel, deep enough to amortise a call per line.
    const BUFFER: usize = 4096;
    let depth = BUFFER / panel.width / panel.k_multiple * panel.k_multiple;
    let mut buffer = [W::default(); BUFFER];
    for (part, start) in block.panels(panel) {
        for k0 in (0..part.k).step_by(depth) {
            let chunk = OperandLines { from: part.at(0, k0), k: (part.k - k0).min(depth), ..part };
            // SAFETY: a chunk is at most `width` lines of `depth` elements, which `buffer` holds;
            // its place in `to` is `k0` rows behind the panel's start.
            unsafe {
                let widened = widen(chunk, &mut buffer);
                let to = to.cast::<W>().add(start + k0 * panel.width);
                if pack_side_by_side(widened, panel, to) == 0 {
                    pack_panel(widened, panel, to);
                }
            }
        }
    }
}

/// Converts a chunk into `buffer`, in the order that the chunk itself has.
unsafe fn widen<T: Widen<W>, W>(chunk: OperandLines<T>, buffer: &mut [W]) -> OperandLines<W> {
    // SAFETY: every element of the chunk can be read, and runs stay inside of it.
    unsafe {
        if chunk.line_stride == 1 {
            for (k, to) in buffer.chunks_exact_mut(chunk.lines).enumerate().take(chunk.k) {
                T::widen(std::slice::from_raw_parts(chunk.at(0, k), chunk.lines), to);
            }
            OperandLines {
                from: buffer.as_ptr(),
                line_stride: 1,
                k_stride: chunk.lines,
                lines: chunk.lines,
                k: chunk.k,
            }
        } else {
            for (line, to) in buffer.chunks_exact_mut(chunk.k).enumerate().take(chunk.lines) {
                if chunk.k_stride == 1 {
                    T::widen(std::slice::from_raw_parts(chunk.at(line, 0), chunk.k), to);
                } else {
                    for (k, to) in to.iter_mut().enumerate() {
                        T::widen(&[*chunk.at(line, k)], std::slice::from_mut(to));
                    }
                }
            }
            OperandLines {
                from: buffer.as_ptr(),
                line_stride: chunk.k,
                k_stride: 1,
                lines: chunk.lines,
                k: chunk.k,
            }
        }
    }
}

/// Packs a block of i8 for a kernel that multiplies u8 by i8. A is shifted by 128. Panels of B
/// begin with the numbers that take the shift out of the sums again, -128 times the sum of each
/// column.
///
/// # Safety
/// As for [`pack`].
pub(super) unsafe fn pack_shifted(block: OperandLines<i8>, panel: Panel, to: *mut u8) {
    // SAFETY: the head of a panel is a group of four bytes for each of its columns, and `to` has
    // room for heads and bodies.
    unsafe {
        if panel.head == 0 {
            pack(block, panel, to);
            let bytes = block.lines.div_ceil(panel.width) * panel.len(block.k);
            std::slice::from_raw_parts_mut(to, bytes).iter_mut().for_each(|byte| *byte ^= 0x80);
            return;
        }
        let body = Panel { head: 0, ..panel };
        for (part, start) in block.panels(panel) {
            let to = to.cast::<i8>().add(start);
            let groups = to.add(panel.width * panel.group);
            if pack_side_by_side(part, body, groups) == 0 {
                pack_panel(part, body, groups);
            }
            let groups =
                std::slice::from_raw_parts(groups.cast::<[i8; 4]>(), body.len(block.k) / 4);
            let starts = std::slice::from_raw_parts_mut(to.cast::<i32>(), panel.width);
            starts.fill(0);
            for row in groups.chunks_exact(panel.width) {
                for (start, group) in starts.iter_mut().zip(row) {
                    *start -= 128 * group.iter().map(|&k| i32::from(k)).sum::<i32>();
                }
            }
        }
    }
}

/// # Safety
/// As for [`pack`], with at most `panel.width` lines, and a panel without a head.
unsafe fn pack_panel<T: Copy + Default>(block: OperandLines<T>, panel: Panel, to: *mut T) {
    // SAFETY: there are at most `width` lines, so each path writes within one panel, for which `to`
    // has room.
    unsafe {
        let done = match panel.group {
            #[cfg(target_arch = "x86_64")]
            group if block.k_stride == 1 && group * size_of::<T>() == 4 => {
                let units = OperandLines {
                    from: block.from.cast::<u8>(),
                    line_stride: block.line_stride * size_of::<T>(),
                    k: block.k / group,
                    lines: block.lines,
                    k_stride: 4,
                };
                transpose_units(units, panel.width, to.cast())
            }
            group if block.k_stride == 1 && group * size_of::<T>() == 64 => {
                copy_lines(block, panel, to)
            }
            1 if block.line_stride == 1 => copy_few(block, panel, to),
            _ => 0,
        };
        pack_elements(block, panel, done, to);
    }
}

/// Rows of B that are prefetched before they are copied. Rows lie pages apart, where the CPU's own
/// prefetchers do not follow; without this, packing waits for one line at a time.
const AHEAD: usize = 8;

/// Packs all groups from `first` on, element by element.
unsafe fn pack_elements<T: Copy + Default>(
    block: OperandLines<T>,
    panel: Panel,
    first: usize,
    to: *mut T,
) {
    for group in first..panel.len(block.k) / (panel.width * panel.group) {
        for line in 0..panel.width {
            for i in 0..panel.group {
                let k = group * panel.group + i;
                let at = (group * panel.width + line) * panel.group + i;
                // SAFETY: the element exists, and the panel has room for its place.
                unsafe {
                    let line = line.min(block.lines - 1);
                    let value = if k < block.k { *block.at(line, k) } else { T::default() };
                    *to.add(at) = value;
                }
            }
        }
    }
}

/// Panels that are packed together. So a row of B is read in pieces of a few cache lines, not of
/// one or two. The rows are in pages of their own.
const SPAN: usize = 4;

/// Each k is a row: pieces of `W` go to one panel each.
unsafe fn copy_rows<T: Copy, const W: usize>(
    block: OperandLines<T>,
    panel: Panel,
    to: *mut T,
) -> usize {
    let (panels, len) = (block.lines / W, panel.len(block.k));
    for first in (0..panels).step_by(SPAN) {
        let span = (panels - first).min(SPAN);
        for k in 0..block.k {
            block.prefetch([first * W, k + AHEAD], span * W);
            for i in first..first + span {
                // SAFETY: a row of `W` lines exists at each k, and the panels have room for it.
                unsafe {
                    let row = block.at(i * W, k).cast::<[T; W]>().read_unaligned();
                    to.add(i * len + k * W).cast::<[T; W]>().write_unaligned(row);
                }
            }
        }
    }
    panels
}

/// `G` k are `G` rows: pieces of `W` become `W` groups of one panel each. Past the end of k there
/// are zeros, and zeros fill the panel.
unsafe fn group_rows<T: Copy + Default, const W: usize, const G: usize>(
    block: OperandLines<T>,
    panel: Panel,
    to: *mut T,
) -> usize {
    let (panels, len) = (block.lines / W, panel.len(block.k));
    for first in (0..panels).step_by(SPAN) {
        let span = (panels - first).min(SPAN);
        for k in (0..len / W).step_by(G) {
            for i in 0..G {
                block.prefetch([first * W, k + i + AHEAD], span * W);
            }
            for i in first..first + span {
                // SAFETY: rows of `W` lines exist where they are read, and the panels have room for
                // their groups.
                unsafe {
                    let row = |k: usize| {
                        if k < block.k {
                            block.at(i * W, k).cast::<[T; W]>().read_unaligned()
                        } else {
                            [T::default(); W]
                        }
                    };
                    let rows: [[T; W]; G] = std::array::from_fn(|i| row(k + i));
                    let groups: [[T; G]; W] = std::array::from_fn(|line| rows.map(|row| row[line]));
                    to.add(i * len + k * W).cast::<[[T; G]; W]>().write_unaligned(groups);
                }
            }
        }
    }
    panels
}

/// Each k is a row, and groups are cache lines. `G` rows become units of four bytes, as
/// [`group_rows`] makes them. The units of each line then come together.
#[cfg(target_arch = "x86_64")]
unsafe fn turn_rows<T: Copy + Default, const G: usize>(
    block: OperandLines<T>,
    panel: Panel,
    to: *mut T,
) -> usize {
    const W: usize = 32;
    const UNITS: usize = 16;
    let grouped = Panel { group: G, ..panel };
    let mut units = [0_u32; UNITS * W];
    let panels = block.lines / W;
    for i in 0..panels {
        for k in (0..panel.len(block.k) / W).step_by(panel.group) {
            let part = OperandLines {
                from: block.at(i * W, k),
                lines: W,
                k: (block.k - k).min(panel.group),
                ..block
            };
            // SAFETY: the block has the part; `units` hold a group of k of `W` lines, and the panel
            // has room for them.
            unsafe {
                group_rows::<T, W, G>(part, grouped, units.as_mut_ptr().cast());
                let from = units.as_ptr().cast();
                let rows =
                    OperandLines { from, lines: UNITS, line_stride: 4 * W, k: W, k_stride: 4 };
                if transpose_units(rows, UNITS, to.add(i * panel.len(block.k) + k * W).cast()) == 0
                {
                    return i;
                }
            }
        }
    }
    panels
}

/// k side by side, in groups of a cache line. Returns the groups that it packed.
unsafe fn copy_lines<T: Copy>(block: OperandLines<T>, panel: Panel, to: *mut T) -> usize {
    let whole_groups = block.k / panel.group;
    for line in 0..panel.width {
        let from = block.at(line.min(block.lines - 1), 0);
        // Lines may lie pages apart, where the CPU's own prefetchers do not follow.
        block.prefetch([(line + 2).min(block.lines - 1), 0], whole_groups * panel.group);
        for group in 0..whole_groups {
            // SAFETY: the line's group exists, and the panel has room for it.
            unsafe {
                let from = from.add(group * panel.group);
                let to = to.add((group * panel.width + line) * panel.group);
                to.cast::<[u8; 64]>().write_unaligned(from.cast::<[u8; 64]>().read_unaligned());
            }
        }
    }
    whole_groups
}

/// Each k is a row, shorter than the panel: pieces of 8, 4, 2 and 1. Returns the groups that it
/// packed: all.
unsafe fn copy_few<T: Copy>(block: OperandLines<T>, panel: Panel, to: *mut T) -> usize {
    unsafe fn piece<T: Copy, const N: usize>(from: *const T, to: *mut T) {
        // SAFETY: `from` has `N` elements and `to` room for them; neither has to be aligned to all
        // of them.
        unsafe { to.cast::<[T; N]>().write_unaligned(from.cast::<[T; N]>().read_unaligned()) }
    }
    for k in 0..block.k {
        let to = to.wrapping_add(k * panel.width);
        let mut line = 0;
        // SAFETY: pieces add up to `lines`, which exist at each k; the panel is at least as wide.
        unsafe {
            while line + 8 <= block.lines {
                piece::<T, 8>(block.at(line, k), to.add(line));
                line += 8;
            }
            if block.lines & 4 != 0 {
                piece::<T, 4>(block.at(line, k), to.add(line));
                line += 4;
            }
            if block.lines & 2 != 0 {
                piece::<T, 2>(block.at(line, k), to.add(line));
                line += 2;
            }
            if block.lines & 1 != 0 {
                piece::<T, 1>(block.at(line, k), to.add(line));
            }
            let last = *block.at(block.lines - 1, k);
            std::slice::from_raw_parts_mut(to.add(block.lines), panel.width - block.lines)
                .fill(last);
        }
    }
    block.k
}
