//! The gate against invented machines: how often it is wrong, and that nothing is lost.

mod clocked;
mod error_rates;
mod forms;
mod invented;
mod sessions;
