//! Streaming: the copy that shows how fast this machine's memory is, as a ceiling for whatever
//! reads and writes.
// Vector stores past the cache, and a destination that several threads share by parts.
#![allow(unsafe_code)]

use crate::threads::{Apart, Pool};

/// How results are written.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Through the caches, which read each line before it is written.
    Cached,
    /// By non-temporal stores, where the CPU has them: for results that are larger than the caches.
    Streaming,
}

/// Bytes that a task copies: more than the prefetchers take to start, less than a core's
/// second-level cache.
const TASK_BYTES: usize = 256 << 10;

/// Copies `src` to `dst` with all threads of the pool.
///
/// # Panics
/// If the lengths differ.
pub fn copy(pool: &Pool, src: &[u8], dst: &mut [u8], write: Write) {
    assert_eq!(src.len(), dst.len(), "a copy is as long as its source");
    let to = Apart::new(dst.as_mut_ptr());
    pool.run(src.len().div_ceil(TASK_BYTES), |task, _| {
        let part = &src[task * TASK_BYTES..src.len().min((task + 1) * TASK_BYTES)];
        // SAFETY: the part lies within `dst`, which is borrowed for the call, and no other task has
        // it.
        unsafe {
            let to = to.at(task * TASK_BYTES);
            match write {
                Write::Cached => std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()),
                Write::Streaming => copy_past_caches(part.as_ptr(), to, part.len()),
            }
        }
    });
}

/// Copies `len` bytes by non-temporal stores; without AVX-512, through the caches.
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`.
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if crate::isa::InstructionSet::Avx512.is_usable() {
        // SAFETY: both sides have `len` bytes and share none; the CPU has AVX-512.
        unsafe { store_past_caches(from, to, len) };
        return fence();
    }
    // SAFETY: both sides have `len` bytes and share none.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies `len` bytes by non-temporal stores. Readers on other cores see them after this one's next
/// [`fence`].
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`, on a CPU with AVX-512F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn store_past_caches(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    let head = to.align_offset(64).min(len);
    let lines = (len - head) / 64;
    let done = head + lines * 64;
    // SAFETY: head, whole lines and tail are the `len` bytes; streamed lines are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * 64;
            _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
        }
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
}

/// Makes the non-temporal stores of this core visible before its later stores.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// The cache that a prefetch fills.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Near {
    First,
    /// The second level: for lines that are read after more than the first level holds.
    Second,
}

/// Prefetches a cache line.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8, near: Near) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch never faults, wherever it points.
        unsafe {
            match near {
                Near::First => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
                Near::Second => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (line, near);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    #[test]
    fn copies_whole_from_any_alignment() {
        let pool = Pool::new(NonZeroUsize::new(2).unwrap()).unwrap();
        for len in [0, 1, 63, 64, 65, 1000, TASK_BYTES + 7, 3 * TASK_BYTES] {
            let src: Vec<u8> = (0..len + 3).map(|i| (i * 31 % 251) as u8).collect();
            for write in [Write::Cached, Write::Streaming] {
                let mut dst = vec![0u8; len + 5];
                copy(&pool, &src[3..], &mut dst[5..], write);
                assert!(dst[..5] == [0; 5] && dst[5..] == src[3..], "{write:?} {len}");
            }
        }
    }
}
