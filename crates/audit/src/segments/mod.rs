//! The files of a log: segments, their headers, and their state after a crash.

pub(crate) mod closed_segment;
pub(crate) mod compressor;
pub(crate) mod folder;
pub(crate) mod header;
pub(crate) mod recover;
pub(crate) mod segment_reader;
