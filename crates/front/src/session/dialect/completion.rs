//! Values for the completion of an argument.

use super::result_meta::write_origin;
use super::result_writer::ResultWriter;
use catalog::reply::{Completion, ResultOrigin};

/// Writes the result of `completion/complete`.
pub(super) fn completion_result(
    completion: &Completion,
    origin: &ResultOrigin,
    writer: ResultWriter<'_>,
) -> String {
    let Completion { values, total, has_more } = completion;
    writer.text(
        |meta| write_origin(origin, meta),
        |result| {
            result.object("completion", |out| {
                out.written("values", |out| out.extend(["[", values, "]"]));
                if let Some(total) = total {
                    out.display("total", total);
                }
                if let Some(has_more) = has_more {
                    out.display("hasMore", has_more);
                }
            });
        },
    )
}
