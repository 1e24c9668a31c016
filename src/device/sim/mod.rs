//! The `sim` device: no arithmetic, a pseudo-model and a cost model.
