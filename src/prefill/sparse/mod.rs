//! The rules of sparse prefill: when a suffix is computed sparsely, what is scored, what is kept, and where it is computed.
//!
//! Everything here is a pure function of counts and scores. In the order they are asked:
//!
//! 1. [`resolve`] says what settings hold for a request, and who set them; [`admit`] decides, once the restore is done, whether the suffix is worth scoring, and where the *scoring window* begins.
//! 2. [`last_reachable_boundary`] says where the scorer can leave a snapshot on its way through the window.
//! 3. [`importance`] and [`unit_scores`] make one score a unit of what the scorer's queries see in the window's keys.
//! 4. [`select`] chooses the units.
//! 5. [`Plan::new`] gives the positions that the target computes.
//!
//! The algorithm is that of Liu, Chen and Zhang, "Speculative Prefill" (2025, arXiv 2502.02789); admission, scoring window and selection are as
//! the study of Oliver Yu measured them on a runtime that serves it ("Reusable State Dynamics in Interactive LLM Inference", CC BY 4.0).

mod admission;
mod boundary;
mod importance;
mod plan;
mod selection;
mod settings;

pub use admission::{Admission, admit};
pub use boundary::last_reachable_boundary;
pub use importance::{importance, unit_scores};
pub use plan::Plan;
pub use selection::{Selection, select};
pub use settings::resolve;
