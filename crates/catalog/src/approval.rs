//! Approvals in the catalog: choose each prompt's served form, and the texts to compare gets with.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::blocking::run_blocking;
use config::ApprovalRules;
use config::lock::{Lock, LockFile, ObjectError};
use domain::approval::template::fill;
use domain::approval::{
    Approval, ApprovalKind, ApprovalState, Decided, Decision, DigestText, Form, Mode, NO_ARGUMENTS,
    Offered, Serving, TemplateArguments, Version,
};
use domain::calls::rights::PromptRef;
use domain::json::Json;
use domain::json::canonical::write_canonical_object;
use domain::name::UpstreamId;
use domain::prompts::call_overlay::CallOverlay;
use domain::prompts::prompt::{Argument, Prompt};
use domain::prompts::skill::Skill;
use domain::time::distance::distance;
use upstream::Upstream;

/// The configured approvals of one upstream.
#[derive(Clone, Debug)]
pub struct ApprovalSettings {
    pub mode: Mode,
    pub lock: Arc<Lock>,
    pub store: Arc<LockFile>,
    pub snapshot: bool,
}

impl ApprovalSettings {
    pub fn new(approvals: &ApprovalRules, upstream: &UpstreamId) -> Self {
        Self {
            mode: approvals.mode_of(upstream),
            lock: approvals.lock.clone(),
            store: Arc::new(approvals.store.clone()),
            snapshot: approvals.snapshot,
        }
    }

    /// Reads the approved form of a prompt whose offered form differs.
    pub(crate) fn approved_form(
        &self,
        version: &Version,
        offered: &Prompt,
    ) -> Result<Prompt, String> {
        let form = self.form(version, |definition| Prompt::approved(definition, offered))?;
        if form.listed_name() != offered.listed_name() {
            return Err("its approved definition has another name".to_owned());
        }
        Ok(form)
    }

    /// Reads an approved version of a prompt with versions, as the form that serves it under the
    /// name of `named`.
    pub(crate) fn approved_version(
        &self,
        version: &Version,
        named: &Prompt,
    ) -> Result<Prompt, String> {
        self.form(version, |definition| Prompt::of_content(definition, named))
    }

    fn form(
        &self,
        version: &Version,
        read: impl FnOnce(Json<'_>) -> Option<Prompt>,
    ) -> Result<Prompt, String> {
        let text = self.store.object(&version.definition).map_err(|error| error.to_string())?;
        let form = Json::parse(text.as_bytes(), DEPTH).ok().and_then(read);
        form.ok_or_else(|| format!("its object {} is no definition", version.definition))
    }

    /// Reads the approved form of the skill with this path.
    ///
    /// # Errors
    /// The object cannot be read, or does not hold this skill.
    pub fn approved_skill(&self, version: &Version, path: &str) -> Result<Skill, String> {
        let text = self.store.object(&version.definition).map_err(|error| error.to_string())?;
        let entry = Json::parse(text.as_bytes(), DEPTH).ok();
        let skill = entry.and_then(|entry| Skill::read(entry).ok());
        let is_own = |skill: &Skill| *skill.path == *path && skill.digests() == version.files;
        let other = || format!("its object {} is no entry of it", version.definition);
        skill.filter(is_own).ok_or_else(other)
    }
}

/// JSON depth of objects, which were checked at their approval.
pub const DEPTH: usize = 256;

/// The source of a listed prompt or skill.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Availability {
    /// The upstream, which lists it.
    #[default]
    Listed,
    /// The approved snapshot alone: the upstream has no list, or offers another version.
    SnapshotOnly,
}

/// The approval of a listed prompt.
#[derive(Clone, Debug, Default)]
pub struct PromptApproval {
    pub state: ApprovalState,
    /// Whether the prompt is served although the offered version is not the approved version.
    pub is_tolerated: bool,
    pub availability: Availability,
    /// The approved version, if it covers more than the definition.
    pub approved: Option<Arc<ApprovedTexts>>,
    /// Whether an approved version is served in the place of the offered version.
    pub is_held: bool,
}

/// The approved version of a prompt, to compare gets with.
#[derive(Debug)]
pub struct ApprovedTexts {
    /// Whether unapproved texts are refused.
    pub is_enforced: bool,
    /// Whether the approved text is served if the upstream does not offer this text.
    pub has_snapshot: bool,
    pub version: Version,
    templates: Vec<ApprovedTemplate>,
    store: Arc<LockFile>,
}

/// The approved text for the arguments of a get, or the template that covers the arguments.
enum Found<'a> {
    Known(Option<ExpectedText<'a>>),
    /// The covering template, and the members of the arguments.
    Template(&'a ApprovedTemplate, Vec<(Json<'a>, Json<'a>)>),
}

/// An approved text with places for arguments, and its variants.
#[derive(Debug)]
struct ApprovedTemplate {
    arguments: TemplateArguments,
    key: Arc<str>,
    /// The digest of the text, followed by the digests of its variants.
    digests: Vec<DigestText>,
    /// The text and its variants; read on first use.
    forms: OnceLock<Arc<[Form]>>,
}

/// The approved text to compare the text of a get with.
#[derive(Clone, Debug)]
pub enum ExpectedText<'a> {
    /// The text with this digest, or a variant of this text in `version`.
    Text { key: &'a Arc<str>, digest: &'a DigestText, version: &'a Version },
    /// A form, filled in with the arguments. The first form is the approved text, the others are
    /// its variants.
    Template {
        key: &'a Arc<str>,
        digest: &'a DigestText,
        forms: Arc<[Form]>,
        arguments: &'a str,
        /// The values of the arguments, escaped as in canonical JSON, without quotes.
        values: Vec<&'a str>,
    },
    /// No text is approved for these arguments; `other` is approved for different arguments.
    Nothing { other: &'a DigestText, arguments: &'a str },
}

impl ExpectedText<'_> {
    /// The digest of the approved text, or of `other`.
    pub fn digest(&self) -> &DigestText {
        match self {
            Self::Text { digest, .. }
            | Self::Template { digest, .. }
            | Self::Nothing { other: digest, .. } => digest,
        }
    }

    /// The arguments of the get, as [`approval_arguments`] returned them.
    pub fn arguments(&self) -> &str {
        match self {
            Self::Text { key, .. } => key,
            Self::Template { arguments, .. } | Self::Nothing { arguments, .. } => arguments,
        }
    }
}

impl ApprovedTemplate {
    /// The text for the arguments of a get; `None` before the forms are read.
    fn expected<'a>(
        &'a self,
        arguments: &'a str,
        given: &[(Json<'a>, Json<'a>)],
    ) -> Option<ExpectedText<'a>> {
        let forms = self.forms.get()?.clone();
        let values = given.iter().map(|(_, value)| value.raw_str().unwrap_or_default()).collect();
        let key = &self.key;
        let digest = &self.digests[0];
        Some(ExpectedText::Template { key, digest, forms, arguments, values })
    }
}

impl ApprovedTexts {
    /// The texts of an approved version, under the settings of this configuration.
    pub fn new(version: &Version, settings: &ApprovalSettings) -> Self {
        let is_enforced = settings.mode == Mode::Enforce;
        let templates = version.texts.iter().filter_map(|(key, digest)| {
            let arguments = TemplateArguments::read(key)?;
            let variants = version.variants.iter().filter(|(own, _)| own == key);
            let variants = variants.map(|(_, variant)| variant);
            let digests = std::iter::once(digest).chain(variants).cloned().collect();
            Some(ApprovedTemplate { arguments, key: key.clone(), digests, forms: OnceLock::new() })
        });
        let mut templates: Vec<_> = templates.collect();
        templates.sort_by_key(|template| std::cmp::Reverse(template.arguments.values()));
        let has_objects = !version.texts.is_empty() || !version.files.is_empty();
        Self {
            is_enforced,
            has_snapshot: is_enforced && settings.snapshot && has_objects,
            version: version.clone(),
            templates,
            store: settings.store.clone(),
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.is_enforced == other.is_enforced
            && self.has_snapshot == other.has_snapshot
            && self.version == other.version
    }

    /// Returns the approved text for the canonical arguments from [`approval_arguments`]; `None` if
    /// texts are not compared.
    ///
    /// # Errors
    /// The object of a template cannot be read.
    pub async fn expected<'a>(
        &'a self,
        arguments: &'a str,
    ) -> Result<Option<ExpectedText<'a>>, ObjectError> {
        let (template, given) = match self.find(arguments) {
            Found::Known(expected) => return Ok(expected),
            Found::Template(template, given) => (template, given),
        };
        if template.forms.get().is_none() {
            let store = self.store.clone();
            let digests = template.digests.clone();
            let places = template.arguments.clone();
            let read = move || digests.iter().map(|digest| form(&store, digest, &places)).collect();
            let forms: Result<Arc<[Form]>, _> = run_blocking(read).await;
            let forms = forms?;
            template.forms.get_or_init(|| forms);
        }
        Ok(template.expected(arguments, &given))
    }

    /// Like [`Self::expected`], but reads no objects: also `None` for a template whose forms have
    /// not been read.
    pub fn known<'a>(&'a self, arguments: &'a str) -> Option<ExpectedText<'a>> {
        match self.find(arguments) {
            Found::Known(expected) => expected,
            Found::Template(template, given) => template.expected(arguments, &given),
        }
    }

    fn find<'a>(&'a self, arguments: &'a str) -> Found<'a> {
        if let Some((key, digest)) = self.version.texts.get_key_value(arguments) {
            return Found::Known(Some(ExpectedText::Text { key, digest, version: &self.version }));
        }
        let given: Vec<_> = Json::accepted(arguments).members().collect();
        let mut templates = self.templates.iter();
        match templates.find(|template| template.arguments.cover(&given)) {
            Some(template) => Found::Template(template, given),
            None => {
                let nothing = |other| ExpectedText::Nothing { other, arguments };
                Found::Known(self.text_of_others().map(nothing))
            }
        }
    }

    /// An approved text for arguments other than the get's: makes the gateway refuse arguments
    /// without an approved text. `None` if a source is compared, or if only the definition was
    /// approved.
    fn text_of_others(&self) -> Option<&DigestText> {
        let template = self.templates.first().map(|template| &template.digests[0]);
        let is_compared = self.version.source.is_none();
        template.or_else(|| self.version.texts.values().next().filter(|_| is_compared))
    }

    /// Reads a file of a skill.
    ///
    /// # Errors
    /// The object cannot be read.
    pub async fn file(&self, digest: &DigestText) -> Result<Vec<u8>, ObjectError> {
        let store = self.store.clone();
        let digest = digest.clone();
        run_blocking(move || store.file(&digest)).await
    }

    /// Reads the approved text of a get without arguments, if such a text is approved. Blocks.
    pub(crate) fn exact_text(&self) -> Option<Result<String, ObjectError>> {
        let digest = self.version.texts.get(NO_ARGUMENTS)?;
        Some(self.store.object(digest))
    }

    /// Reads the approved text of a get; `None` without a text, or if it exceeds `most` bytes.
    ///
    /// # Errors
    /// The object cannot be read.
    pub async fn snapshot(
        &self,
        expected: &ExpectedText<'_>,
        most: usize,
    ) -> Result<Option<String>, ObjectError> {
        Ok(match expected {
            ExpectedText::Text { digest, .. } => {
                let store = self.store.clone();
                let digest = (*digest).clone();
                Some(run_blocking(move || store.object(&digest)).await?)
            }
            ExpectedText::Template { forms, arguments, .. } => {
                forms.first().and_then(|form| fill(form.text(), Json::accepted(arguments), most))
            }
            ExpectedText::Nothing { .. } => None,
        })
    }
}

/// Reads an approved text, which was checked as JSON at its approval.
fn form(
    store: &LockFile,
    digest: &DigestText,
    arguments: &TemplateArguments,
) -> Result<Form, ObjectError> {
    let text = store.object(digest)?;
    let corrupt = |_| ObjectError::Corrupt { digest: digest.clone() };
    Json::parse(text.as_bytes(), DEPTH).map_err(corrupt)?;
    Ok(Form::new(text, arguments))
}

/// Returns the arguments of a get in the form that approvals use: canonical JSON (RFC 8785) of the
/// declared arguments, without values that equal the defaults of overlays. An undeclared argument
/// does not select another text: the get is compared with the text for the declared arguments.
pub fn approval_arguments(
    declared: &[Argument],
    overlay: Option<&CallOverlay>,
    given: Option<Json<'_>>,
) -> Cow<'static, str> {
    let is_own = |(name, value): &(Json<'_>, Json<'_>)| {
        let is_default = || overlay.is_some_and(|overlay| overlay.is_default(*name, *value));
        declared.iter().any(|argument| name.is(&argument.name)) && !is_default()
    };
    let mut own = given.into_iter().flat_map(Json::members).filter(is_own).peekable();
    if own.peek().is_none() {
        return NO_ARGUMENTS.into();
    }
    let mut object = String::with_capacity(given.map_or(0, |given| given.text().len()));
    write_canonical_object(own, &mut object);
    object.into()
}

/// A prompt or skill that is offered or in the lock file, in the view of approvers.
#[derive(Clone, Debug)]
pub struct ApprovalRow {
    pub kind: ApprovalKind,
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    /// The actual or prospective listed name; for a skill, the URI of its `SKILL.md`.
    pub public_name: String,
    pub mode: Mode,
    /// The offered version; `None` if the upstream does not list the prompt, or has no list.
    pub offered: Option<OfferedPrompt>,
    pub approval: Option<Approval>,
    pub decision: Decision,
    /// Why the decision could not be carried out.
    pub problem: Option<String>,
    /// Texts of gets that match no approved text.
    pub variants: Vec<FoundVariant>,
    /// The other public names that offer this version of a prompt: the plain name, and labels.
    pub aliases: Vec<String>,
}

/// The version that an upstream offers.
#[derive(Clone, Debug)]
pub struct OfferedPrompt {
    /// The effective definition; for a skill, only a name.
    pub prompt: Arc<Prompt>,
    /// The skill in the form that would be approved; `None` for a prompt.
    pub skill: Option<Arc<Skill>>,
    pub version: Offered,
    /// When the gateway first saw these texts; `None` before the first probe.
    pub texts_since: Option<SystemTime>,
}

impl ApprovalRow {
    /// Whether a public name stands for the row: its own, or another name of this version.
    pub fn is_named(&self, public_name: &str) -> bool {
        self.public_name == public_name || self.aliases.iter().any(|alias| alias == public_name)
    }

    /// Adds the approved variants that stay valid to an offered version.
    pub fn keep_variants(&self, offered: &mut Version) {
        if let Some(approved) = self.approved() {
            offered.keep_variants(&approved.version);
        }
    }

    /// The approved version, if any.
    pub fn approved(&self) -> Option<&Decided> {
        self.approval.as_ref()?.approved.as_ref()
    }

    /// Whether the prompt is held back: offered, and not listed.
    pub fn is_held(&self) -> bool {
        self.offered.is_some()
            && (self.decision.serving == Serving::Nothing || self.problem.is_some())
    }

    /// Whether the offered version is neither approved nor rejected, and waits for a decision.
    pub fn is_waiting(&self) -> bool {
        let state = self.decision.state;
        self.offered.is_some() && matches!(state, ApprovalState::Pending | ApprovalState::Changed)
    }

    /// The first approval of the offered version, where two people must approve it.
    pub fn half_approved(&self) -> Option<&Decided> {
        let pending = self.approval.as_ref()?.pending.as_ref()?;
        let offered = &self.offered.as_ref()?.version;
        pending.version.matches(offered).then_some(pending)
    }

    /// The prompt in the form that access decisions use.
    pub fn prompt(&self) -> PromptRef<'_> {
        PromptRef {
            upstream: self.upstream.as_str(),
            raw_name: &self.raw_name,
            state: self.decision.state,
        }
    }
}

/// Whether a text holds a secret: the value of a preset argument, or a credential for the upstream.
pub fn holds_secret(
    upstream: Option<&Arc<Upstream>>,
    overlay: Option<&CallOverlay>,
    text: &str,
) -> bool {
    overlay.is_some_and(|overlay| overlay.secrets().is_in(text))
        || upstream.is_some_and(|upstream| upstream.has_secret_in(text))
}

/// A text of a get that matches no approved text. A person may approve it in addition to the
/// approved text.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundVariant {
    /// The arguments of the approved text that differs, with places for the caller's values.
    pub arguments: Arc<str>,
    pub digest: DigestText,
    /// The canonical text, with places for the caller's values.
    pub text: Arc<str>,
    /// The approved text.
    pub approved: DigestText,
    /// When a caller first got the text.
    pub at: SystemTime,
}

/// A sentence for approvers.
impl fmt::Display for FoundVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arguments, digest, at, .. } = self;
        let at = humantime::format_rfc3339_seconds(*at);
        write!(
            f,
            "Variant {digest}, which a caller got first at {at} with the arguments {arguments}"
        )
    }
}

/// A text that an upstream has returned at another time.
#[derive(Clone, Debug)]
pub struct SeenOtherwise {
    /// `None`: a caller got the text, and callers' arguments are not kept.
    pub arguments: Option<Arc<str>>,
    /// `None` if two consecutive gets returned different texts.
    pub digest: Option<DigestText>,
    pub at: SystemTime,
}

impl SeenOtherwise {
    /// Returns sentences for approvers who look at the offered version at `now`.
    pub fn message(&self, now: SystemTime) -> String {
        let ago = distance(self.at, now);
        let receiver = match self.arguments.as_deref() {
            None => "a caller received".to_owned(),
            Some(NO_ARGUMENTS) => "the gateway received".to_owned(),
            Some(arguments) => format!("the gateway received, with {arguments},"),
        };
        let Some(digest) = &self.digest else {
            return format!("{ago} {receiver} two different texts in a row.");
        };
        let short: String = digest.chars().take(SHORT_DIGEST).collect();
        format!("{ago} {receiver} a different text ({short}…). You are approving the one below.")
    }
}

/// Characters of a digest that tell texts apart for the eye: `sha256:`, and twelve digits.
const SHORT_DIGEST: usize = 19;
