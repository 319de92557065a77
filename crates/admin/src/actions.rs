//! Actions of visitors: sign in and out, try prompts, and decide on them.

use http::header::{IF_MATCH, REFRESH};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use std::collections::BTreeMap;
use tokio::time::Instant;

use super::answer::Answer;
use super::console::text::Html;
use super::console::{Frame, LoginPage, SignedInPage};
use super::grants::Revocation;
use super::pages::trial::{self, Attempt};
use super::pages::{self, PageError, PageResult};
use super::pins::Decision;
use super::request::{PageRequest, Params};
use super::sign_in::{
    LocalPath, Redirect, Role, SignInError, SignedIn, Via, Visitor, is_same_site_post,
};
use super::{Admin, ClientOrigin, Form, LOGIN_FORM, State, beside_calls_within, has_type, html};
use domain::percent;
use gateway::downstream::clock::now;
use gateway::router::approvals::Action;

/// The body of a trial over the API.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TrialBody {
    arguments: BTreeMap<String, String>,
    /// The label of a caller or a group of the configuration.
    #[serde(rename = "as")]
    as_who: Option<String>,
    /// The argument to complete.
    argument: Option<String>,
}

impl Admin {
    /// The login form, and what it leads to.
    pub(super) async fn login(&self, head: &Parts, body: Incoming, from: &ClientOrigin) -> Answer {
        let params = Params::read(head.uri.query().unwrap_or_default().as_bytes());
        match (head.uri.path(), &head.method) {
            ("/login", &Method::GET | &Method::HEAD) => self.login_page(&params, None),
            ("/login", &Method::POST) => {
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
                        Answer::moved(to.as_str()).with_cookie(cookie)
                    }
                    Err(error) => self.login_page(&form, Some(&error)),
                }
            }
            ("/login/oidc", &Method::GET) => {
                let to = LocalPath::or_root(params.get("to"));
                match self.sign_in.begin(&from.site, &to, now()).await {
                    Ok(Redirect { location, cookie }) => {
                        Answer::redirect(location).with_cookie(cookie)
                    }
                    Err(error) => self.login_page(&params, Some(&error)),
                }
            }
            ("/login/callback", &Method::GET) => {
                let query = head.uri.query().unwrap_or_default();
                let (site, address) = (&from.site, from.address);
                match self.sign_in.finish(site, query, &head.headers, address, now()).await {
                    Ok(signed_in) => self.continue_after_sign_in(signed_in),
                    Err(error) => self.login_page(&Params::default(), Some(&error)),
                }
            }
            _ => self.error_page(&PageError::not_found("page at this address"), None),
        }
    }

    /// The page after a sign-in at a provider. It moves on by itself, since a browser that comes
    /// from another site sends no strict cookie along a chain of redirects.
    fn continue_after_sign_in(&self, SignedIn { cookies, return_to }: SignedIn) -> Answer {
        let page = SignedInPage { to: return_to.as_str() };
        let answer = Answer::html(StatusCode::OK, self.render_public("Signed in", &page));
        let [session, flow] = cookies;
        let refresh = return_to.refresh();
        answer.with_cookie(session).with_cookie(flow).with_header(REFRESH, refresh)
    }

    /// A page for visitors without a session.
    fn render_public(&self, title: &str, page: &impl askama::Template) -> String {
        let frame = Frame {
            title,
            gateway: &self.gateway,
            section: None,
            visitor: None,
            csrf: "",
            main: Html(page.render().unwrap_or_default()),
        };
        askama::Template::render(&frame).unwrap_or_default()
    }

    fn login_page(&self, params: &Params, error: Option<&SignInError>) -> Answer {
        let to = LocalPath::or_root(params.get("to"));
        let message = error.map(ToString::to_string);
        let page = LoginPage {
            to: to.as_str(),
            message: message.as_deref(),
            has_token: self.sign_in.takes_token(),
            has_oidc: self.sign_in.takes_oidc(),
        };
        let status = error.map_or(StatusCode::OK, SignInError::status);
        let answer = Answer::html(status, self.render_public("Sign in", &page));
        match error.and_then(SignInError::retry_after) {
            Some(seconds) => answer.retry_after(seconds),
            None => answer,
        }
    }

    /// A form of the console.
    pub(super) async fn action(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        from: &ClientOrigin,
        path: Vec<String>,
    ) -> PageResult<Answer> {
        let form = self.form(head, body, self.bounds()).await?;
        if !visitor.check_csrf(form.get("csrf")) || !is_same_site_post(&from.site, &head.headers) {
            return Err(foreign_form());
        }
        let segments: Vec<&str> = path.iter().map(String::as_str).collect();
        match segments.as_slice() {
            ["logout"] => {
                let cookie = self.sign_in.log_out(&from.site, visitor, now());
                Ok(Answer::moved("/login").with_cookie(cookie))
            }
            ["prompts", name, "try"] => self.try_in_console(visitor, name, form).await,
            ["prompts", name, "complete"] => {
                let argument = form.get("argument").to_owned();
                let values = self.completions(visitor, name, form, argument).await?;
                Ok(Answer::json(StatusCode::OK, &serde_json::json!({ "values": values })))
            }
            ["approvals", "decide"] => self.decide_in_console(visitor, &form).await,
            ["audit", "verification"] => self.verify(visitor),
            // Rules that are pasted are too long for an address.
            ["access"] => self.page(path, form, visitor, Form::Html).await,
            _ => Err(PageError::not_found("action at this address")),
        }
    }

    /// Starts a verification of the audit log.
    fn verify(&self, visitor: &Visitor) -> PageResult<Answer> {
        if visitor.role < Role::Tester {
            let message =
                "The log is verified by testers and approvers: it takes a processor for a while.";
            return Err(PageError::new(StatusCode::FORBIDDEN, message));
        }
        if let (Some(path), Some(audit)) = (self.state.audit.path(), &self.state.config.audit) {
            let State { verification, supervisor, .. } = &*self.state;
            verification.start(path, audit.clone(), supervisor);
        }
        Ok(Answer::moved("/audit/verification"))
    }

    /// The request for a prompt's page that runs a trial. Its deadline is later by the time of a
    /// call.
    fn trial_of(&self, name: &str, form: Params) -> PageRequest {
        let mut page_request = self.page_request(vec!["prompts".to_owned(), name.to_owned()], form);
        page_request.until += self.limits.request;
        page_request
    }

    /// Runs a trial, or a completion, with one of the permits for trials.
    async fn run_trial<T: Send + 'static>(
        &self,
        until: Instant,
        trial: impl Future<Output = PageResult<T>> + Send + 'static,
    ) -> PageResult<T> {
        beside_calls_within(&self.permits.trials, until, trial).await
    }

    async fn try_in_console(
        &self,
        visitor: &Visitor,
        name: &str,
        form: Params,
    ) -> PageResult<Answer> {
        let page_request = self.trial_of(name, form);
        let (state, who, gateway) = (self.state.clone(), visitor.clone(), self.gateway.clone());
        self.run_trial(page_request.until, async move {
            let name = page_request.path[1].clone();
            let attempt = attempt(&name, &page_request.params);
            let trial = trial::attempt(&state, &who, &page_request, &attempt).await?;
            let page =
                pages::prompt::with_trial(&state, &page_request, &who, &name, Some(trial)).await?;
            html(&page, &who, &gateway)
        })
        .await
    }

    async fn completions(
        &self,
        visitor: &Visitor,
        name: &str,
        form: Params,
        argument: String,
    ) -> PageResult<Vec<String>> {
        let page_request = self.trial_of(name, form);
        let (state, who) = (self.state.clone(), visitor.clone());
        self.run_trial(page_request.until, async move {
            let attempt = attempt(&page_request.path[1], &page_request.params);
            trial::complete(&state, &who, &page_request, &attempt, &argument).await
        })
        .await
    }

    /// `POST /api/v1/prompts/NAME/try` and `…/complete`.
    pub(super) async fn try_over_api(
        &self,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
        name: &str,
        completes: bool,
    ) -> Answer {
        if head.method != Method::POST {
            return Answer::not_allowed("POST");
        }
        let made = async {
            let body: TrialBody =
                self.json_body(head, body, "{\"arguments\": {\"NAME\": \"VALUE\"}}").await?;
            let page_request = self.trial_of(name, Params::default());
            let (state, who) = (self.state.clone(), visitor.clone());
            self.run_trial(page_request.until, async move {
                let arguments = body.arguments.iter();
                let attempt = Attempt {
                    name: &page_request.path[1],
                    arguments: arguments
                        .map(|(name, value)| (name.as_str(), value.as_str()))
                        .collect(),
                    as_who: body.as_who.as_deref(),
                };
                if completes {
                    let argument = body.argument.as_deref().unwrap_or_default();
                    let values =
                        trial::complete(&state, &who, &page_request, &attempt, argument).await?;
                    Ok(serde_json::json!({ "values": values }))
                } else {
                    let trial = trial::attempt(&state, &who, &page_request, &attempt).await?;
                    Ok(serde_json::to_value(&trial).unwrap_or_default())
                }
            })
            .await
        };
        match made.await {
            Ok(document) => Answer::json(StatusCode::OK, &document),
            Err(error) => Answer::error(error.status, &error.message),
        }
    }

    /// Takes a decision on prompts over the API.
    pub(super) async fn decide(
        &self,
        action: Action,
        head: &Parts,
        body: Incoming,
        visitor: &Visitor,
    ) -> Answer {
        if head.method != Method::POST {
            return Answer::not_allowed("POST");
        }
        if let Err(error) = self.check_approver(visitor) {
            return Answer::error(error.status, &error.message);
        }
        let what = r#"{"prompts": ["NAME"], "by": "…", "why": "…"}"#;
        let decision: Decision = match self.json_body(head, body, what).await {
            Ok(decision) => decision,
            Err(error) => return Answer::error(error.status, &error.message),
        };
        let decision = match visitor.via {
            // A person is recorded under the id of their session. A bearer token identifies no
            // person, so `by` is taken from the body.
            Via::Oidc => Decision { by: Some(visitor.id.clone()), ..decision },
            _ => decision,
        };
        let if_match = head.headers.get(IF_MATCH).and_then(|value| value.to_str().ok());
        match self.state.decide(action, decision, if_match).await {
            Ok(document) => Answer::json(StatusCode::OK, &document),
            Err((status, document)) => Answer::json(status, &document),
        }
    }

    /// Revokes accounts of callers at upstreams.
    pub(super) async fn revoke(&self, head: &Parts, body: Incoming, visitor: &Visitor) -> Answer {
        if head.method != Method::POST {
            return Answer::not_allowed("POST");
        }
        let made = async {
            self.check_approver(visitor)?;
            let what = r#"{"caller": "ID", "upstream": "ID"}"#;
            let revocation: Revocation = self.json_body(head, body, what).await?;
            Ok::<_, PageError>(self.state.revoke(revocation, visitor).await)
        };
        match made.await {
            Ok(document) => Answer::json(StatusCode::OK, &document),
            Err(error) => Answer::error(error.status, &error.message),
        }
    }

    /// Carries out a decision that a form has sent, with the entity tag of the version on its page.
    async fn decide_in_console(&self, visitor: &Visitor, form: &Params) -> PageResult<Answer> {
        self.check_approver(visitor)?;
        let action = match form.get("action") {
            "approve" => Action::Approve,
            "reject" => Action::Reject,
            "rollback" => Action::RollBack { to: None },
            _ => return Err(PageError::new(StatusCode::BAD_REQUEST, "Choose what to decide.")),
        };
        let name = form.get("prompt");
        let decision = Decision {
            prompts: vec![name.to_owned()],
            by: Some(visitor.id.clone()),
            why: form.some("why").map(str::to_owned),
            to: form.some("to").map(str::to_owned),
        };
        match self.state.decide(action, decision, form.some("tag")).await {
            Ok(_) => Ok(Answer::moved(&format!("/approvals/{}", percent::encoded_segment(name)))),
            Err((status, document)) => {
                let message = document["error"].as_str().unwrap_or_default().to_owned();
                Err(PageError::new(status, message))
            }
        }
    }

    /// # Errors
    /// The visitor may not decide; the text names the remedy.
    fn check_approver(&self, visitor: &Visitor) -> PageResult<()> {
        if visitor.role >= Role::Approver {
            return Ok(());
        }
        let message = if self.config.write {
            "you are no approver: sign in with admin.token, or ask for a group of admin.oidc.approvers"
        } else {
            "the admin API is read-only; set admin.write = true (versions of prompts can also be decided on with `promptgate approvals`)"
        };
        Err(PageError::new(StatusCode::FORBIDDEN, message))
    }

    /// Reads a body of JSON. `what` is an example.
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

/// Whether a path of the console takes forms alone.
pub(super) fn is_action(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        path.as_slice(),
        ["logout"] | ["approvals", "decide"] | ["prompts", _, "try" | "complete"]
    )
}

/// The page that has the form of an action.
pub(super) fn page_of_action(path: &[String]) -> String {
    let segments: Vec<_> =
        path[..path.len() - 1].iter().map(|part| percent::encoded_segment(part)).collect();
    format!("/{}", segments.join("/"))
}

/// A form of another site, or of a session that has ended.
fn foreign_form() -> PageError {
    let message =
        "The form does not belong to your session. Go back, reload the page and try again.";
    PageError::new(StatusCode::FORBIDDEN, message)
}

/// Reads the trial form of a prompt's page: `arg.NAME`, and `as`.
fn attempt<'a>(name: &'a str, form: &'a Params) -> Attempt<'a> {
    Attempt { name, arguments: form.with_prefix("arg.").collect(), as_who: form.some("as") }
}
