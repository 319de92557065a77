//! Actions of visitors: sign in and out, try prompts, and decide on them.

use http::header::{IF_MATCH, REFRESH};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

use super::accounts::{self, RevocationRequest};
use super::answer::AdminAnswer;
use super::approvals::{self, DecisionRequest, Refusal};
use super::console::text::Html;
use super::console::{ConsoleFrame, LoginPage, SignedInPage};
use super::labels::{self, MoveRequest, RemovalRequest};
use super::pages::trial::{self, Attempt};
use super::pages::{self, PageError, PageResult};
use super::removals::{self, AcceptanceRequest};
use super::request::{PageRequest, Params};
use super::rollouts;
use super::routes::{self, ConsolePage, FoundRoutes, Handler, LoginStep};
use super::sign_in::{LocalPath, Redirect, SignInError, SignedIn, Visitor, is_same_site_post};
use super::{
    AdminServer, AdminState, ClientOrigin, LOGIN_FORM, beside_calls_within, has_type, html,
};
use ::approvals::Action;
use audit::question::Question;
use audit::record::AuditEvent;
use calls::labels::LabelChange;
use calls::rollouts::changes::RolloutRequest;
use domain::approval::Decider;
use domain::text::percent;
use front::downstream::clock::now;

/// A trial of a prompt, as the body of a POST.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct TrialRequest {
    /// Empty values are not sent.
    #[serde(default)]
    arguments: BTreeMap<String, String>,
    /// With whose rights: a caller or `group NAME`, as `who` in `rights`. Only with `admin.try_as`.
    #[serde(rename = "as")]
    as_who: Option<String>,
}

/// The completion of an argument, as the body of a POST.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct CompletionRequest {
    /// The argument to complete; its value so far is among `arguments`.
    argument: String,
    #[serde(default)]
    arguments: BTreeMap<String, String>,
    /// As in a trial.
    #[serde(rename = "as")]
    as_who: Option<String>,
}

/// The body of a request to reload.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadRequest {
    /// Digest of the held file that the operator accepts: `held` of the status.
    accept: Option<String>,
}

/// The body of a question about usage and audit logs.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct EvidenceRequest {
    /// One of `usage`, `used`, `daily`, `find` and `record`; its content changes with the commands.
    #[cfg_attr(test, schemars(with = "serde_json::Map<String, serde_json::Value>"))]
    #[cfg_attr(test, schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
    question: Question,
    /// The only replica to ask: its name, its id, or a unique prefix of either.
    replica: Option<String>,
}

/// Longest wait for answers about usage and audit logs; other replicas have half of it.
const EVIDENCE: Duration = Duration::from_secs(9);

/// Longest wait for a reload, which may open another audit log and wait for lists of upstreams.
const RELOAD: Duration = Duration::from_secs(30);

impl AdminServer {
    /// Answers the routes of the sign-in: the login form, its POST, and the steps at a provider.
    pub(super) async fn login(
        &self,
        found: &FoundRoutes,
        head: &Parts,
        body: Incoming,
        from: &ClientOrigin,
    ) -> AdminAnswer {
        let params = Params::read(head.uri.query().unwrap_or_default().as_bytes());
        let step = match found.of(&head.method).map(|route| &route.handler) {
            Ok(Handler::Login(step)) => *step,
            _ => return self.error_page(&PageError::not_found("page at this address"), None),
        };
        match step {
            LoginStep::Page => self.login_page(&params, None),
            LoginStep::Token => {
                if !is_same_site_post(&from.site, &head.headers) {
                    return self.error_page(&foreign_form(), None);
                }
                let form = match self.form(head, body, LOGIN_FORM).await {
                    Ok(form) => form,
                    Err(error) => return self.error_page(&error, None),
                };
                let token = form.get("token").trim();
                match self.sign_in.log_in(&from.site, token, from.address, now()) {
                    Ok(cookie) => {
                        let to = LocalPath::or_root(form.get("to"));
                        AdminAnswer::moved(to.as_str()).with_cookie(cookie)
                    }
                    Err(error) => self.login_page(&form, Some(&error)),
                }
            }
            // HEAD neither begins nor ends a sign-in.
            LoginStep::BeginOidc | LoginStep::FinishOidc if head.method == Method::HEAD => {
                AdminAnswer::not_allowed("GET")
            }
            LoginStep::BeginOidc => {
                let to = LocalPath::or_root(params.get("to"));
                match self.sign_in.begin(&from.site, &to, now()).await {
                    Ok(Redirect { location, cookie }) => {
                        AdminAnswer::redirect(location).with_cookie(cookie)
                    }
                    Err(error) => self.login_page(&params, Some(&error)),
                }
            }
            LoginStep::FinishOidc => {
                let query = head.uri.query().unwrap_or_default();
                let (site, address) = (&from.site, from.address);
                match self.sign_in.finish(site, query, &head.headers, address, now()).await {
                    Ok(signed_in) => self.continue_after_sign_in(signed_in),
                    Err(error) => self.login_page(&Params::default(), Some(&error)),
                }
            }
        }
    }

    /// The page after a sign-in at a provider. It moves on by itself, since a browser that comes
    /// from another site sends no strict cookie along a chain of redirects.
    fn continue_after_sign_in(&self, SignedIn { cookies, return_to }: SignedIn) -> AdminAnswer {
        let page = SignedInPage { to: return_to.as_str() };
        let answer = AdminAnswer::html(StatusCode::OK, self.render_public("Signed in", &page));
        let [session, flow] = cookies;
        let refresh = return_to.refresh();
        answer.with_cookie(session).with_cookie(flow).with_header(REFRESH, refresh)
    }

    /// A page for visitors without a session.
    fn render_public(&self, title: &str, page: &impl askama::Template) -> String {
        let frame = ConsoleFrame {
            title,
            gateway: &self.gateway,
            section: None,
            visitor: None,
            csrf: "",
            main: Html(page.render().unwrap_or_default()),
        };
        askama::Template::render(&frame).unwrap_or_default()
    }

    fn login_page(&self, params: &Params, error: Option<&SignInError>) -> AdminAnswer {
        let to = LocalPath::or_root(params.get("to"));
        let message = error.map(ToString::to_string);
        let page = LoginPage {
            to: to.as_str(),
            message: message.as_deref(),
            has_token: self.sign_in.takes_token(),
            has_oidc: self.sign_in.takes_oidc(),
        };
        let status = error.map_or(StatusCode::OK, SignInError::status);
        let answer = AdminAnswer::html(status, self.render_public("Sign in", &page));
        match error.and_then(SignInError::retry_after) {
            Some(seconds) => answer.retry_after(seconds),
            None => answer,
        }
    }

    /// A form of the console.
    pub(super) async fn action(
        &self,
        action: routes::ConsoleForm,
        names: Vec<String>,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        from: &ClientOrigin,
    ) -> PageResult<AdminAnswer> {
        let form = self.form(head, body, self.bounds()).await?;
        if !visitor.check_csrf(form.get("csrf")) || !is_same_site_post(&from.site, &head.headers) {
            return Err(foreign_form());
        }
        let name = names.first().cloned().unwrap_or_default();
        match action {
            routes::ConsoleForm::Logout => {
                let cookie = self.sign_in.log_out(&from.site, visitor, now());
                Ok(AdminAnswer::moved("/login").with_cookie(cookie))
            }
            routes::ConsoleForm::Try => self.try_in_console(visitor, name, form).await,
            routes::ConsoleForm::Complete => {
                let argument = form.get("argument").to_owned();
                self.tried(visitor, form, async move |state, who, page_request| {
                    let attempt = attempt(&name, &page_request.params);
                    let completion =
                        trial::complete(&state, &who, &page_request, &attempt, &argument).await?;
                    Ok(AdminAnswer::json(StatusCode::OK, &completion))
                })
                .await
            }
            routes::ConsoleForm::Decide => self.decide_in_console(visitor, &form).await,
            routes::ConsoleForm::MoveLabel => {
                self.move_label_in_console(visitor, &name, &form).await
            }
            routes::ConsoleForm::ChangeRollout => {
                self.change_rollout_in_console(visitor, &name, &form).await
            }
            routes::ConsoleForm::Access => {
                self.page(ConsolePage::Access, names, form, visitor).await
            }
        }
    }

    /// Runs a trial or a completion outside the threads of calls, with a permit for trials. The
    /// time limit of a call is added to that of a page.
    async fn tried<F>(
        &self,
        visitor: &Visitor,
        params: Params,
        trial: impl FnOnce(Arc<AdminState>, Visitor, PageRequest) -> F,
    ) -> PageResult<AdminAnswer>
    where
        F: Future<Output = PageResult<AdminAnswer>> + Send + 'static,
    {
        let mut page_request = self.page_request(params);
        page_request.until += self.limits.request;
        let until = page_request.until;
        let trial = trial(self.state.clone(), visitor.clone(), page_request);
        beside_calls_within(&self.permits.trials, until, trial).await
    }

    async fn try_in_console(
        &self,
        visitor: &Visitor,
        name: String,
        form: Params,
    ) -> PageResult<AdminAnswer> {
        let gateway = self.gateway.clone();
        self.tried(visitor, form, async move |state, who, page_request| {
            let attempt = attempt(&name, &page_request.params);
            let trial = trial::attempt(&state, &who, &page_request, &attempt).await?;
            let page = pages::prompt::tried(&state, &page_request, &who, &name, trial);
            let page = Box::pin(page).await?;
            html(&page, &who, &gateway)
        })
        .await
    }

    /// `POST /api/v1/prompts/NAME/try`.
    pub(super) async fn try_over_api(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        name: &str,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"arguments": {"NAME": "VALUE"}}"#;
        let body: TrialRequest = self.json_body(head, body, what).await?;
        let name = name.to_owned();
        self.tried(visitor, Params::default(), async move |state, who, page_request| {
            let attempt = Attempt::given(&name, &body.arguments, body.as_who.as_deref());
            let trial = trial::attempt(&state, &who, &page_request, &attempt).await?;
            Ok(AdminAnswer::json(StatusCode::OK, &trial))
        })
        .await
    }

    /// `POST /api/v1/prompts/NAME/complete`.
    pub(super) async fn complete_over_api(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        name: &str,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"argument": "NAME", "arguments": {"NAME": "VALUE"}}"#;
        let body: CompletionRequest = self.json_body(head, body, what).await?;
        let name = name.to_owned();
        self.tried(visitor, Params::default(), async move |state, who, page_request| {
            let attempt = Attempt::given(&name, &body.arguments, body.as_who.as_deref());
            let completion =
                trial::complete(&state, &who, &page_request, &attempt, &body.argument).await?;
            Ok(AdminAnswer::json(StatusCode::OK, &completion))
        })
        .await
    }

    /// Shows one prompt as its upstream offers it now.
    pub(super) async fn examined_over_api(&self, name: &str) -> PageResult<AdminAnswer> {
        let until = Instant::now() + self.config.render_timeout;
        let document = approvals::one(&self.state, name, until).await?;
        Ok(AdminAnswer::json(StatusCode::OK, &document))
    }

    /// Takes a decision on prompts over the API.
    pub(super) async fn decide(
        &self,
        action: Action,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"prompts": ["NAME"], "by": "…", "why": "…"}"#;
        let decision: DecisionRequest = self.json_body(head, body, what).await?;
        let if_match = head.headers.get(IF_MATCH).and_then(|value| value.to_str().ok());
        let decided = approvals::decide(&self.state, action, decision, visitor, if_match).await;
        Ok(api_answer(decided))
    }

    /// Moves a label of a library prompt.
    pub(super) async fn move_label(
        &self,
        [name, label]: [&str; 2],
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"version": 3, "by": "…", "why": "…"}"#;
        let MoveRequest { version, new, by, why } = self.json_body(head, body, what).await?;
        let change = LabelChange { label, version: Some(version), is_new: new };
        self.change_label(name, change, head, &visitor.decider(by, why)).await
    }

    /// Removes a label of a library prompt.
    pub(super) async fn remove_label(
        &self,
        [name, label]: [&str; 2],
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"by": "…", "why": "…"}"#;
        let RemovalRequest { by, why } = self.json_body(head, body, what).await?;
        let change = LabelChange { label, version: None, is_new: false };
        self.change_label(name, change, head, &visitor.decider(by, why)).await
    }

    async fn change_label(
        &self,
        name: &str,
        change: LabelChange<'_>,
        head: &Parts,
        decider: &Decider,
    ) -> PageResult<AdminAnswer> {
        let if_match = head.headers.get(IF_MATCH).and_then(|value| value.to_str().ok());
        Ok(api_answer(labels::change(&self.state, name, change, decider, if_match).await))
    }

    /// Revokes accounts of callers at upstreams.
    pub(super) async fn revoke(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"caller": "ID", "upstream": "ID"}"#;
        let revocation: RevocationRequest = self.json_body(head, body, what).await?;
        Ok(AdminAnswer::json(
            StatusCode::OK,
            &accounts::revoke(&self.state, revocation, visitor).await,
        ))
    }

    /// Applies the removal of prompts that an upstream holds back.
    pub(super) async fn accept_removal(
        &self,
        upstream: &str,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"by": "…", "why": "…"}"#;
        let request: AcceptanceRequest = self.json_body(head, body, what).await?;
        Ok(api_answer(removals::accept(&self.state, upstream, request, visitor)))
    }

    /// Changes the rollout of a prompt.
    pub(super) async fn change_rollout(
        &self,
        name: &str,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"action": "start", "to": "candidate", "share": 0.05}"#;
        let request: RolloutRequest = self.json_body(head, body, what).await?;
        Ok(api_answer(rollouts::change(&self.state, name, &request, visitor).await))
    }

    /// Answers the question of a command about usage and audit logs.
    pub(super) async fn evidence(&self, head: &Parts, body: Incoming) -> PageResult<AdminAnswer> {
        let what = r#"{"question": {"record": {"seq": 1}}, "replica": null}"#;
        let EvidenceRequest { question, replica } = self.json_body(head, body, what).await?;
        let until = Instant::now() + EVIDENCE;
        let question = |_: &str| Some(question.clone());
        let answers = self.state.ask(replica.as_deref(), question, until).await;
        Ok(AdminAnswer::json(StatusCode::OK, &answers))
    }

    /// Requests a reload of the configuration.
    pub(super) async fn reload(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> PageResult<AdminAnswer> {
        let what = r#"{"accept": null}"#;
        let request: ReloadRequest = self.json_body(head, body, what).await?;
        let AdminState { reloads, audit, .. } = &*self.state;
        let event = AuditEvent::new("reload_requested").text("by", &visitor.id);
        audit.note(event.optional_text("accepted", request.accept.as_deref()));
        let done = reloads.request(request.accept);
        if timeout(RELOAD, done).await.is_err() {
            let message = "the reload takes too long; see /api/v1/status for its outcome";
            return Err(PageError::new(StatusCode::GATEWAY_TIMEOUT, message));
        }
        Ok(AdminAnswer::json(StatusCode::OK, &reloads.counts()))
    }

    /// Carries out a decision that a form has sent, with the entity tags of the versions on its
    /// page, and leads to the next prompt that waits.
    async fn decide_in_console(&self, visitor: &Visitor, form: &Params) -> PageResult<AdminAnswer> {
        let action = match form.get("action") {
            "approve" => Action::Approve { unseen: false, partial: false },
            "reject" => Action::Reject,
            // Both affect every caller, so a click alone is not enough: a reason is needed.
            "withdraw" | "rollback" if form.get("why").trim().is_empty() => {
                let message = "Give the reason: this takes the approved version from everybody.";
                return Err(PageError::new(StatusCode::BAD_REQUEST, message));
            }
            "withdraw" => Action::Withdraw,
            "rollback" => Action::RollBack { to: None },
            _ => return Err(PageError::new(StatusCode::BAD_REQUEST, "Choose what to decide.")),
        };
        let names: Vec<String> = form.all("prompt").map(str::to_owned).collect();
        let decided = names.clone();
        let is_of_waiting = matches!(action, Action::Approve { .. } | Action::Reject);
        let decision = DecisionRequest {
            prompts: names,
            by: Some(visitor.id.clone()),
            why: form.some("why").map(str::to_owned),
            to: form.some("to").map(str::to_owned),
            unseen: form.some("unseen").is_some(),
            variants: form.some("variant").map(str::to_owned).into_iter().collect(),
            partial: decided.len() > 1,
            tags: form.all("tag").filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        };
        match approvals::decide(&self.state, action, decision, visitor, None).await {
            Ok(done) if !done.refused.is_empty() => {
                let refused = done.refused.iter().map(|(name, why)| format!("{name}: {why}"));
                let refused = refused.collect::<Vec<_>>().join("; ");
                let message = format!("Approved, except for: {refused}.");
                Err(PageError::new(StatusCode::CONFLICT, message))
            }
            Ok(_) => {
                let last = decided.last().cloned().unwrap_or_default();
                let next = pages::approvals::next_waiting(&self.state, &decided);
                let to = next.filter(|_| is_of_waiting).unwrap_or_else(|| last.clone());
                let [to, after] = [&to, &last].map(|name| percent::encoded_segment(name));
                Ok(AdminAnswer::moved(&format!("/approvals/{to}?after={after}")))
            }
            Err((status, document)) => Err(PageError::new(status, document.error)),
        }
    }

    /// Moves the label that a form names, and leads back to the versions.
    async fn move_label_in_console(
        &self,
        visitor: &Visitor,
        page: &str,
        form: &Params,
    ) -> PageResult<AdminAnswer> {
        let Ok(version) = form.get("version").parse() else {
            return Err(PageError::new(StatusCode::BAD_REQUEST, "Choose a version."));
        };
        let why = form.some("why").map(str::to_owned);
        let decider = visitor.decider(Some(visitor.id.clone()), why);
        let name = form.get("prompt");
        let change =
            LabelChange { label: form.get("label"), version: Some(version), is_new: false };
        let tag = form.some("tag");
        back_to_versions(page, labels::change(&self.state, name, change, &decider, tag).await)
    }

    /// Changes the rollout of a prompt as a form says, and leads back to the versions. Shares are
    /// percentages there.
    async fn change_rollout_in_console(
        &self,
        visitor: &Visitor,
        name: &str,
        form: &Params,
    ) -> PageResult<AdminAnswer> {
        let share = |key: &str| form.get(key).parse::<f64>().ok().map(|percent| percent / 100.0);
        let request = serde_json::json!({
            "action": form.get("action"),
            "to": form.some("to"),
            "share": share("share"),
            "rollback": share("rollback"),
            "why": form.some("why"),
        });
        let bad = |why| PageError::new(StatusCode::BAD_REQUEST, format!("Fill in the form: {why}"));
        let request: RolloutRequest = serde_json::from_value(request).map_err(bad)?;
        back_to_versions(name, rollouts::change(&self.state, name, &request, visitor).await)
    }

    /// Parses a JSON body. `what` is an example for the error message.
    async fn json_body<T: serde::de::DeserializeOwned>(
        &self,
        head: &Parts,
        body: Incoming,
        what: &str,
    ) -> PageResult<T> {
        if !has_type(&head.headers, "application/json") {
            let message = "send Content-Type: application/json";
            return Err(PageError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let body = self.body(body, self.bounds()).await?;
        let bad = |why| PageError::new(StatusCode::BAD_REQUEST, format!("send {what}: {why}"));
        serde_json::from_slice(&body).map_err(bad)
    }
}

/// The answer of the API to a change, or to its refusal.
fn api_answer(changed: Result<impl Serialize, Refusal>) -> AdminAnswer {
    match changed {
        Ok(document) => AdminAnswer::json(StatusCode::OK, &document),
        Err((status, document)) => AdminAnswer::json(status, &document),
    }
}

/// Leads from a form back to the versions of the page's prompt, or shows the refusal.
fn back_to_versions<T>(page: &str, changed: Result<T, Refusal>) -> PageResult<AdminAnswer> {
    match changed {
        Ok(_) => {
            let page = percent::encoded_segment(page);
            Ok(AdminAnswer::moved(&format!("/prompts/{page}/versions")))
        }
        Err((status, document)) => Err(PageError::new(status, document.error)),
    }
}

/// A form of another site, or of a session that has ended.
fn foreign_form() -> PageError {
    let message =
        "The form does not belong to your session. Go back, reload the page and try again.";
    PageError::new(StatusCode::FORBIDDEN, message)
}

/// Reads the trial form of a prompt's page: `arg.NAME`, `as` and `version`.
fn attempt<'a>(name: &'a str, form: &'a Params) -> Attempt<'a> {
    let is_offered = form.get("version") == "offered";
    let arguments = form.with_prefix("arg.").collect();
    Attempt { name, arguments, as_who: form.some("as"), is_offered }
}
