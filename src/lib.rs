//! escarp is a terminal workbench for inference research: an LLM engine in process under a terminal interface.
//!
//! An agent's next request is mostly its previous request again. So an inference optimisation must be judged by what it
//! leaves behind for the requests after it. escarp replays a coding agent's session turn by turn and shows, request by
//! request, where the reusable *checkpoint* stands, how long the *uncached suffix* is, and why.
//!
//! # Bird's eye
//!
//! ```text
//!  session file ── session::Player ── turn ──┐                        ┌── tui      (panes)
//!                                            ▼                        │
//!   commands ───────────────────────▶ engine thread ── events ── ledger ── report (tables, JSON)
//!                                     host · scheduler                │
//!                                       │        │                    └── recorder (a file that opens in the same views)
//!                             model::text     cache
//!                          (tokens, segments) (blocks, restore)
//!                                       │        │
//!                          device::Executor: cpu · mlx · sim, and a second one: prefill::scorer
//! ```
//!
//! A request's way is one-directional: session → rendered tokens → scheduler → restore → prefill → decode → store →
//! events → ledger → pane, table or file.
//!
//! # Code map
//!
//! * [`event`]: everything the outside learns about a run, how it is handed over without waiting, and its form on disk.
//! * [`ledger`]: the one fold over events. The interface, `replay` and a recorded run show the same facts because they
//!   read the same fold.
//! * [`session`]: the session file, and the player that walks through it, injects turns and forks history.
//! * [`model`]: model files, the bundled models, tokenizer, chat template with a segment for every token, and one decoder for all
//!   architectures, written against [`device::ops::Device`].
//! * [`device`]: the seam between models and arithmetic. `cpu` has kernels of its own, `mlx` builds
//!   graphs for Apple's GPU, `sim` is a pseudo-model with a cost model. [`device::identity`] measures what another route changes.
//! * [`cache`]: hash-chained blocks, pages and slots with their holders, snapshots of recurrent state, the prefix index, the tier on
//!   disk, and the restore with its named losses.
//! * [`prefill`]: which tokens of a suffix are computed, and in which pieces; the scorer of sparse prefill and its rules.
//! * [`decode`]: how a token is chosen; for speculative decoding the drafters, which drafted tokens stand, what chooses the depth, and the accounts
//!   of what it costs and gives.
//! * [`recovery`]: the rules of background recovery: arrivals, budget, claim, standing, job, adoption. Pure but for what engines of a process share.
//! * [`engine`]: the thread that owns all of the above, its clock, its scheduler of many sequences, its background work, its lanes, which run side by
//!   side. It folds its own events as well, to stop at a breakpoint in the step in which it comes true. [`engine::measure`] is what a bench asks for.
//! * [`compare`]: several engines on the same session, stepped together, and what sets them apart.
//! * [`config`]: typed TOML; one source of defaults.
//! * [`tui`], [`report`], [`cli`]: views. They see commands, events, and what [`ledger`] and [`compare`] make of these; the interface's explorer
//!   also asks the pure rules of [`prefill::sparse`] what another choice would keep.
//!
//! # Invariants, and what is deliberately absent
//!
//! * **The engine knows nothing of terminals, command lines or async runtimes**, and never waits for a consumer. A
//!   consumer that falls behind loses events; the loss is counted and shown.
//! * **The interface never touches a tensor, a page or a scheduler.** It sends [`engine::Command`]s and folds
//!   [`event::Event`]s; there is no other way in or out.
//! * **The fold is total and deterministic.** Any event in any order is accepted; equal events give equal
//!   [`ledger::Ledger::facts_hash`]es.
//! * **Null is not zero.** What nobody measured is `None` from the kernel's timer to the cell, which shows `–`.
//! * **Equal bits by every route** on `cpu`: a token's state and logits depend on the tokens and positions before it, not on chunk
//!   size, batch, restore point, thread count or instruction set. So restored state *is* recomputed state, and a difference
//!   on the screen is caused by the mechanism under study. See [`device::cpu`].
//! * **Want of room costs time, not requests.** Where there is none for all that run, the one admitted last makes way: what may be kept of it is stored,
//!   and it goes on from there to the same tokens. Only a request that does not fit alone ends with an error.
//! * **A page or a snapshot is immutable once it is indexed.** Restoring is sharing: a span reads the state it starts from in one
//!   slot and writes another. A reference that outlived what it was made for is caught by its generation before anything is
//!   read through it.
//! * **Sparse state stays out of the dense key space.** A sequence that skipped tokens keeps what it computed in *places*, one after another, and
//!   rotates by the original positions; nothing behind its first skipped token is ever stored, nor anything computed after it. With
//!   nothing skipped, places are positions and the run is the dense one bit for bit.
//! * **What was drafted leaves no trace.** A forward over drafted tokens starts from one slot and writes another, so what does not stand is taken
//!   back to the bits of ordinary decoding; an audit can compare the two in every cycle. Nothing is drafted beyond a boundary that is to be
//!   captured, and the prediction head's entries that rest on its own guesses are written anew before a page is stored.
//! * **Whoever waits comes first.** A recovery job runs while nobody is served or announced, in all of the process, and gives way between two layers.
//!   What it computed since it last published goes within a step; what it published was read back through the lookup that serves requests.
//! * **State is of two kinds.** Attention state can be cut at any block boundary; recurrent state exists only where it was
//!   captured, and a span says which slot it reads and which it writes ([`device::StateFlow`]).
//! * **Every token of an uncached suffix has a reason.** The losses of a restore add up to the suffix, always. The engine observes every
//!   cause, so none is ever unknown.
//! * **What comes from disk is checked before it is state**: identity, layers, place in the chain, tokens, every bit. What fails is moved aside and
//!   computed anew; a disk that is slow, full or gone costs time and nothing else. Nothing waits for a write.
//! * **Files from outside are hostile until parsed**: sizes are bounded before anything is allocated, and an error names
//!   file, place and remedy.
//! * **No part but `device` knows which device it runs on.** What a device promises about bits, and what memory it has left, are facts the
//!   seam tells: [`device::ExecutorFacts`], [`device::Executor::admits`].
//! * Unsafe code lives in `device::cpu` kernels, in terminal plumbing, and in the one C symbol that MLX's bindings miss on Linux.

pub mod cache;
pub mod cli;
pub mod compare;
pub mod config;
pub mod decode;
pub mod device;
pub mod engine;
pub mod event;
pub mod ledger;
pub mod model;
pub mod prefill;
pub mod recovery;
pub mod report;
pub mod session;
pub mod tui;
