//! Work on each layer of a model, on all cores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Weights that are in work at once, unless a single layer has more. Their values and codes in f64
/// take 16 bytes each.
const AT_ONCE: usize = 1 << 26;

/// The results of `work` on each item, in the order of the items. An item has as many weights as
/// `weights` says.
pub(super) fn on_cores<T: Sync, R: Send>(
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
    let take = || {
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
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Vec<_>>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().flat_map(join).collect()
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
