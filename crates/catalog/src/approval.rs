//! Approvals in the catalog: which form of each prompt is served, and what a get is compared with.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::blocking::beside_calls;
use config::ApprovalRules;
use config::lock::{Lock, LockStore, ObjectError};
use domain::approval::template::fill;
use domain::approval::{
    Approval, ApprovalKind, ApprovalState, Decided, Decision, DigestText, Form, Mode, NO_ARGUMENTS,
    Offered, Serving, TemplateArguments, Version,
};
use domain::call_overlay::CallOverlay;
use domain::json::Json;
use domain::json::canonical::write_canonical_object;
use domain::name::UpstreamId;
use domain::prompt::{Argument, Prompt};
use domain::rights::PromptRef;
use domain::skill::Skill;
use upstream::Upstream;

/// The approvals of one upstream, as the configuration says.
#[derive(Clone, Debug)]
pub struct ApprovalSettings {
    pub mode: Mode,
    pub lock: Arc<Lock>,
    pub store: Arc<LockStore>,
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

    /// Reads the approved form of a prompt that is offered in another form.
    pub(crate) fn approved_form(
        &self,
        version: &Version,
        offered: &Prompt,
    ) -> Result<Prompt, String> {
        let text = self.store.object(&version.definition).map_err(|error| error.to_string())?;
        let definition = Json::parse(text.as_bytes(), DEPTH).ok();
        let form = definition.and_then(|definition| Prompt::approved(definition, offered));
        let no_definition = || format!("its object {} is no definition", version.definition);
        let form = form.ok_or_else(no_definition)?;
        if form.listed_name() != offered.listed_name() {
            return Err("its approved definition has another name".to_owned());
        }
        Ok(form)
    }

    /// Reads the approved form of the skill with this path.
    ///
    /// # Errors
    /// Its object cannot be had, or is none of the skill.
    pub fn approved_skill(&self, version: &Version, path: &str) -> Result<Skill, String> {
        let text = self.store.object(&version.definition).map_err(|error| error.to_string())?;
        let entry = Json::parse(text.as_bytes(), DEPTH).ok();
        let skill = entry.and_then(|entry| Skill::read(entry).ok());
        let is_own = |skill: &Skill| *skill.path == *path && skill.digests() == version.files;
        let other = || format!("its object {} is no entry of it", version.definition);
        skill.filter(is_own).ok_or_else(other)
    }
}

/// JSON depth of objects: they were accepted before.
pub const DEPTH: usize = 256;

/// Where a listed prompt or skill can be had.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Availability {
    /// At its upstream, which lists it.
    #[default]
    Listed,
    /// Nowhere but in the approved snapshot: its upstream has no list, or another version.
    SnapshotOnly,
}

/// The approval of a listed prompt.
#[derive(Clone, Debug, Default)]
pub struct PromptApproval {
    pub state: ApprovalState,
    /// Whether it is served although the offered version is not the approved one.
    pub is_tolerated: bool,
    pub availability: Availability,
    /// The approved version, if there is one and it has more than a definition.
    pub approved: Option<Arc<ApprovedTexts>>,
}

/// The approved version of a prompt, with which gets are compared.
#[derive(Debug)]
pub struct ApprovedTexts {
    /// Whether other texts are refused.
    pub is_enforced: bool,
    /// Whether the approved text is served if the upstream does not offer it.
    pub has_snapshot: bool,
    pub version: Version,
    templates: Vec<ApprovedTemplate>,
    store: Arc<LockStore>,
}

/// The approved text for the arguments of a get, or the template that covers them.
enum Found<'a> {
    Known(Option<ExpectedText<'a>>),
    /// The template that covers them, and their members.
    Template(&'a ApprovedTemplate, Vec<(Json<'a>, Json<'a>)>),
}

/// An approved text with places for arguments, and its variants.
#[derive(Debug)]
struct ApprovedTemplate {
    arguments: TemplateArguments,
    key: Arc<str>,
    /// The text first.
    digests: Vec<DigestText>,
    /// Read when they are needed first.
    forms: OnceLock<Arc<[Form]>>,
}

/// The approved text that the text of a get is compared with.
#[derive(Clone, Debug)]
pub enum ExpectedText<'a> {
    /// The text with this digest, or one of the version's variants of it.
    Text { key: &'a Arc<str>, digest: &'a DigestText, version: &'a Version },
    /// One of these forms, of which the approved text is the first, with the arguments in its
    /// places.
    Template {
        key: &'a Arc<str>,
        digest: &'a DigestText,
        forms: Arc<[Form]>,
        arguments: &'a str,
        /// The values of the arguments, as they stand between quotes in canonical JSON.
        values: Vec<&'a str>,
    },
    /// Nothing is approved for these arguments, but templates are for others, such as this one.
    Nothing { other: &'a DigestText, arguments: &'a str },
}

impl ExpectedText<'_> {
    /// The digest of the approved text.
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
    /// The text for the arguments of a get; `None` if its forms were never read.
    fn expected<'a>(
        &'a self,
        arguments: &'a str,
        given: &[(Json<'a>, Json<'a>)],
    ) -> Option<ExpectedText<'a>> {
        let forms = self.forms.get()?.clone();
        let values = given.iter().map(|(_, value)| value.raw_str().unwrap_or_default()).collect();
        let (key, digest) = (&self.key, &self.digests[0]);
        Some(ExpectedText::Template { key, digest, forms, arguments, values })
    }
}

impl ApprovedTexts {
    /// The texts of an approved version, as this configuration treats them.
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

    /// Returns what is approved for arguments that [`approval_arguments`] returned; `None` where
    /// texts are not compared.
    ///
    /// # Errors
    /// The object of a template cannot be had.
    pub async fn expected<'a>(
        &'a self,
        arguments: &'a str,
    ) -> Result<Option<ExpectedText<'a>>, ObjectError> {
        let (template, given) = match self.find(arguments) {
            Found::Known(expected) => return Ok(expected),
            Found::Template(template, given) => (template, given),
        };
        if template.forms.get().is_none() {
            let (store, digests) = (self.store.clone(), template.digests.clone());
            let places = template.arguments.clone();
            let read = move || digests.iter().map(|digest| form(&store, digest, &places)).collect();
            let forms: Result<Arc<[Form]>, _> = beside_calls(read).await;
            let forms = forms?;
            template.forms.get_or_init(|| forms);
        }
        Ok(template.expected(arguments, &given))
    }

    /// As [`Self::expected`], without reading: `None`, too, for a template whose forms were never
    /// read.
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

    /// An approved text for other arguments than those of a get, which is not served with arguments
    /// of which no text was seen. `None` where a source is compared, or the definition alone was
    /// approved.
    fn text_of_others(&self) -> Option<&DigestText> {
        let template = self.templates.first().map(|template| &template.digests[0]);
        let is_compared = self.version.source.is_none();
        template.or_else(|| self.version.texts.values().next().filter(|_| is_compared))
    }

    /// Reads a file of a skill.
    ///
    /// # Errors
    /// Its object cannot be had.
    pub async fn file(&self, digest: &DigestText) -> Result<Vec<u8>, ObjectError> {
        let (store, digest) = (self.store.clone(), digest.clone());
        beside_calls(move || store.file(&digest)).await
    }

    /// Reads the approved text of a get without arguments, if there is one. Blocks.
    pub(crate) fn exact_text(&self) -> Option<Result<String, ObjectError>> {
        let digest = self.version.texts.get(NO_ARGUMENTS)?;
        Some(self.store.object(digest))
    }

    /// Reads the approved text of a get; `None` if there is none, or it has more than `most` bytes.
    ///
    /// # Errors
    /// Its object cannot be had.
    pub async fn snapshot(
        &self,
        expected: &ExpectedText<'_>,
        most: usize,
    ) -> Result<Option<String>, ObjectError> {
        Ok(match expected {
            ExpectedText::Text { digest, .. } => {
                let (store, digest) = (self.store.clone(), (*digest).clone());
                Some(beside_calls(move || store.object(&digest)).await?)
            }
            ExpectedText::Template { forms, arguments, .. } => {
                forms.first().and_then(|form| fill(form.text(), Json::accepted(arguments), most))
            }
            ExpectedText::Nothing { .. } => None,
        })
    }
}

/// Reads an approved text. It was JSON when it was approved.
fn form(
    store: &LockStore,
    digest: &DigestText,
    arguments: &TemplateArguments,
) -> Result<Form, ObjectError> {
    let text = store.object(digest)?;
    let corrupt = |_| ObjectError::Corrupt { digest: digest.clone() };
    Json::parse(text.as_bytes(), DEPTH).map_err(corrupt)?;
    Ok(Form::new(text, arguments))
}

/// Returns the arguments of a get in the form in which approvals name them: canonical JSON (RFC
/// 8785) of those that the prompt declares, without values that are the defaults of overlays. An
/// argument that is not declared does not make another text of a prompt: where one text is
/// approved, it is compared.
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

/// A prompt or skill that is offered or in the lock file, for those who decide.
#[derive(Clone, Debug)]
pub struct ApprovalRow {
    pub kind: ApprovalKind,
    pub upstream: UpstreamId,
    pub raw_name: Arc<str>,
    /// The name under which it is listed, or would be; of a skill the URI of its `SKILL.md`.
    pub public_name: String,
    pub mode: Mode,
    /// The offered version; `None` if the upstream does not list the prompt, or has no list.
    pub offered: Option<OfferedPrompt>,
    pub approval: Option<Approval>,
    pub decision: Decision,
    /// Why the decision could not be carried out.
    pub problem: Option<String>,
    /// Texts that callers got, and that fit no approved text.
    pub variants: Vec<FoundVariant>,
}

/// The version that an upstream offers.
#[derive(Clone, Debug)]
pub struct OfferedPrompt {
    /// The effective definition; of a skill a name alone.
    pub prompt: Arc<Prompt>,
    /// The skill, if it is one, in the form in which it would be approved.
    pub skill: Option<Arc<Skill>>,
    pub version: Offered,
    /// When the gateway saw these texts for the first time; `None` before it has asked for them.
    pub texts_since: Option<SystemTime>,
}

impl ApprovalRow {
    /// Adds the approved variants to a version that is offered, as far as they stay approved.
    pub fn keep_variants(&self, offered: &mut Version) {
        if let Some(approved) = self.approved() {
            offered.keep_variants(&approved.version);
        }
    }

    /// The approved version, if there is one.
    pub fn approved(&self) -> Option<&Decided> {
        self.approval.as_ref()?.approved.as_ref()
    }

    /// Whether the prompt is held back: offered, and not listed.
    pub fn is_held(&self) -> bool {
        self.offered.is_some()
            && (self.decision.serving == Serving::Nothing || self.problem.is_some())
    }

    /// Whether it waits for a decision: the offered version is neither approved nor rejected.
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

    /// The prompt, as access decisions see it.
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

/// A text that a caller got and that fits no approved text, for a person who may approve it beside
/// the approved one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundVariant {
    /// The arguments of the approved text that it differs from; places for the caller's values.
    pub arguments: Arc<str>,
    pub digest: DigestText,
    /// The canonical text, with places for the caller's values.
    pub text: Arc<str>,
    /// The approved text.
    pub approved: DigestText,
    /// When a caller got it first.
    pub at: SystemTime,
}

/// A sentence for those who decide.
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

/// A text that an upstream has given at another time.
#[derive(Clone, Debug)]
pub struct SeenOtherwise {
    /// `None`: it went to a caller, whose arguments are not kept.
    pub arguments: Option<Arc<str>>,
    /// `None` if two gets in a row gave two texts.
    pub digest: Option<DigestText>,
    pub at: SystemTime,
}

/// A sentence for those who decide.
impl fmt::Display for SeenOtherwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = humantime::format_rfc3339_seconds(self.at);
        write!(f, "Seen at {at}: ")?;
        match self.arguments.as_deref() {
            None => write!(f, "a caller got")?,
            Some(NO_ARGUMENTS) => write!(f, "the gateway got")?,
            Some(arguments) => write!(f, "the gateway got, with {arguments},")?,
        }
        match &self.digest {
            Some(digest) => write!(
                f,
                " another text ({digest}); the decision is on the text that is shown here"
            ),
            None => write!(f, " two different texts in a row"),
        }
    }
}
