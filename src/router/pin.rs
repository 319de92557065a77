//! Pins in the catalog: which form of each prompt is served, and what a get is compared with.

use std::sync::Arc;

use crate::config::Releases;
use crate::config::lock::{Lock, LockStore, ObjectError};
use crate::domain::json::Json;
use crate::domain::json::canonical::write_canonical;
use crate::domain::name::UpstreamId;
use crate::domain::pin::{
    Decision, DigestText, Mode, NO_ARGUMENTS, Offered, Pin, Serving, State, Version,
};
use crate::domain::prompt::Prompt;

/// The pins of one upstream, as the configuration says.
#[derive(Clone, Debug)]
pub(crate) struct Pinning {
    pub mode: Mode,
    pub lock: Arc<Lock>,
    pub store: Arc<LockStore>,
    pub snapshot: bool,
}

impl Pinning {
    pub(crate) fn new(releases: &Releases, upstream: &UpstreamId) -> Self {
        Self {
            mode: releases.mode_of(upstream),
            lock: releases.lock.clone(),
            store: Arc::new(releases.store.clone()),
            snapshot: releases.snapshot,
        }
    }

    /// Reads the approved form of a prompt that is offered in another form.
    ///
    /// # Errors
    /// Its object cannot be had, or is none of the prompt.
    pub(super) fn approved_form(
        &self,
        version: &Version,
        offered: &Prompt,
    ) -> Result<Prompt, String> {
        let text = self.store.object(&version.definition).map_err(|error| error.to_string())?;
        let definition = Json::parse(text.as_bytes(), DEPTH).ok();
        let form = definition.and_then(|definition| Prompt::approved(definition, offered));
        form.ok_or_else(|| format!("its object {} is no definition", version.definition))
    }
}

/// JSON depth of objects: they were accepted before.
pub(super) const DEPTH: usize = 256;

/// What pins say of a listed prompt.
#[derive(Clone, Debug, Default)]
pub struct PromptPin {
    pub state: State,
    /// Whether it is served although the offered version is not the approved one.
    pub is_tolerated: bool,
    /// The approved version, if there is one and it has more than a definition.
    pub approved: Option<Arc<ApprovedTexts>>,
}

/// The approved version of a prompt, with which gets are compared.
#[derive(Debug)]
pub struct ApprovedTexts {
    /// Whether other texts are refused.
    pub is_enforced: bool,
    /// Whether the text without arguments is served if the upstream does not offer it.
    pub has_snapshot: bool,
    pub version: Version,
    pub(super) store: Arc<LockStore>,
}

impl ApprovedTexts {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_enforced == other.is_enforced
            && self.has_snapshot == other.has_snapshot
            && self.version == other.version
    }

    /// Returns the digest of the approved text for the arguments that a client gives; `None` where none is pinned.
    pub(super) fn text(&self, arguments: Option<Json<'_>>) -> Option<&DigestText> {
        let texts = &self.version.texts;
        let arguments = arguments.filter(|arguments| arguments.members().next().is_some());
        let Some(arguments) = arguments else {
            return texts.get(NO_ARGUMENTS);
        };
        let has_others = texts.keys().any(|pinned| &**pinned != NO_ARGUMENTS);
        if !has_others {
            return None;
        }
        let mut canonical = String::new();
        write_canonical(arguments, &mut canonical);
        texts.get(canonical.as_str())
    }

    /// Reads the approved text without arguments. Blocks.
    ///
    /// # Errors
    /// There is none, or its object cannot be had.
    pub(super) fn snapshot(&self) -> Option<Result<String, ObjectError>> {
        Some(self.store.object(self.version.texts.get(NO_ARGUMENTS)?))
    }
}

/// A prompt that is offered or pinned, for those who decide.
#[derive(Clone, Debug)]
pub(crate) struct PinRow {
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    /// The name under which it is listed, or would be.
    pub public_name: String,
    pub mode: Mode,
    /// What is offered; `None` if the upstream does not list the prompt, or has no list.
    pub offered: Option<OfferedPrompt>,
    pub pin: Option<Pin>,
    pub decision: Decision,
    /// Why the decision could not be carried out.
    pub problem: Option<String>,
}

/// The version that an upstream offers.
#[derive(Clone, Debug)]
pub(crate) struct OfferedPrompt {
    /// The effective definition.
    pub prompt: Arc<Prompt>,
    pub version: Offered,
}

impl PinRow {
    /// Whether the prompt is held back: offered, and not listed.
    pub(crate) fn is_held(&self) -> bool {
        self.offered.is_some()
            && (self.decision.serving == Serving::Nothing || self.problem.is_some())
    }
}
