//! The routes of the admin side: the handler of each path, and the least role that it requires. The
//! checks of roles, `Allow`, and the paths of openapi.json follow from the table.

use http::{Method, StatusCode};

use super::answer::AdminAnswer;
use super::console::PromptTab;
use super::sign_in::Role;
use super::state::AdminState;
use super::{approvals, labels, rollouts};
use ::approvals::Action;
use domain::text::percent;

/// One method of one path.
pub(super) struct Route {
    /// GET stands for HEAD, too.
    pub method: Method,
    /// A segment in braces is a name of any text.
    pub path: &'static str,
    /// `None`: no credential is needed.
    pub role: Option<Role>,
    pub handler: Handler,
}

/// The handler of a route.
pub(super) enum Handler {
    Livez,
    Readyz,
    Metrics,
    OpenApi,
    Document(fn(&AdminState) -> AdminAnswer),
    /// One prompt as its upstream offers it now.
    Approval,
    Decide(Action),
    MoveLabel,
    RemoveLabel,
    Accounts,
    Revoke,
    AcceptRemoval,
    ChangeRollout,
    Reload,
    /// Usage and audit logs of all replicas.
    Evidence,
    Try,
    Complete,
    Login(LoginStep),
    Page(ConsolePage),
    Form(ConsoleForm),
}

/// A step of the sign-in.
#[derive(Clone, Copy)]
pub(super) enum LoginStep {
    Page,
    Token,
    BeginOidc,
    FinishOidc,
}

/// A page of the console.
#[derive(Clone, Copy)]
pub(super) enum ConsolePage {
    Overview,
    Search,
    Prompts,
    Prompt(PromptTab),
    Skill(PromptTab),
    Upstreams,
    Upstream,
    Access,
    Approvals,
    Approval,
    Usage,
    Audit,
    Record,
    Configuration,
    Connect,
}

/// A form of the console.
#[derive(Clone, Copy)]
pub(super) enum ConsoleForm {
    Logout,
    Try,
    Complete,
    Decide,
    MoveLabel,
    ChangeRollout,
    /// Rules that are pasted are too long for an address.
    Access,
}

/// The part of the admin side that a route belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RoutePart {
    /// Without a credential, and without a session: orchestrators have neither.
    Probe,
    Api,
    Login,
    Console,
}

/// The routes of one path, with the names in it, decoded.
#[derive(Debug)]
pub(super) struct FoundRoutes {
    path: &'static str,
    pub part: RoutePart,
    pub names: Vec<String>,
}

const VIEWER: Option<Role> = Some(Role::Viewer);
const TESTER: Option<Role> = Some(Role::Tester);
const APPROVER: Option<Role> = Some(Role::Approver);

/// The body of a request has its options.
const APPROVE: Action = Action::Approve { unseen: false, partial: false };

/// A path without names comes before one that it matches, too.
pub(super) static ROUTES: [Route; 60] = [
    get("/livez", None, Handler::Livez),
    get("/readyz", None, Handler::Readyz),
    get("/metrics", VIEWER, Handler::Metrics),
    get("/api/v1/openapi.json", VIEWER, Handler::OpenApi),
    get("/api/v1/status", VIEWER, Handler::Document(|state| ok(&state.status()))),
    get("/api/v1/upstreams", VIEWER, Handler::Document(|state| ok(&state.upstreams()))),
    post("/api/v1/upstreams/{id}/accept", APPROVER, Handler::AcceptRemoval),
    get("/api/v1/catalog", VIEWER, Handler::Document(|state| ok(&state.catalog()))),
    get("/api/v1/replicas", VIEWER, Handler::Document(|state| ok(&state.replicas()))),
    post("/api/v1/evidence", VIEWER, Handler::Evidence),
    get("/api/v1/accounts", VIEWER, Handler::Accounts),
    post("/api/v1/accounts/revoke", APPROVER, Handler::Revoke),
    get("/api/v1/rollouts", VIEWER, Handler::Document(|state| ok(&rollouts::all(state)))),
    post("/api/v1/rollouts/{name}", APPROVER, Handler::ChangeRollout),
    post("/api/v1/reload", APPROVER, Handler::Reload),
    get("/api/v1/approvals", VIEWER, Handler::Document(approvals::answer)),
    post("/api/v1/approvals/approve", APPROVER, Handler::Decide(APPROVE)),
    post("/api/v1/approvals/reject", APPROVER, Handler::Decide(Action::Reject)),
    post("/api/v1/approvals/withdraw", APPROVER, Handler::Decide(Action::Withdraw)),
    post("/api/v1/approvals/rollback", APPROVER, Handler::Decide(Action::RollBack { to: None })),
    get("/api/v1/approvals/{name}", TESTER, Handler::Approval),
    get("/api/v1/labels", VIEWER, Handler::Document(|state| ok(&labels::all(state)))),
    put("/api/v1/labels/{name}/{label}", APPROVER, Handler::MoveLabel),
    delete("/api/v1/labels/{name}/{label}", APPROVER, Handler::RemoveLabel),
    post("/api/v1/prompts/{name}/try", TESTER, Handler::Try),
    post("/api/v1/prompts/{name}/complete", TESTER, Handler::Complete),
    get("/login", None, Handler::Login(LoginStep::Page)),
    post("/login", None, Handler::Login(LoginStep::Token)),
    get("/login/oidc", None, Handler::Login(LoginStep::BeginOidc)),
    get("/login/callback", None, Handler::Login(LoginStep::FinishOidc)),
    post("/logout", VIEWER, Handler::Form(ConsoleForm::Logout)),
    get("/", VIEWER, Handler::Page(ConsolePage::Overview)),
    get("/overview", VIEWER, Handler::Page(ConsolePage::Overview)),
    get("/search", VIEWER, Handler::Page(ConsolePage::Search)),
    get("/prompts", VIEWER, Handler::Page(ConsolePage::Prompts)),
    get("/prompts/{name}", VIEWER, tab(PromptTab::Text)),
    get("/prompts/{name}/try", VIEWER, tab(PromptTab::Try)),
    post("/prompts/{name}/try", TESTER, Handler::Form(ConsoleForm::Try)),
    get("/prompts/{name}/versions", VIEWER, tab(PromptTab::Versions)),
    post("/prompts/{name}/versions", APPROVER, Handler::Form(ConsoleForm::MoveLabel)),
    post("/prompts/{name}/rollout", APPROVER, Handler::Form(ConsoleForm::ChangeRollout)),
    get("/prompts/{name}/access", VIEWER, tab(PromptTab::Access)),
    get("/prompts/{name}/uses", VIEWER, tab(PromptTab::Uses)),
    post("/prompts/{name}/complete", TESTER, Handler::Form(ConsoleForm::Complete)),
    get("/skills/{name}", VIEWER, skill_tab(PromptTab::Text)),
    get("/skills/{name}/versions", VIEWER, skill_tab(PromptTab::Versions)),
    get("/skills/{name}/access", VIEWER, skill_tab(PromptTab::Access)),
    get("/skills/{name}/uses", VIEWER, skill_tab(PromptTab::Uses)),
    get("/upstreams", VIEWER, Handler::Page(ConsolePage::Upstreams)),
    get("/upstreams/{id}", VIEWER, Handler::Page(ConsolePage::Upstream)),
    get("/access", VIEWER, Handler::Page(ConsolePage::Access)),
    post("/access", VIEWER, Handler::Form(ConsoleForm::Access)),
    get("/approvals", VIEWER, Handler::Page(ConsolePage::Approvals)),
    post("/approvals/decide", APPROVER, Handler::Form(ConsoleForm::Decide)),
    get("/approvals/{name}", VIEWER, Handler::Page(ConsolePage::Approval)),
    get("/usage", VIEWER, Handler::Page(ConsolePage::Usage)),
    get("/audit", VIEWER, Handler::Page(ConsolePage::Audit)),
    get("/audit/{seq}", VIEWER, Handler::Page(ConsolePage::Record)),
    get("/configuration", VIEWER, Handler::Page(ConsolePage::Configuration)),
    get("/connect", VIEWER, Handler::Page(ConsolePage::Connect)),
];

impl Route {
    /// Whether the route decides on versions of prompts.
    pub(super) fn is_of_approvals(&self) -> bool {
        matches!(self.handler, Handler::Decide(_) | Handler::Form(ConsoleForm::Decide))
    }
}

impl Handler {
    pub(super) fn part(&self) -> RoutePart {
        match self {
            Self::Livez | Self::Readyz => RoutePart::Probe,
            Self::Login(_) => RoutePart::Login,
            Self::Page(_) | Self::Form(_) => RoutePart::Console,
            _ => RoutePart::Api,
        }
    }
}

impl FoundRoutes {
    /// The route of a method.
    ///
    /// # Errors
    /// The path has none; the methods that it has, as `Allow` lists them (RFC 9110, section
    /// 15.5.6).
    pub(super) fn of(&self, method: &Method) -> Result<&'static Route, String> {
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let routes = || ROUTES.iter().filter(|route| route.path == self.path);
        routes().find(|route| route.method == *method).ok_or_else(|| {
            let all = routes().map(|route| route.method.as_str().replace("GET", "GET, HEAD"));
            all.collect::<Vec<_>>().join(", ")
        })
    }

    /// The parent path: that of the page with a form.
    pub(super) fn parent(&self) -> String {
        let (parent, _) = self.path.rsplit_once('/').unwrap_or_default();
        let mut names = self.names.iter();
        let parts = parent.split('/').skip(1).map(|part| {
            if part.starts_with('{') {
                percent::encoded_segment(names.next().map_or("", String::as_str))
            } else {
                part.to_owned()
            }
        });
        format!("/{}", parts.collect::<Vec<_>>().join("/"))
    }
}

/// Returns the routes of a path; `None` if it has none, or a name in it is not UTF-8 or means a
/// folder.
pub(super) fn find(path: &str) -> Option<FoundRoutes> {
    ROUTES.iter().find_map(|route| {
        let names = names(route.path, path)?;
        Some(FoundRoutes { path: route.path, part: route.handler.part(), names })
    })
}

/// The names in a path, if it is of this pattern. Slashes at the end count for nothing.
fn names(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let mut names = Vec::new();
    for expected in pattern.split('/').filter(|part| !part.is_empty()) {
        let part = parts.next()?;
        if expected.starts_with('{') {
            let name = percent::decoded(part)?;
            names.push(Some(name).filter(|name| name != "." && name != "..")?);
        } else if part != expected {
            return None;
        }
    }
    parts.next().is_none().then_some(names)
}

const fn tab(tab: PromptTab) -> Handler {
    Handler::Page(ConsolePage::Prompt(tab))
}

const fn skill_tab(tab: PromptTab) -> Handler {
    Handler::Page(ConsolePage::Skill(tab))
}

const fn get(path: &'static str, role: Option<Role>, handler: Handler) -> Route {
    Route { method: Method::GET, path, role, handler }
}

const fn post(path: &'static str, role: Option<Role>, handler: Handler) -> Route {
    Route { method: Method::POST, path, role, handler }
}

const fn put(path: &'static str, role: Option<Role>, handler: Handler) -> Route {
    Route { method: Method::PUT, path, role, handler }
}

const fn delete(path: &'static str, role: Option<Role>, handler: Handler) -> Route {
    Route { method: Method::DELETE, path, role, handler }
}

fn ok(document: &impl serde::Serialize) -> AdminAnswer {
    AdminAnswer::json(StatusCode::OK, document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_tricks_have_no_route() {
        for path in ["/prompts/%2e%2e", "/prompts/%2E", "/prompts/%ff", "/prompts/%", "/%61ccess"] {
            assert!(find(path).is_none(), "{path}");
        }
        assert_eq!(find("/prompts/a%2Fb").expect("a page").names, ["a/b"]);
        assert_eq!(find("//prompts//").expect("a page").path, "/prompts");
    }

    #[test]
    fn a_path_without_names_comes_first_and_a_form_leads_to_its_page() {
        for (path, allowed, parent) in [
            ("/approvals/decide", "POST", "/approvals"),
            ("/prompts/a%20%22b/complete", "POST", "/prompts/a%20%22b"),
            ("/api/v1/status", "GET, HEAD", "/api/v1"),
            ("/logout", "POST", "/"),
        ] {
            let found = find(path).expect("a route");
            assert_eq!(found.of(&Method::PUT).err().as_deref(), Some(allowed), "{path}");
            assert_eq!(found.parent(), parent, "{path}");
        }
    }
}
