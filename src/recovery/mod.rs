//! Recovery: computing, while nobody waits, what sparse requests left to be computed again.
//!
//! A request whose suffix was prefilled sparsely stores nothing behind its checkpoint, so the next request of the same history finds its suffix
//! longer by what both added. A *recovery job* prefills the prompt of such a request densely in the background, a slice at a time, and publishes
//! every whole block through the ordinary store, so that later requests restore it like any other.
//!
//! This module decides; it computes nothing and touches neither device nor cache. The parts, and what each is the only owner of:
//!
//! * [`arrivals`]: who is about to need the device, in all of the process;
//! * [`budget`]: how much of the wall's time background work may take, in all of the process;
//! * [`claim`]: which engine's slice runs, of which there is never more than one;
//! * [`standing`]: whether a slice may run now, and if not, whether unpublished state has to go;
//! * [`job`]: what is being recovered, how far it has come, and every way in which that ends;
//! * [`neighbours`]: what the engines of a process share of the above;
//! * [`adoption`]: how much of what is durable the next request is shown.
//!
//! Two things are told apart throughout. *Published* state is durable: it is in the cache, was read back through the lookup that serves requests, and
//! survives the job. *Live* state is what was computed since; it is disposable, costs less than a block to compute again, and goes whenever anybody
//! else wants the device.

pub mod adoption;
pub mod arrivals;
pub mod budget;
pub mod claim;
pub mod job;
pub mod neighbours;
pub mod standing;
