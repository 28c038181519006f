//! See what a call needs: the heap and the resident set before and at their highest.
//!
//! `cargo run --release --example memory_around_a_call`

use overdrive::bench::memory::{CountingAllocator, peak_during};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() {
    let kept = vec![1u8; 8 << 20];
    let (length, usage) = peak_during(Some(&HEAP), || {
        let scratch: Vec<u64> = (0..1 << 20).collect();
        scratch.iter().filter(|x| *x % 3 == 0).count()
    });
    println!("counted {length}, beside {} bytes that were there", kept.len());
    if let Some(heap) = usage.heap {
        println!(
            "heap: {} bytes before, {} added at the peak",
            heap.before_bytes,
            heap.added_bytes()
        );
    }
    match usage.resident {
        Some(resident) => println!("resident: {} bytes added at the peak", resident.added_bytes()),
        None => println!("resident: not recorded, the kernel does not let its mark be reset"),
    }
}
