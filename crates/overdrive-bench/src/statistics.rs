//! The statistics behind every figure: exact where an exact method exists, seeded where one
//! resamples.
//!
//! Everything rests on [`Sorted`], a non-empty sorted slice of finite numbers, so that no function
//! here has to say what the median of nothing is. No sample is ever dropped: [`Sorted::fence`]
//! labels, and the one mean that trims says so in its name.

mod aggregate;
mod bootstrap;
mod normal;
mod order;
mod spread;
mod student;
mod summary;

pub use aggregate::{GeometricMean, geometric_mean};
pub use bootstrap::{Ratio, ratio_of_medians};
pub use normal::{normal_quantile_of_tail, normal_tail};
pub use order::{CONFIDENCE, Interval, Sorted};
pub use spread::Fence;
pub(crate) use spread::MAD_TO_SIGMA;
pub use student::student_quantile;
pub use summary::{MedianInterval, Summary};
