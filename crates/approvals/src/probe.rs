//! Learns the texts of prompts by probes: without arguments, with the arguments of configured
//! probes, and as templates with marked arguments.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Approvals;
use super::asked::{MAX_COMPLETED, MAX_TEMPLATES, approved_templates, template_arguments};
use super::pace::Purpose;
use base::seal;
use calls::probe::{ProbeRequest, probe};
use catalog::approval::{ApprovalRow, OfferedPrompt, approval_arguments, holds_secret};
use domain::approval::template::{is_filled, template};
use domain::approval::{DigestText, NO_ARGUMENTS, OfferedText, TemplateArguments};
use domain::calls::caller::{Caller, PROBER};
use domain::calls::fair_share::Holder;
use domain::fault::{Fault, UpstreamFault, UpstreamFaultKind as Kind};
use domain::json::Json;
use upstream::guard::large_texts::work_on;

/// Why the approval does not cover a text that contains a secret.
const HOLDS_SECRET: &str = "it holds a secret (the value of a preset argument, or a credential for the upstream), which must not be written to promptgate.lock.d";

/// Why the approval does not cover a text that already looks like a template.
const HOLDS_PLACE: &str = "it holds the name of an argument in double braces, so its arguments cannot be told from its text";

/// The form of the markers for learning a template.
#[derive(Clone, Copy, Debug)]
enum MarkerForm {
    Word,
    Number,
    Url,
}

/// Lengths of markers: long enough to be unlikely in a text. Two lengths reveal a text that depends
/// on the length, which is not a template.
const SHORT_MARKER: usize = 12;
const LONG_MARKER: usize = 17;

impl MarkerForm {
    const ALL: [Self; 3] = [Self::Word, Self::Number, Self::Url];

    /// Returns a marker of letters and digits, which no server has a reason to change.
    fn marker(self, length: usize) -> String {
        let some = |length, draw: fn() -> char| (0..length).map(|_| draw()).collect::<String>();
        match self {
            Self::Word => format!("Mk{}", some(length - 2, fastrand::alphanumeric)),
            Self::Number => format!("9{}", some(length - 1, || fastrand::digit(10))),
            Self::Url => format!("https://example.com/mk{}", some(length, fastrand::alphanumeric)),
        }
    }
}

/// The result of two gets with the same arguments.
#[derive(Clone, Debug)]
pub enum ProbedText {
    Stable {
        digest: DigestText,
        /// The canonical text.
        text: String,
    },
    /// The two gets returned different texts.
    Unstable,
    Failed(String),
}

/// The texts of a prompt by their arguments, in canonical form.
pub(crate) type ProbedTexts = BTreeMap<Arc<str>, ProbedText>;

/// Returns the state of the probed texts.
pub(super) fn offered_texts(texts: &ProbedTexts) -> BTreeMap<Arc<str>, OfferedText> {
    let known = texts.iter().filter_map(|(arguments, text)| match text {
        ProbedText::Stable { digest, .. } => {
            Some((arguments.clone(), OfferedText::Known(digest.clone())))
        }
        ProbedText::Unstable => Some((arguments.clone(), OfferedText::Unstable)),
        ProbedText::Failed(_) => None,
    });
    known.collect()
}

/// The probes of the offered version of one prompt.
pub(super) struct PromptProbe<'a> {
    pub approvals: &'a Approvals,
    pub row: &'a ApprovalRow,
    pub offered: &'a OfferedPrompt,
    pub purpose: Purpose,
}

impl<'a> PromptProbe<'a> {
    /// Fetches the texts of a prompt: without arguments if all are optional, and with the arguments
    /// of configured probes. Fetches each text twice, to find unstable texts.
    pub(super) async fn texts(&self) -> ProbedTexts {
        let mut texts = ProbedTexts::new();
        for arguments in self.arguments() {
            let text = self.probe_with(&arguments).await;
            texts.insert(arguments, text);
        }
        for arguments in self.completed_arguments().await {
            if texts.contains_key(&arguments) {
                continue;
            }
            let text = self.probe_with(&arguments).await;
            let is_made = |text: &str| makes(&texts, &arguments, text);
            if !matches!(&text, ProbedText::Stable { text, .. } if is_made(text)) {
                texts.insert(arguments, text);
            }
        }
        texts
    }

    async fn probe_with(&self, arguments: &str) -> ProbedText {
        let probed = match TemplateArguments::read(arguments) {
            Some(template) => self.probe_template(&template).await,
            None => self.probe_twice(arguments).await,
        };
        probed.unwrap_or_else(|fault| ProbedText::Failed(fault.diagnosis()))
    }

    /// Returns sets of arguments with the values that the upstream completes, if there are few
    /// values: the text may depend on each value.
    async fn completed_arguments(&self) -> Vec<Arc<str>> {
        if !self.is_asked() {
            return Vec::new();
        }
        let overlay = self.offered.prompt.overlay.as_ref();
        let has_choices = |name: &str| overlay.is_some_and(|own| own.choices(name).is_some());
        let mut completed = BTreeMap::new();
        let open =
            self.offered.prompt.arguments.iter().filter(|argument| !has_choices(&argument.name));
        for argument in open.take(MAX_COMPLETED) {
            let asked = ProbeRequest::Values(&argument.name);
            let values = self.once(asked).await;
            let Ok(values) = values else { continue };
            let values = Json::accepted(&values).elements().filter_map(Json::as_str);
            let values: Vec<_> = values.map(Cow::into_owned).collect();
            if (1..=MAX_TEMPLATES).contains(&values.len()) {
                completed.insert(argument.name.clone(), values);
            }
        }
        if completed.is_empty() {
            Vec::new()
        } else {
            template_arguments(&self.offered.prompt, &completed)
        }
    }

    async fn probe_twice(&self, arguments: &str) -> Result<ProbedText, Fault> {
        let text = self.once(ProbeRequest::Text(arguments)).await?;
        let again = self.once(ProbeRequest::Text(arguments)).await?;
        Ok(self.compared(text, again).await)
    }

    /// Learns a template: two texts for markers of different lengths must have the same constant
    /// parts. If the upstream refuses letters, retries with digits, then with URLs.
    async fn probe_template(&self, arguments: &TemplateArguments) -> Result<ProbedText, Fault> {
        let mut refusal = None;
        for form in MarkerForm::ALL {
            let learn = async |length| {
                let (marked, markers) = arguments.marked(|| form.marker(length));
                let text = self.once(ProbeRequest::Text(&marked)).await?;
                Ok::<_, Fault>(template(&text, &markers))
            };
            let learnt = match learn(SHORT_MARKER).await {
                Ok(text) => learn(LONG_MARKER).await.map(|again| (text, again)),
                Err(fault) => Err(fault),
            };
            match learnt {
                Ok((Some(text), Some(again))) => {
                    return Ok(self.compared(text, again).await);
                }
                Ok(_) => return Ok(ProbedText::Failed(HOLDS_PLACE.to_owned())),
                Err(fault) if !is_refusal(&fault) => return Err(fault),
                // The first refusal is reported: it names the upstream's requirement.
                Err(fault) => refusal = refusal.or(Some(fault)),
            }
        }
        Err(refusal.unwrap_or(Fault::Internal))
    }

    /// Compares the texts of two gets.
    async fn compared(&self, text: String, again: String) -> ProbedText {
        let overlay = self.offered.prompt.overlay.clone();
        let upstream = self.approvals.router.upstream(&self.row.upstream).cloned();
        let bytes = text.len();
        let compare = move || {
            if again != text {
                ProbedText::Unstable
            } else if holds_secret(upstream.as_ref(), overlay.as_deref(), &text) {
                ProbedText::Failed(HOLDS_SECRET.to_owned())
            } else {
                ProbedText::Stable { digest: seal::prompt_text_digest(&text).into(), text }
            }
        };
        work_on(bytes, &Holder::Caller(Caller::new(PROBER)), compare).await
    }

    /// Whether every text to probe of the offered version is known.
    pub(super) fn is_done(&self) -> bool {
        let texts = &self.offered.version.texts;
        self.arguments().all(|arguments| texts.contains_key(&arguments))
    }

    /// Returns the arguments to probe, in canonical form: no arguments if all are optional, places
    /// for declared arguments, and the arguments of configured probes.
    fn arguments(&self) -> impl Iterator<Item = Arc<str>> + use<'a> {
        let Self { approvals, row, offered, .. } = *self;
        let prompt = &offered.prompt;
        let needs_none = !prompt.arguments.iter().any(|a| a.required);
        let without = needs_none.then(|| Arc::from(NO_ARGUMENTS));
        let mut templates = Vec::new();
        if self.is_asked() {
            templates = template_arguments(prompt, &BTreeMap::new());
            let more = approved_templates(row, offered)
                .chain(approvals.router.unapproved_texts().arguments(row));
            for arguments in more {
                if !templates.contains(&arguments) {
                    templates.push(arguments);
                }
            }
        }
        let configured = approvals.rules.probes.iter();
        let configured = configured.filter(|probe| row.is_named(&probe.prompt));
        let configured = configured.map(|probe| {
            let given = Json::accepted(&probe.arguments);
            let overlay = prompt.overlay.as_deref();
            Arc::from(approval_arguments(&prompt.arguments, overlay, Some(given)))
        });
        without.into_iter().chain(templates).chain(configured)
    }

    /// Whether probes with made-up arguments are enabled for the upstream.
    fn is_asked(&self) -> bool {
        let upstream = self.approvals.router.upstream(&self.row.upstream);
        upstream.is_some_and(|upstream| upstream.config().settings.approval_probes)
    }

    /// Makes one call, recorded like any other call, at the pace of own calls.
    pub(super) async fn once(&self, asked: ProbeRequest<'_>) -> Result<String, Fault> {
        let Approvals { router, shared, .. } = self.approvals;
        let _turn = shared.pace.turn(&self.row.upstream, self.purpose).await;
        probe(router, self.row, asked).await
    }
}

/// Whether a template among these texts, filled in with these arguments, yields this text.
pub(super) fn makes(texts: &ProbedTexts, arguments: &str, text: &str) -> bool {
    let given = Json::accepted(arguments);
    let members: Vec<_> = given.members().collect();
    texts.iter().any(|(own, known)| {
        matches!(known, ProbedText::Stable { text: template, .. }
            if TemplateArguments::read(own).is_some_and(|own| own.cover(&members))
                && is_filled(template, given, text))
    })
}

/// Whether the upstream has refused the arguments of a probe.
fn is_refusal(fault: &Fault) -> bool {
    matches!(fault, Fault::Upstream(UpstreamFault { kind: Kind::Error { .. }, .. }))
}
