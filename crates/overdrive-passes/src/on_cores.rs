//! Work on each of several items, layers of a model or plans of it, on all cores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Weights that are in work at once, unless a single layer has more. Their values and codes in f64
/// take 16 bytes each.
const AT_ONCE: usize = 1 << 26;
/// The stack of a thread: passes descend as deep as a graph's chains are long.
const STACK_BYTES: usize = 64 << 20;

/// The results of `work` on each item, in the order of the items. An item has as many weights as
/// `weights` says.
pub(crate) fn on_cores<T: Sync, R: Send>(
    items: &[T],
    weights: impl Fn(&T) -> usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let largest = items.iter().map(weights).max().unwrap_or(0).max(1);
    let threads = cores.min(AT_ONCE / largest).min(items.len());
    if threads <= 1 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take = &|| {
        let mut done = Vec::new();
        while let Some((at, item)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, item))
        } {
            done.push((at, work(item)));
        }
        done
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        // This thread works too, alone if the system gives no other.
        let worker =
            |_| thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, take).ok();
        let others: Vec<_> = (1..threads).filter_map(worker).collect();
        let mut all = take();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1000).collect();
        for weights in [1, AT_ONCE, 2 * AT_ONCE] {
            let found = on_cores(&items, |_| weights, |item| 3 * item);
            assert!(found.iter().zip(&items).all(|(result, item)| *result == 3 * item));
            assert_eq!(found.len(), items.len());
        }
        assert!(on_cores(&[] as &[usize], |_| 1, |item| *item).is_empty());
    }
}
