//! Texts and bytes, whatever their meaning.

pub mod chunks;
pub mod confusable;
pub mod glob;
pub mod line_decoder;
pub mod percent;
pub mod similar;
pub mod sse_decoder;
pub mod text_file;
pub(crate) mod token_fields;
