//! Ranks that are processes, over TCP: to meet, and for small exchanges.
//!
//! A star: every rank has one connection, to rank 0. In the process of rank 0 each of the others
//! has a member of a [`Meeting`](crate::Meeting), which takes part for it. So exchanges, and the
//! blame for failed ones, are written once. All bytes pass through rank 0. That suits control
//! messages and small groups of CPUs; GPUs exchange their tensors by NCCL. Nothing is encrypted,
//! and whoever can reach the port can take part. So use it on trusted networks only.

mod address;
mod alive;
mod first;
mod join;
mod other;

pub(crate) use join::join;
