//! The tab of the text: the template as it is approved, or as it is offered.

use askama::Template;

use super::Looked;
use crate::console::filters;
use crate::pages::definition::Definition;
use crate::pages::message::ContentView;
use crate::pages::version::VersionView;
use crate::pages::{PageError, PageResult};
use crate::sign_in::Role;
use catalog::blocking::run_blocking;

/// The text of a prompt, and its arguments.
#[derive(Template)]
#[template(path = "prompt_text.html")]
pub(super) struct TextTab {
    name: String,
    definition: Definition,
    places: Vec<String>,
    text: ShownText,
}

/// The text, or why it is not shown.
enum ShownText {
    /// Visitors of this role read no texts.
    Hidden,
    /// Approvals of its upstream are off, so the gateway has not fetched the text.
    Unknown,
    Approved {
        by: String,
        at: String,
        version: VersionView,
        is_offered_so: bool,
    },
    Offered {
        version: VersionView,
    },
}

impl TextTab {
    fn has_text(&self) -> bool {
        match &self.text {
            ShownText::Approved { version, .. } | ShownText::Offered { version } => {
                version.has_text()
            }
            ShownText::Hidden | ShownText::Unknown => false,
        }
    }
}

/// Returns the text. Where approvals are on and have no text, it is fetched from the upstream.
pub(super) async fn text(looked: &Looked<'_>) -> PageResult<TextTab> {
    Ok(TextTab {
        name: looked.name.to_owned(),
        definition: looked.definition.clone(),
        places: looked.definition.places(),
        text: shown(looked).await?,
    })
}

async fn shown(looked: &Looked<'_>) -> Result<ShownText, PageError> {
    let Looked { state, request, visitor, name, item, .. } = *looked;
    if visitor.role < Role::Tester {
        return Ok(ShownText::Hidden);
    }
    let Some(row) = &looked.row else {
        let file = state.approvals.library_parts(&item.upstream, &item.raw_name).await;
        return Ok(match file {
            Some(parts) => ShownText::Offered { version: VersionView::of(&parts) },
            None => ShownText::Unknown,
        });
    };
    if let Some(decided) = row.approved() {
        let (approvals, version) = (state.approvals.clone(), decided.version.clone());
        let parts = run_blocking(move || approvals.version_parts(&version)).await;
        let version = VersionView::of(&parts);
        if version.has_text() {
            return Ok(ShownText::Approved {
                by: decided.attribution.by.clone(),
                at: decided.attribution.at.clone(),
                version,
                is_offered_so: !row.is_waiting(),
            });
        }
    }
    let shown = crate::approvals::show(state, name, request.until).await?;
    Ok(ShownText::Offered { version: VersionView::of(&shown.examined.offered_parts()) })
}
