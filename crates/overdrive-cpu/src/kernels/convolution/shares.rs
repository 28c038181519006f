//! How small images are shared among threads: how many a span holds, and into how many tasks its
//! output channels are cut.
//!
//! Each task makes the panels of its span itself and reads its weights once. So fewer and longer
//! spans read the weights less often, and cuts of the output channels make the panels more than
//! once. Sums depend on neither.

/// The work to share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    pub(super) images: usize,
    /// Pixels of an image, and the images of a span at most.
    pub(super) pixels: usize,
    pub(super) most: usize,
    pub(super) groups: usize,
    /// Panels of output channels of a group.
    pub(super) panels: usize,
    /// Rows and columns of the micro-kernel.
    pub(super) tile: [usize; 2],
}

/// Images of a span, and cuts of the output channels of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) images: usize,
    pub(super) cuts: usize,
}

/// Cost of making a row of a panel of pixels. The unit is the cost of one of its products, an
/// output channel of it.
const MAKE: usize = 12;

/// Cost for a row of a panel of weights to arrive, from the third cache mostly, per output channel
/// and twice.
const ARRIVE: usize = 1;

impl Shares {
    /// The share whose tasks are over first.
    pub(super) fn best(&self, threads: usize) -> Share {
        let least = self.images.div_ceil(self.most);
        let spans = least..=(least + 2 * threads).min(self.images);
        let images = spans.map(|spans| self.images.div_ceil(spans));
        let shares = images.flat_map(|images| {
            (1..=threads.min(self.panels).max(1)).map(move |cuts| Share { images, cuts })
        });
        shares.min_by_key(|&share| self.time(share, threads)).expect("there is a share")
    }

    /// About how long a share takes for each row of panels, in half cycles of a panel of vectors.
    fn time(&self, Share { images, cuts }: Share, threads: usize) -> usize {
        let tasks = self.images.div_ceil(images) * self.groups * cuts;
        let columns = (images * self.pixels).div_ceil(self.tile[1]);
        let outputs = self.panels.div_ceil(cuts) * self.tile[0];
        tasks.div_ceil(threads) * (2 * columns * (outputs + MAKE) + ARRIVE * outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_pass_once_and_every_thread_has_something_to_do() {
        let of = |images: usize, pixels: usize, outputs: usize| Shares {
            images,
            pixels,
            most: 256 / pixels,
            groups: 1,
            panels: outputs.div_ceil(14),
            tile: [14, 32],
        };
        // One panel of pixels: both threads make it, each for half of the outputs.
        assert_eq!(of(8, 4, 512).best(2), Share { images: 8, cuts: 2 });
        // Two full spans.
        assert_eq!(of(8, 64, 128).best(2), Share { images: 4, cuts: 1 });
        // One image.
        assert_eq!(of(1, 225, 512).best(2), Share { images: 1, cuts: 2 });
        assert_eq!(of(1, 225, 1).best(2), Share { images: 1, cuts: 1 });
    }
}
