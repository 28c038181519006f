//! A caching allocator with size classes. Eager execution allocates from it, as eager frameworks
//! do.
//!
//! A freed block waits in the list of its class for the next request, so that from the second call
//! on nothing reaches the system. Four classes to each power of two bound the waste at a quarter.
//! Invariant: a block in use is in no list.

use std::collections::BTreeMap;

use overdrive_ir::BackendError;

use crate::memory::AlignedBytes;

/// The smallest class in bytes; smaller requests share it, as in PyTorch's caching allocator.
const SMALLEST: usize = 512;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct SizeClasses {
    /// Blocks that nobody uses, by size.
    free: BTreeMap<usize, Vec<AlignedBytes>>,
    in_use: usize,
    peak: usize,
}

/// `bytes` rounded up to four classes per power of two.
fn class_of(bytes: usize) -> usize {
    let bytes = bytes.max(SMALLEST);
    let step = (bytes - 1).ilog2().saturating_sub(2);
    bytes.next_multiple_of(1 << step)
}

impl SizeClasses {
    /// A block of at least `bytes`; its content means nothing.
    ///
    /// # Errors
    /// `OutOfMemory` when no block waits and the system refuses.
    pub(super) fn take(&mut self, bytes: usize) -> Result<AlignedBytes, BackendError> {
        let class = class_of(bytes);
        let waiting = self.free.get_mut(&class).and_then(Vec::pop);
        let block = match waiting {
            Some(block) => block,
            None => AlignedBytes::filled(class, 0)?,
        };
        self.in_use += class;
        self.peak = self.peak.max(self.in_use);
        Ok(block)
    }

    /// Gives a block back.
    pub(super) fn give_back(&mut self, block: AlignedBytes) {
        self.in_use -= block.len();
        self.free.entry(block.len()).or_default().push(block);
    }

    /// The most bytes that were in use at a time.
    pub(super) fn peak_bytes(&self) -> usize {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        assert_eq!([1, 512, 513, 640, 641].map(class_of), [512, 512, 640, 640, 768]);
        for bytes in (SMALLEST..1 << 16).step_by(37) {
            let class = class_of(bytes);
            assert!(class >= bytes && class - bytes <= bytes / 4, "{bytes} in {class}");
            assert_eq!(class_of(class), class);
        }
    }

    #[test]
    fn a_block_given_back_serves_the_next_request_of_its_class() {
        let mut classes = SizeClasses::default();
        let first = classes.take(1000).unwrap();
        let second = classes.take(1000).unwrap();
        let address = first.start();
        assert_ne!(address, second.start());
        classes.give_back(first);
        assert_eq!(classes.take(900).unwrap().start(), address);
        assert_eq!(classes.peak_bytes(), 2 * class_of(1000));
    }
}
