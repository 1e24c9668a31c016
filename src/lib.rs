//! escarp: a terminal workbench for inference research.

pub mod cache;
pub mod cli;
pub mod config;
pub mod decode;
pub mod device;
pub mod engine;
pub mod event;
pub mod ledger;
pub mod model;
pub mod prefill;
pub mod report;
pub mod session;
pub mod tui;
