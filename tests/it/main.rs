//! Integration tests, one binary: each area has a module.

mod cli;
