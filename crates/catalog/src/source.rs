//! Upstreams as sources of prompts: owns the rules for making and comparing their names.

use std::borrow::Cow;
use std::sync::Arc;

use unicode_normalization::UnicodeNormalization;

use super::approval::ApprovalSettings;
use config::{Config, Transport, offers_as_skills};
use domain::name::{Prefix, UpstreamId};
use domain::prompts::hidden_text::HiddenText;
use domain::prompts::overlay::Overlay;
use upstream::driver::DriverId;

/// The driver of an upstream, and the names of its prompts.
#[derive(Clone, Debug)]
pub struct UpstreamSource {
    pub driver: DriverId,
    pub id: UpstreamId,
    pub prefix: Prefix,
    /// The overlays of the upstream, in the order of the file.
    pub overlays: Arc<[Overlay]>,
    pub approvals: ApprovalSettings,
    /// Whether each skill becomes a prompt, too.
    pub skills_as_prompts: bool,
    /// `Some` if each prompt without required arguments becomes a skill, with its text so treated.
    pub prompts_as_skills: Option<HiddenText>,
    /// Where labels of its prompts move: `file`, `commit`, `store`; `server` without labels.
    pub labels_via: &'static str,
}

impl UpstreamSource {
    /// The source of an enabled upstream.
    pub fn new(driver: DriverId, upstream: &config::UpstreamSettings, config: &Config) -> Self {
        let overlays = config.overlays.iter().filter(|overlay| overlay.upstream == upstream.id);
        Self {
            driver,
            id: upstream.id.clone(),
            prefix: upstream.prefix.clone(),
            overlays: overlays.cloned().collect(),
            approvals: ApprovalSettings::new(&config.approvals, &upstream.id),
            skills_as_prompts: upstream.skills_as_prompts,
            prompts_as_skills: offers_as_skills(config, &upstream.id)
                .then_some(upstream.settings.content),
            labels_via: match upstream.transport {
                Transport::Library(_) => "file",
                Transport::Git(_) => "commit",
                Transport::Store(_) => "store",
                _ => "server",
            },
        }
    }
}

/// The composed form (NFC): look-alike names that differ in composition become equal.
pub(crate) fn composed(name: &str) -> Cow<'_, str> {
    if name.is_ascii() { Cow::Borrowed(name) } else { Cow::Owned(name.nfc().collect()) }
}
