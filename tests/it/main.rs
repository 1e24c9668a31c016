//! Integration tests, one binary: each area has a module.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cli;
mod cliff;
mod compare;
mod config;
mod identity;
mod invariants;
mod model;
mod platforms;
mod pty;
mod readme;
mod recordings;
mod recovery;
mod session;
mod sparse;
mod speculation_accounts;
mod tier;
mod tui;
