//! The filters of the templates.

#![expect(unreachable_pub, reason = "a macro makes types of the filters, with fields of its own")]

use std::time::SystemTime;

use askama::{Result, Values};

use super::page_of;
use super::prompt_text::PromptText;
use super::text::{self, Html, Moment, ShownText};
use base::platform::wall_clock;

/// Text of others: see [`ShownText`].
#[askama::filter_fn]
pub(crate) fn shown(text: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
    Ok(Html(ShownText(&text.to_string()).to_string()))
}

/// A time with its distance from now, in UTC.
#[askama::filter_fn]
pub(crate) fn moment(time: &SystemTime, _: &dyn Values) -> Result<Html> {
    let time = humantime::format_rfc3339_seconds(*time).to_string();
    Ok(Moment::read(&time).beside(wall_clock()))
}

/// A time that stands as RFC 3339 in a record or a file, with its distance from now.
#[askama::filter_fn]
pub(crate) fn short_time(text: &str, _: &dyn Values) -> Result<Html> {
    Ok(Moment::read(text).beside(wall_clock()))
}

/// The distance of a time (RFC 3339) from now, for a row of a table: the time is its title.
#[askama::filter_fn]
pub(crate) fn ago(time: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
    Ok(Moment::read(&time.to_string()).ago(wall_clock()))
}

/// The distance from now of a [`SystemTime`]; the time is its title.
#[askama::filter_fn]
pub(crate) fn since(time: &SystemTime, _: &dyn Values) -> Result<Html> {
    let time = humantime::format_rfc3339_seconds(*time).to_string();
    Ok(Moment::read(&time).ago(wall_clock()))
}

/// The beginning of a digest, which can be copied whole.
#[askama::filter_fn]
pub(crate) fn digest(digest: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
    Ok(text::digest(&digest.to_string()))
}

/// The text of a prompt: see [`PromptText`].
#[askama::filter_fn]
pub(crate) fn prompt_text(
    text: impl AsRef<str>,
    _: &dyn Values,
    places: &[String],
) -> Result<Html> {
    Ok(Html(PromptText { text: text.as_ref(), places }.to_string()))
}

/// A duration in microseconds.
#[askama::filter_fn]
pub(crate) fn millis(micros: &u64, _: &dyn Values) -> Result<String> {
    Ok(match micros {
        0..100 => "< 0.1 ms".to_owned(),
        _ => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
    })
}

/// A number with as many digits as people need.
#[askama::filter_fn]
pub(crate) fn number(value: &f64, _: &dyn Values) -> Result<String> {
    Ok(crate::console::plot::number(*value))
}

/// A count, with its thousands apart.
#[askama::filter_fn]
pub(crate) fn thousands(count: &u64, _: &dyn Values) -> Result<String> {
    Ok(text::thousands(*count))
}

/// The path of the page of a prompt or skill, by its public name.
#[askama::filter_fn]
pub(crate) fn page(name: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
    Ok(Html(page_of(&name.to_string())))
}

/// A text as one segment of a path.
#[askama::filter_fn]
pub(crate) fn segment(text: impl std::fmt::Display, _: &dyn Values) -> Result<Html> {
    Ok(Html(domain::text::percent::encoded_segment(&text.to_string())))
}
