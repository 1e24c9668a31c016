//! Recordings: an event stream as versioned JSON lines.
