//! The `cpu` device: own kernels, chosen at run time, the same bits by every route.
