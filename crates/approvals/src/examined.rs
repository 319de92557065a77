//! Examinations: the offered version of a prompt at the moment when a person looks at it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::Approvals;
use super::action::{ApprovalError, refused};
use super::findings::{self, OfferedFinding};
use super::pace::{AT_ONCE, Purpose};
use super::probe::{ProbedText, ProbedTexts, PromptProbe, makes, offered_texts};
use super::skill_files::ReadFiles;
use base::seal;
use calls::probe::ProbeRequest;
use calls::{LastText, ReceivedText};
use catalog::approval::{ApprovalRow, OfferedPrompt, SeenOtherwise, approval_arguments};
use config::lock::{Object, Objects};
use domain::approval::{
    ApprovalKind, ApprovalState, Class, DigestText, Mode, OfferedText, Reason, Version, decide,
};
use domain::fault::Fault;
use domain::json::Json;
use domain::prompts::skill::Skill;

/// A prompt with the available texts and source of its offered version.
#[derive(Clone, Debug)]
pub struct Examined {
    pub row: ApprovalRow,
    /// `None` if the upstream does not offer the prompt.
    pub offered: Option<OfferedVersion>,
    /// Texts that the gateway has seen before, but not in this examination.
    pub seen_otherwise: Vec<SeenOtherwise>,
    /// Why this person's approval cannot count as the second of two approvals.
    pub not_second: Option<String>,
    /// The findings of guards in the offered version.
    pub findings: Vec<OfferedFinding>,
}

#[derive(Clone, Debug)]
pub struct OfferedVersion {
    pub version: Version,
    /// The canonical texts and the files of the version, by their digests.
    pub objects: Objects,
    pub texts: ProbedTexts,
    /// Files of a skill that cannot be read or contradict its entry, with the reasons.
    pub unread: Vec<(Arc<str>, String)>,
}

impl Examined {
    /// The examination of a prompt from known data, without a probe.
    pub fn known(row: &ApprovalRow) -> Self {
        let offered = row.offered.as_ref().map(|offered| {
            let texts = offered.version.texts.iter().filter_map(|(arguments, text)| match text {
                OfferedText::Unstable => Some((arguments.clone(), ProbedText::Unstable)),
                OfferedText::Known(_) => None,
            });
            let mut version = offered.version.version();
            row.keep_variants(&mut version);
            let objects = Objects::new();
            let texts = texts.collect();
            let unread = Vec::new();
            OfferedVersion { version, objects, texts, unread }
        });
        let seen_otherwise = Vec::new();
        let findings = Vec::new();
        Self { row: row.clone(), offered, seen_otherwise, not_second: None, findings }
    }

    /// Examines a skill, with the available files of the offered version. An approved version is
    /// already known.
    async fn skill_now(
        approvals: &Approvals,
        row: &ApprovalRow,
        known: &OfferedPrompt,
        skill: &Skill,
    ) -> Self {
        let mut examined = Self::known(row);
        if let Some(offered) = examined.offered.as_mut()
            && row.decision.reason != Reason::Same
        {
            let probe =
                PromptProbe { approvals, row, offered: known, purpose: Purpose::Examination };
            let ReadFiles { objects, unread } = probe.files(skill).await;
            let entry = (known.version.definition.clone(), Object::Json(skill.canonical()));
            offered.objects = objects.into_iter().chain([entry]).collect();
            examined.findings = findings::find(&approvals.guards, row, &offered.objects).await;
            offered.unread = unread;
        }
        examined
    }

    /// Fetches the available texts and the source of the offered version of a prompt.
    ///
    /// # Errors
    /// The source of a library prompt has changed during the examination, or cannot be read.
    pub async fn now(approvals: &Approvals, row: &ApprovalRow) -> Result<Self, ApprovalError> {
        let Some(known) = &row.offered else {
            return Ok(Self::known(row));
        };
        if let Some(skill) = &known.skill {
            return Ok(Self::skill_now(approvals, row, known, skill).await);
        }
        let OfferedPrompt { prompt, version: offered, .. } = known;
        let mut version = Version { texts: Default::default(), ..offered.version() };
        let mut objects =
            Objects::from([(offered.definition.clone(), Object::Json(prompt.canonical()))]);
        if let (Some(source), Some(digest)) = (&prompt.source, &offered.source) {
            let text = approvals.source_of(&row.upstream, source.place.clone()).await;
            let text = text.map_err(|why| refused(row, why))?;
            if seal::sha256_text(text.as_bytes()) != **digest {
                return Err(refused(row, "its source has changed meanwhile; try again".to_owned()));
            }
            objects.insert(digest.clone(), Object::Json(text));
        }
        let probe = PromptProbe { approvals, row, offered: known, purpose: Purpose::Examination };
        let texts = probe.texts().await;
        for (arguments, text) in &texts {
            if let ProbedText::Stable { digest, text } = text {
                version.texts.insert(arguments.clone(), digest.clone());
                objects.insert(digest.clone(), Object::Text(text.clone()));
            }
        }
        row.keep_variants(&mut version);
        let mut row = row.clone();
        let mut known = offered.clone();
        known.texts = offered_texts(&texts);
        // Offered texts are not listed as variants: the difference already shows them.
        let is_offered = |text: &DigestText| {
            known.texts.values().any(|known| *known == OfferedText::Known(text.clone()))
        };
        row.variants.retain(|found| !is_offered(&found.digest));
        let mut seen: Vec<_> = seen_otherwise(&row, &known.texts).collect();
        let last = approvals.router.unapproved_texts().last(&row);
        let is_other = |last: &LastText| {
            let is_made = |own: &ReceivedText| makes(&texts, &own.arguments, &own.text);
            version.digests().all(|digest| *digest != last.digest)
                && !last.received.as_ref().is_some_and(is_made)
        };
        seen.extend(last.filter(is_other).map(|last| SeenOtherwise {
            arguments: None,
            digest: Some(last.digest),
            at: last.at,
        }));
        row.decision = decide(row.mode, row.approval.as_ref(), &known, || {
            row.decision.reason != Reason::ArgumentAdded
        });
        if let Some(offered) = &mut row.offered {
            offered.version = known;
        }
        let findings = findings::find(&approvals.guards, &row, &objects).await;
        let offered = Some(OfferedVersion { version, objects, texts, unread: Vec::new() });
        Ok(Self { row, offered, seen_otherwise: seen, not_second: None, findings })
    }

    /// The finding of an enforced guard, which keeps the version from bulk approval.
    pub fn enforced_finding(&self) -> Option<&str> {
        let enforced = self.findings.iter().find(|finding| finding.is_enforced);
        enforced.map(|finding| finding.sentence.as_str())
    }

    /// Whether the offered version is not approved.
    pub fn is_unapproved(&self) -> bool {
        let state = self.row.decision.state;
        self.offered.is_some()
            && !matches!(state, ApprovalState::Approved | ApprovalState::Unchecked)
    }

    /// Whether the approved version equals the offered version, including all texts.
    pub fn is_approved_so(&self) -> bool {
        let approved = self.row.approved();
        let offered = self.offered.as_ref().map(|offered| &offered.version);
        approved.is_some_and(|approved| Some(&approved.version) == offered)
    }

    /// Whether the offered version equals the version that was shown to the approver.
    pub fn is_as_seen(&self, seen: &Self) -> bool {
        let version = |examined: &Self| Some(examined.offered.as_ref()?.version.clone());
        version(self) == version(seen)
    }

    /// The arguments of an approved text that could not be fetched in this examination, with the
    /// reason.
    pub fn unverified(&self) -> Option<(&str, &str)> {
        let approved = self.row.approval.as_ref()?.approved.as_ref()?;
        let texts = &self.offered.as_ref()?.texts;
        approved.version.texts.keys().find_map(|arguments| match texts.get(arguments) {
            Some(ProbedText::Failed(why)) => Some((&**arguments, why.as_str())),
            _ => None,
        })
    }

    /// Why a text of the offered version is unknown, and how to approve the version anyway. `None`
    /// if all texts are known, or if gets are compared with another part.
    pub fn unseen_text(&self) -> Option<String> {
        let offered = self.offered.as_ref()?;
        if self.row.mode == Mode::Off {
            return None;
        }
        let mut unknown = offered.texts.iter().filter_map(|(arguments, text)| match text {
            ProbedText::Failed(why) => Some((&**arguments, why.as_str())),
            ProbedText::Unstable => Some((&**arguments, "it differs each time")),
            ProbedText::Stable { .. } => None,
        });
        let approve = "Approve it with --unseen (`unseen` over the API) if that is meant";
        match (offered.version.class(), unknown.next()) {
            (Class::Source | Class::Files, _) => None,
            (Class::Definition, unknown) => {
                let why = unknown.map_or_else(|| self.unasked(), |(_, why)| why);
                Some(format!(
                    "only its definition can be compared, and its upstream can answer with any text, which cannot \
                     be known: {why}. {approve}"
                ))
            }
            (_, None) => None,
            (_, Some((arguments, why))) => Some(format!(
                "its text with {arguments} cannot be known: {why}. Gets with such arguments are refused while \
                 approvals are enforced. {approve}"
            )),
        }
    }

    /// Why the gateway fetched no text of this version.
    fn unasked(&self) -> &'static str {
        match self.row.kind {
            ApprovalKind::Prompt => "its arguments are not made up (approval_probes)",
            ApprovalKind::Skill => "its files have no digests",
        }
    }
}

/// Gets the offered text of a prompt with the arguments of an approver: a probe, recorded as tried
/// by this person. No right of a caller leads here.
///
/// # Errors
/// As for a get; internal if the upstream does not offer the prompt.
pub async fn try_offered(
    approvals: &Approvals,
    row: &ApprovalRow,
    given: Option<Json<'_>>,
    by: &str,
) -> Result<String, Fault> {
    let offered = row.offered.as_ref().ok_or(Fault::Internal)?;
    let prompt = &offered.prompt;
    let arguments = approval_arguments(&prompt.arguments, prompt.overlay.as_deref(), given);
    let probe = PromptProbe { approvals, row, offered, purpose: Purpose::Examination };
    probe.once(ProbeRequest::Trial { arguments: &arguments, by }).await
}

/// Examines several prompts, a few concurrently; each result is as of [`Examined::now`].
pub async fn examine_all(
    approvals: &Arc<Approvals>,
    rows: Vec<ApprovalRow>,
) -> Vec<Result<Examined, ApprovalError>> {
    let mut examined = Vec::with_capacity(rows.len());
    let mut running = JoinSet::new();
    let mut rows = rows.into_iter().enumerate();
    loop {
        while running.len() < AT_ONCE
            && let Some((index, row)) = rows.next()
        {
            let approvals = approvals.clone();
            running.spawn(async move { (index, Examined::now(&approvals, &row).await) });
        }
        match running.join_next().await {
            None => break,
            Some(Ok((index, outcome))) => examined.push((index, outcome)),
            Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    examined.sort_by_key(|(index, _)| *index);
    examined.into_iter().map(|(_, examined)| examined).collect()
}

/// The previously known texts that differ from the texts in `now`.
fn seen_otherwise(
    row: &ApprovalRow,
    now: &BTreeMap<Arc<str>, OfferedText>,
) -> impl Iterator<Item = SeenOtherwise> {
    let known = row.offered.iter().filter_map(|offered| Some((offered, offered.texts_since?)));
    let known = known.flat_map(|(offered, at)| {
        offered.version.texts.iter().map(move |(arguments, text)| (arguments, text, at))
    });
    let differs = |arguments, text| now.get(arguments).is_some_and(|now| now != text);
    known.filter(move |(arguments, text, _)| differs(*arguments, *text)).map(
        |(arguments, text, at)| {
            let digest = match text {
                OfferedText::Known(digest) => Some(digest.clone()),
                OfferedText::Unstable => None,
            };
            SeenOtherwise { arguments: Some(arguments.clone()), digest, at }
        },
    )
}
