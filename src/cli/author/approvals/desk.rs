//! The desk of `promptgate approvals`: the gateway that shows prompts and takes decisions. Where a
//! gateway runs that may be asked, it is the desk; else the command starts a gateway without a
//! listener.

use serde::Serialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::app::App;
use crate::cli::observe::usage;
use crate::cli::shared::admin_api::{fetch_once, has_token, send_once};
use crate::cli::shared::args::ApprovalsQuery;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{elements, print, printable, printable_line};
use crate::cli::shared::reach::Reach;
use crate::cli::shared::user::user;
use approvals::json::{ApprovalDocument, ShownApproval};
use approvals::{Action, ApprovalError, Approvals, DecisionOutcome, Examined, examine_all};
use base::platform::wall_clock;
use calls::UpstreamStatus;
use domain::approval::{Decider, Mode};
use domain::text::percent;
use domain::text::similar::suggestion;

/// The path of approvals in the admin API.
const PATH: &str = "/api/v1/approvals";

/// The parts of approvals that a command needs of the gateway that answers it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Need {
    States,
    /// States and texts, which a running gateway shows to holders of the token only.
    Texts,
    /// States, texts and decisions; a running gateway takes decisions where `admin.write` is set.
    Decisions,
}

/// The gateway that answers a command.
pub(super) enum ApprovalBackend {
    Own(Box<OwnGateway>),
    /// The URL of its admin API.
    Running(String),
}

/// A gateway that the command has started, with the state of its upstreams.
pub(super) struct OwnGateway {
    app: App,
    pub(super) approvals: Arc<Approvals>,
    upstreams: Vec<UpstreamStatus>,
    /// Whether approvals are off for all upstreams, and compared for this command only.
    are_off: bool,
    config: std::path::PathBuf,
    /// The digest of the lock file on which the next decision is based.
    lock: Mutex<String>,
}

/// A prompt as it is shown to the person who decides.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) json: Value,
    /// `None` if the running gateway keeps the examination.
    examined: Option<Examined>,
}

/// The result of a decision.
pub(super) struct Outcome {
    pub(super) lock: Value,
    pub(super) notes: Vec<String>,
    /// Prompts that a second person must approve, too.
    pub(super) half: Vec<String>,
    /// Prompts that a partial approval has left out, with the reasons.
    pub(super) refused: BTreeMap<String, String>,
    /// The definition of a version that is approved again.
    pub(super) definition: Option<String>,
}

impl Outcome {
    /// Names the prompts that a partial approval has left out, with the reasons.
    pub(super) fn refusals(&self) -> Option<String> {
        let lines = self.refused.iter().map(|(name, why)| format!("\n{name}: {why}"));
        let lines = printable(&lines.collect::<String>());
        (!lines.is_empty()).then(|| format!("Not approved:{lines}"))
    }

    /// Returns the lines that report the decision.
    pub(super) fn lines(&self, action: &Action, shown: &[Shown]) -> Vec<String> {
        let names = self.decided(shown);
        let verb = match action {
            Action::Approve { .. } | Action::ApproveVariants { .. } => "Approved",
            Action::Reject => "Rejected",
            Action::Withdraw => "Withdrawn",
            Action::RollBack { .. } => "Rolled back",
        };
        let mut lines = Vec::new();
        if !names.is_empty() {
            let to = self.definition.as_ref();
            let to = to.filter(|_| matches!(action, Action::RollBack { .. }));
            let to = to.map(|to| format!(" to the version with the definition {to}"));
            lines.push(format!("{verb}: {}{}", names.join(", "), to.unwrap_or_default()));
        }
        if !self.half.is_empty() {
            let half = self.half.join(", ");
            lines.push(format!("Approved by one of two: {half}; another person must approve, too"));
        }
        if lines.is_empty() {
            lines.push("Nothing was approved.".to_owned());
        }
        lines.extend(self.notes.iter().cloned());
        lines.iter().map(|line| printable(line)).collect()
    }

    /// The names of the shown prompts on which was decided.
    pub(super) fn decided<'a>(&self, shown: &'a [Shown]) -> Vec<&'a str> {
        let is_decided =
            |name: &&str| !self.refused.contains_key(*name) && self.half.iter().all(|h| h != name);
        shown.iter().map(Shown::name).filter(is_decided).collect()
    }
}

impl Shown {
    pub(super) fn text(&self, member: &str) -> &str {
        self.json[member].as_str().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.text("name")
    }

    pub(super) fn tag(&self) -> &str {
        self.text("tag").trim_matches('"')
    }

    /// Its name and state, in one line.
    pub(super) fn line(&self) -> String {
        let [name, state, why] = ["name", "state", "reason"].map(|member| self.text(member));
        printable_line(&format!("{name}: {state}: {why}"))
    }

    /// The canonical JSON of a part of the offered version.
    pub(super) fn object(&self, digest: &str) -> Option<Cow<'_, str>> {
        match &self.examined {
            Some(examined) => Some(examined.offered.as_ref()?.objects.get(digest)?.json()),
            None => self.json["objects"][digest].as_str().map(Cow::from),
        }
    }

    /// Whether the offered version is not approved.
    pub(super) fn is_unapproved(&self) -> bool {
        is_offered(&self.json) && !matches!(self.text("state"), "approved" | "unchecked")
    }

    /// Whether exactly the offered version is approved, with all of its texts.
    pub(super) fn is_approved_so(&self) -> bool {
        let (approved, offered) = (&self.json["approved"], &self.json["offered"]);
        let parts = ["definition", "source", "texts", "variants"];
        !approved.is_null() && parts.iter().all(|part| approved[part] == offered[part])
    }
}

/// Whether a prompt is offered.
pub(super) fn is_offered(row: &Value) -> bool {
    !row["offered"].is_null()
}

/// Whether a prompt waits for a decision.
pub(super) fn is_waiting(row: &Value) -> bool {
    is_offered(row) && matches!(row["state"].as_str(), Some("pending" | "changed"))
}

/// The texts that callers of an approved prompt got, and that could be approved as variants.
pub(super) fn variants(row: &Value) -> impl Iterator<Item = &Value> {
    let variants = row["variants"].as_array().filter(|_| row["state"] == "approved");
    variants.into_iter().flatten()
}

impl ApprovalBackend {
    /// Finds the running gateway, or starts one.
    ///
    /// # Errors
    /// With exit code 64 for mistakes in the configuration or the lock file.
    pub(super) async fn open(query: &ApprovalsQuery, need: Need) -> Result<Self, Failure> {
        if !query.offline
            && let Some(url) = Reach::running_admin(&query.view.file)
            && may_ask(&url, need).await
        {
            eprintln!("The running gateway answers, at {url}; --offline starts another one.");
            return Ok(Self::Running(url));
        }
        Ok(Self::Own(Box::new(OwnGateway::start(&query.view.file.config).await?)))
    }

    pub(super) async fn close(self) {
        if let Self::Own(own) = self {
            own.app.stop().await;
        }
    }

    /// Returns all prompts that are offered or in the lock file, with their states.
    pub(super) async fn rows(&self) -> Result<Vec<Value>, Failure> {
        match self {
            Self::Own(own) => {
                let rows = own.approvals.rows();
                let shown = rows.iter().map(Examined::known);
                Ok(shown.map(|examined| own.row(&examined)).collect())
            }
            Self::Running(url) => {
                let mut document = fetch_once(url, PATH).await?;
                let rows = document["prompts"].as_array_mut().map(std::mem::take);
                Ok(rows.unwrap_or_default())
            }
        }
    }

    /// Returns the digest of the lock file in use.
    pub(super) async fn lock(&self) -> Result<Value, Failure> {
        match self {
            Self::Own(own) => Ok(own.approvals.lock_digest().into()),
            Self::Running(url) => Ok(fetch_once(url, PATH).await?["lock"].take()),
        }
    }

    /// Returns the prompts that wait for a decision, or have variants to decide on. Those of a
    /// running gateway, which compares texts by itself, have no texts yet.
    pub(super) async fn waiting(&self) -> Result<Vec<Shown>, Failure> {
        let rows = self.rows().await?;
        let shown = match self {
            Self::Own(_) => {
                let offered = rows.iter().filter(|row| is_offered(row));
                let names = offered.filter_map(|row| row["name"].as_str().map(str::to_owned));
                self.look_at(&names.collect::<Vec<_>>()).await?
            }
            Self::Running(_) => {
                rows.into_iter().map(|json| Shown { json, examined: None }).collect()
            }
        };
        let is_open =
            |shown: &Shown| is_waiting(&shown.json) || variants(&shown.json).next().is_some();
        Ok(shown.into_iter().filter(is_open).collect())
    }

    /// Examines prompts, with their texts and differences.
    pub(super) async fn look_at(&self, names: &[String]) -> Result<Vec<Shown>, Failure> {
        self.look_at_each(names).await?.into_iter().collect()
    }

    /// Like [`Self::look_at`], but a failure concerns its prompt alone.
    ///
    /// # Errors
    /// A prompt is unknown.
    pub(super) async fn look_at_each(
        &self,
        names: &[String],
    ) -> Result<Vec<Result<Shown, Failure>>, Failure> {
        match self {
            Self::Own(own) => own.look_at_each(names).await,
            Self::Running(url) => {
                let mut looks = Vec::with_capacity(names.len());
                for name in names {
                    let path = format!("{PATH}/{}", percent::encoded_segment(name));
                    looks.push(match fetch_once(url, &path).await {
                        Ok(json) => Ok(Shown { json, examined: None }),
                        Err(failure) => Err(self.unknown_or(name, failure).await),
                    });
                }
                Ok(looks)
            }
        }
    }

    /// Whether each decision needs a reason.
    pub(super) async fn requires_reason(&self) -> Result<bool, Failure> {
        match self {
            Self::Own(own) => Ok(own.approvals.requires_reason()),
            Self::Running(url) => Ok(fetch_once(url, PATH).await?["requiresReason"] == true),
        }
    }

    /// Returns why a prompt cannot be shown: it is unknown, or else the failure.
    async fn unknown_or(&self, name: &str, failure: Failure) -> Failure {
        let Ok(rows) = self.rows().await else { return failure };
        let known: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
        if known.contains(&name) {
            return failure;
        }
        unknown(name, &known, &self.failures().await)
    }

    /// Returns the names of the prompts that an upstream offers.
    pub(super) async fn of_upstream(&self, id: &str) -> Result<Vec<String>, Failure> {
        let upstreams = self.upstreams().await?;
        match upstreams.iter().find(|(upstream, _)| upstream == id) {
            None => {
                let ids: Vec<_> = upstreams.iter().map(|(id, _)| id.as_str()).collect();
                let enabled = ids.join(", ");
                let message = format!("There is no enabled upstream {id}; enabled: {enabled}");
                return Err(Failure::usage(printable(&message)));
            }
            Some((_, Some(failure))) => return Err(Failure::new(failure.clone())),
            Some(_) => {}
        }
        let rows = self.rows().await?;
        let own = rows.iter().filter(|row| row["upstream"] == id && is_offered(row));
        Ok(own.filter_map(|row| row["name"].as_str().map(str::to_owned)).collect())
    }

    /// Says which lists of upstreams could not be fetched.
    pub(super) async fn failures(&self) -> Vec<String> {
        let upstreams = self.upstreams().await.unwrap_or_default();
        upstreams.into_iter().filter_map(|(_, failure)| failure).collect()
    }

    /// The ids of the upstreams, each with the reason why its list could not be fetched.
    async fn upstreams(&self) -> Result<Vec<(String, Option<String>)>, Failure> {
        match self {
            Self::Own(own) => {
                Ok(own.upstreams.iter().map(|own| (own.id.clone(), failure(own))).collect())
            }
            Self::Running(url) => {
                let document = fetch_once(url, "/api/v1/upstreams").await?;
                let rows = elements(&document["upstreams"]).iter();
                let row = |row: &Value| {
                    let id = row["upstream"].as_str().unwrap_or_default();
                    let why = row["error"]["message"].as_str();
                    (id.to_owned(), why.map(|why| printable(&format!("upstream {id}: {why}"))))
                };
                Ok(rows.map(row).collect())
            }
        }
    }

    /// Returns the callers of a prompt in the last week, as words; `None` if they are not known.
    pub(super) fn uses(&self, shown: &Shown) -> Option<String> {
        match self {
            Self::Own(own) => usage::recent(&own.config, shown.name()).map(|uses| uses.to_string()),
            Self::Running(_) => {
                let uses =
                    serde_json::from_value::<audit::usage::RecentUses>(shown.json["uses"].clone());
                uses.ok().map(|uses| uses.to_string())
            }
        }
    }

    /// Carries out a decision on the shown prompts.
    pub(super) async fn decide(
        &self,
        action: &Action,
        shown: &[Shown],
        why: Option<String>,
    ) -> Result<Outcome, Failure> {
        match self {
            Self::Own(own) => own.decide(action, shown, why).await,
            Self::Running(url) => decide_there(url, action, shown, why).await,
        }
    }
}

/// Whether the user of the command may ask a running gateway for `need`.
async fn may_ask(url: &str, need: Need) -> bool {
    if need != Need::States && !has_token() {
        return false;
    }
    match fetch_once(url, PATH).await {
        Ok(document) => {
            has_states(&document) && (need != Need::Decisions || document["takesDecisions"] == true)
        }
        Err(_) => false,
    }
}

/// Whether a running gateway compares prompts: with approvals off it has no states to show.
fn has_states(document: &Value) -> bool {
    let is_empty = elements(&document["prompts"]).is_empty();
    !(is_empty && document["lock"] == "none")
}

async fn decide_there(
    url: &str,
    action: &Action,
    shown: &[Shown],
    why: Option<String>,
) -> Result<Outcome, Failure> {
    let names: Vec<&str> = shown.iter().map(Shown::name).collect();
    let tags: Vec<String> = shown.iter().map(|shown| format!("\"{}\"", shown.tag())).collect();
    let mut body = json!({"prompts": names, "tags": tags, "by": user(), "why": why});
    let verb = match action {
        Action::Approve { unseen, partial } => {
            body["unseen"] = (*unseen).into();
            body["partial"] = (*partial).into();
            "approve"
        }
        Action::ApproveVariants { digests } => {
            body["variants"] = digests.clone().into();
            "approve"
        }
        Action::Reject => "reject",
        Action::Withdraw => "withdraw",
        Action::RollBack { to } => {
            body["to"] = to.clone().into();
            "rollback"
        }
    };
    let done = send_once(url, &format!("{PATH}/{verb}"), &body).await?;
    let texts = |member: &str| -> Vec<String> {
        let texts = elements(&done[member]).iter();
        texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut notes = texts("notes");
    if done["applied"] == false {
        notes.push("the gateway has not taken the lock file over yet".to_owned());
    }
    let half = texts("needsSecondPerson");
    let refused = serde_json::from_value(done["refused"].clone()).unwrap_or_default();
    Ok(Outcome { lock: done["lock"].clone(), notes, half, refused, definition: None })
}

impl OwnGateway {
    /// Starts the gateway of a configuration, and waits for its lists.
    pub(super) async fn start(path: &std::path::Path) -> Result<Self, Failure> {
        let mut config = load(path)?;
        let are_off =
            config.observe_approvals().map_err(|error| Failure::usage(error.to_string()))?;
        let app = App::new(config).map_err(|error| Failure::new(error.to_string()))?;
        let upstreams = app.summary().await;
        let approvals = app.approvals();
        let lock = Mutex::new(approvals.lock_digest().to_owned());
        Ok(Self { app, approvals, upstreams, are_off, config: path.to_owned(), lock })
    }

    pub(super) async fn stop(self) {
        self.app.stop().await;
    }

    /// A prompt as JSON, with the mode of the configuration.
    pub(super) fn row(&self, examined: &Examined) -> Value {
        self.with_mode(&ApprovalDocument::of(examined))
    }

    fn with_mode(&self, row: &impl Serialize) -> Value {
        let mut row = json!(row);
        if self.are_off {
            row["mode"] = Mode::Off.as_str().into();
        }
        row
    }

    async fn look_at_each(&self, names: &[String]) -> Result<Vec<Result<Shown, Failure>>, Failure> {
        let rows = self.approvals.rows();
        let find = |name: &String| {
            let found = rows.iter().find(|row| row.is_named(name)).cloned();
            found.ok_or_else(|| {
                let known: Vec<&str> = rows.iter().map(|row| row.public_name.as_str()).collect();
                unknown(name, &known, &self.failures().collect::<Vec<_>>())
            })
        };
        let rows = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut looks = Vec::with_capacity(rows.len());
        for examined in examine_all(&self.approvals, rows).await {
            looks.push(match examined {
                Ok(examined) => Ok(self.shown(examined).await),
                Err(error) => Err(Failure::new(error.to_string())),
            });
        }
        Ok(looks)
    }

    /// An examined prompt with its difference.
    pub(super) async fn shown(&self, examined: Examined) -> Shown {
        let (approvals, one) = (self.approvals.clone(), examined.clone());
        let diff = tokio::task::spawn_blocking(move || approvals.diff(&one)).await;
        let json = self.with_mode(&ShownApproval::of(&examined, diff.unwrap_or_default()));
        Shown { json, examined: Some(examined) }
    }

    /// The upstreams whose lists could not be fetched.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.upstreams.iter().filter_map(failure)
    }

    async fn decide(
        &self,
        action: &Action,
        shown: &[Shown],
        why: Option<String>,
    ) -> Result<Outcome, Failure> {
        let examined: Vec<Examined> =
            shown.iter().filter_map(|shown| shown.examined.clone()).collect();
        let decider = Decider::at_command_line(user(), why, wall_clock());
        let before = self.lock.lock().map(|lock| lock.clone()).ok();
        let outcome = self.approvals.decide(action, examined, before, &decider).await;
        let outcome = outcome.map_err(|error| match error {
            ApprovalError::ReadOnly { error, patch } => {
                // Only the patch goes to standard output, so that it can be piped.
                let _ = print(patch.trim_end_matches('\n'));
                Failure::new(format!("{error}; the patch on standard output makes the change"))
            }
            error => Failure::new(error.to_string()),
        })?;
        if let Ok(mut lock) = self.lock.lock() {
            lock.clone_from(&outcome.lock.digest);
        }
        let definition = outcome.versions.first().map(|version| version.definition.to_string());
        let DecisionOutcome { lock, notes, half, refused, .. } = outcome;
        Ok(Outcome { lock: lock.digest.into(), notes, half, refused, definition })
    }
}

/// Why the list of an upstream could not be fetched.
fn failure(upstream: &UpstreamStatus) -> Option<String> {
    let why = match &upstream.failure {
        Some(failure) => failure.diagnosis(),
        None if upstream.walk.is_none() => "it has not answered in time".to_owned(),
        None => return None,
    };
    Some(printable(&format!("upstream {}: {why}", upstream.id)))
}

fn unknown(name: &str, known: &[&str], failures: &[String]) -> Failure {
    let hint = suggestion(name, known.iter().copied());
    let failures: String = failures.iter().map(|failure| format!("\n{failure}")).collect();
    Failure::usage(printable(&format!(
        "No prompt {name} is offered or in the lock file{hint}{failures}"
    )))
}
