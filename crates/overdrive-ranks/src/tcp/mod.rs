//! Ranks that are processes, over TCP: to meet, and for small exchanges.
//!
//! A star: every rank has one connection, to rank 0. In the process of rank 0 each of the others
//! has a member of a [`Meeting`](crate::Meeting), which takes part for it. So what an exchange is,
//! and who is to blame when one fails, is written once. All bytes pass through rank 0: right for
//! control and for small groups of CPUs, while GPUs exchange their tensors by NCCL. Nothing is
//! encrypted, and whoever can reach the port can take part: meet on networks that are yours.

mod address;
mod first;
mod join;
mod other;

pub(crate) use join::join;
