//! The page at which callers sign in to upstreams. It needs no credential: its link is sealed for
//! one caller, and the page lets in only that person, or a person who knows the code that the
//! client of the caller has shown. Without a link, it shows people their own sign-ins.

use std::sync::Arc;

use http::header::{COOKIE, LOCATION, REFERRER_POLICY, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use httpdate::fmt_http_date;
use url::form_urlencoded;

use super::respond::{self, Body};
use base::seal::Sealer;
use calls::Router;
use config::Config;
use domain::fault::TransportFault;
use domain::time::unix_time::UnixSeconds;
use logins::caller::{CallerFlow, FlowStep, LIFETIME, OwnVisit, PersonCheck, SignInLink};
use logins::sign_in::registration::CALLBACK;
use net::origin::origin_of;
use upstream::accounts::AccountStatus;
use upstream::auth::sign_in::CallerSignIns;

/// The sign-in page of one configuration.
pub(crate) struct SignInPage {
    /// The path at which the gateway serves it.
    path: String,
    /// Its public URL.
    url: String,
    sealer: Sealer,
    router: Arc<Router>,
    /// Names people, where the console has an OpenID provider.
    people: Option<Arc<dyn PersonCheck>>,
}

/// A page without a redirect: its status, and its content in HTML.
struct ShownPage(StatusCode, String);

/// A response that changes the browser's place or cookie, or else a page.
type PageAnswer = Result<Response<Body>, ShownPage>;

/// A link whose upstream has sign-ins.
struct OpenLink<'a> {
    link: SignInLink,
    sign_ins: &'a CallerSignIns,
}

/// The name of the cookie that holds a sign-in which has begun.
const FLOW: &str = "promptgate-sign-in";

impl SignInPage {
    /// Returns `None` where no caller signs in.
    pub(crate) fn new(
        config: &Config,
        router: &Arc<Router>,
        people: Option<Arc<dyn PersonCheck>>,
    ) -> Option<Self> {
        config.upstreams.iter().find(|upstream| upstream.caller_sign_in().is_some())?;
        Some(Self {
            path: config.server.sign_in_path(),
            url: config.server.sign_in_page()?,
            sealer: Sealer::new(config.server.seal_keys.as_ref()?),
            router: router.clone(),
            people,
        })
    }

    /// Whether the page, or the path to which browsers come back, is at this path.
    pub(crate) fn is_at(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.path);
        rest.is_some_and(|rest| rest.is_empty() || rest == CALLBACK)
    }

    /// Returns the response to a browser. `form` is the body of a POST.
    pub(crate) async fn answer(
        &self,
        head: &Parts,
        form: &[u8],
        now: UnixSeconds,
    ) -> Result<Response<Body>, TransportFault> {
        let query = head.uri.query().unwrap_or_default();
        let answered = match (&head.method, head.uri.path().ends_with(CALLBACK)) {
            (&Method::GET, true) => self.returned(query, &head.headers, now).await,
            (&Method::GET | &Method::HEAD, false) => self.show(query, &head.headers, now).await,
            (&Method::POST, false) => self.submit(form, &head.headers, now).await,
            _ => return Err(TransportFault::MethodNotAllowed { allow: "GET, POST" }),
        };
        Ok(answered.unwrap_or_else(ShownPage::response))
    }

    /// Shows the question that the caller is asked.
    async fn show(&self, query: &str, headers: &HeaderMap, now: UnixSeconds) -> PageAnswer {
        let value = parameter(query.as_bytes(), "link");
        if value.is_empty() {
            return self.visit(headers, now).await;
        }
        let open = self.open(&value, now)?;
        let checked = open.sign_ins.check(&open.link).await;
        checked.map_err(|why| open.refused(&why))?;
        Err(self.question(&open, &value, ""))
    }

    /// Begins or ends a sign-in after the click.
    async fn submit(&self, form: &[u8], headers: &HeaderMap, now: UnixSeconds) -> PageAnswer {
        let ended = parameter(form, "end");
        if !ended.is_empty() {
            let Some(OwnVisit::Named { issuer, subject, .. }) = self.own_visit(headers, now) else {
                return Err(ShownPage::over());
            };
            self.router.end_sign_ins_of(&issuer, &subject, &ended).await;
            return Err(self.own(&issuer, &subject).await);
        }
        let value = parameter(form, "link");
        let open = self.open(&value, now)?;
        if let Some(people) = self.naming(&open.link) {
            let begun = people.begin(now).await;
            let (location, state) = begun.map_err(|why| ShownPage::text(&why))?;
            let flow = CallerFlow { link: open.link, step: FlowStep::Person(state) };
            return self.redirect(location, &flow.seal(&self.sealer));
        }
        if !open.link.has_code(&parameter(form, "code"), &self.sealer) {
            open.sign_ins.refused(&open.link, "wrong_code", None);
            return Err(self.question(&open, &value, "This is not the code."));
        }
        self.begin(open).await
    }

    /// Takes back a browser from the provider or the authorization server.
    async fn returned(&self, query: &str, headers: &HeaderMap, now: UnixSeconds) -> PageAnswer {
        let flow = cookies(headers).find_map(|value| CallerFlow::open(&self.sealer, value, now));
        let Some(CallerFlow { link, step }) = flow else {
            return self.named(query, headers, now).await;
        };
        let open = self.with_upstream(link)?;
        let begun = match step {
            FlowStep::Upstream(begun) => begun,
            FlowStep::Person(state) => {
                let people = self.naming(&open.link).ok_or_else(ShownPage::over)?;
                let person = people.finish(&state, query, now).await;
                if person.as_ref().ok() != open.link.subject.as_ref() {
                    let why = person.err();
                    open.sign_ins.refused(&open.link, "other_person", why.as_deref());
                    let other = "This link is for another person. Use no links that others send.";
                    return Err(ShownPage::text(why.as_deref().unwrap_or(other)));
                }
                return self.begin(open).await;
            }
        };
        let finished = open.sign_ins.finish(&open.link, begun, query).await;
        finished.map_err(|why| open.refused(&why))?;
        let OpenLink { link, .. } = &open;
        self.router.complete_elicitation(&link.upstream, link.id(&self.sealer));
        self.router.take_up_login(&link.caller.key(&link.upstream)).await;
        let body = "You have signed in. You can go on in your client, and close this page.";
        Ok(self.with_cookie(ShownPage(StatusCode::OK, body.to_owned()).response(), "", 0))
    }

    /// Sends the browser to the authorization server of the upstream.
    async fn begin(&self, open: OpenLink<'_>) -> PageAnswer {
        let begun = open.sign_ins.begin(&open.link).await;
        let (location, begun) = begun.map_err(|why| open.refused(&why))?;
        let flow = CallerFlow { link: open.link, step: FlowStep::Upstream(begun) };
        self.redirect(location, &flow.seal(&self.sealer))
    }

    /// Shows a person its own sign-ins, or sends it to the provider, which names it.
    async fn visit(&self, headers: &HeaderMap, now: UnixSeconds) -> PageAnswer {
        if let Some(OwnVisit::Named { issuer, subject, .. }) = self.own_visit(headers, now) {
            return Err(self.own(&issuer, &subject).await);
        }
        let people = self.people.as_deref().ok_or_else(ShownPage::over)?;
        let (location, state) = people.begin(now).await.map_err(|why| ShownPage::text(&why))?;
        self.redirect(location, &OwnVisit::Begun(state).seal(&self.sealer))
    }

    /// Takes back the browser of a visitor from the provider.
    async fn named(&self, query: &str, headers: &HeaderMap, now: UnixSeconds) -> PageAnswer {
        let people = self.people.as_deref().ok_or_else(ShownPage::over)?;
        let Some(OwnVisit::Begun(state)) = self.own_visit(headers, now) else {
            return Err(ShownPage::over());
        };
        let subject = people.finish(&state, query, now).await;
        let subject = subject.map_err(|why| ShownPage::text(&why))?;
        let issuer = people.issuer().to_owned();
        let visit = OwnVisit::Named { issuer, subject, until: now.0.saturating_add(LIFETIME) };
        self.redirect(self.url.clone(), &visit.seal(&self.sealer))
    }

    fn own_visit(&self, headers: &HeaderMap, now: UnixSeconds) -> Option<OwnVisit> {
        cookies(headers).find_map(|value| OwnVisit::open(&self.sealer, value, now))
    }

    /// The page with the sign-ins of a person.
    async fn own(&self, issuer: &str, subject: &str) -> ShownPage {
        let row = |account: AccountStatus| {
            let upstream = escaped(&account.upstream);
            let since = account.signed_in_at.map(|at| fmt_http_date(at.writable().into()));
            let since = since.unwrap_or_default();
            format!(
                "<tr><td>{upstream}<td>{since}<td><form method=post action=\"{}\">\
                 <button name=end value=\"{upstream}\">End</button></form>",
                escaped(&self.url)
            )
        };
        let rows = self.router.sign_ins_of(issuer, subject).await.into_iter().map(row);
        let rows: String = rows.collect();
        let body = if rows.is_empty() {
            "You have signed in to no upstream.".to_owned()
        } else {
            format!("<table><tr><th>Upstream<th>Since<th>{rows}</table>")
        };
        ShownPage(StatusCode::OK, body)
    }

    fn redirect(&self, location: String, cookie: &str) -> PageAnswer {
        let location = HeaderValue::try_from(location).map_err(|_| ShownPage::over())?;
        let mut response = respond::empty(StatusCode::SEE_OTHER);
        response.headers_mut().insert(LOCATION, location);
        Ok(self.with_cookie(response, cookie, LIFETIME))
    }

    /// Sets the cookie. `SameSite=Lax`: browsers come back from another site.
    fn with_cookie(&self, mut response: Response<Body>, value: &str, age: u64) -> Response<Body> {
        let secure = if self.url.starts_with("https:") { "; Secure" } else { "" };
        let path = self.url.splitn(4, '/').nth(3).unwrap_or_default();
        let cookie =
            format!("{FLOW}={value}; Path=/{path}; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
        if let Ok(cookie) = HeaderValue::try_from(cookie) {
            response.headers_mut().insert(SET_COOKIE, cookie);
        }
        response
    }

    fn open(&self, value: &str, now: UnixSeconds) -> Result<OpenLink<'_>, ShownPage> {
        let link = SignInLink::open(&self.sealer, value, now);
        self.with_upstream(link.ok_or_else(ShownPage::over)?)
    }

    fn with_upstream(&self, link: SignInLink) -> Result<OpenLink<'_>, ShownPage> {
        let sign_ins = self.router.sign_ins(&link.upstream).ok_or_else(ShownPage::over)?;
        Ok(OpenLink { link, sign_ins })
    }

    /// Returns the provider that can name the caller of a link; `None`: the code is demanded.
    fn naming(&self, link: &SignInLink) -> Option<&dyn PersonCheck> {
        let people = self.people.as_deref()?;
        (link.subject.is_some() && link.caller.issuer == people.issuer()).then_some(people)
    }

    /// The page with the button, and with a field for the code where the person cannot be named.
    fn question(&self, open: &OpenLink<'_>, value: &str, mistake: &str) -> ShownPage {
        let OpenLink { link, sign_ins } = open;
        let scope = link.scope.as_deref().or(sign_ins.config.scope.as_deref());
        let code = match self.naming(link) {
            Some(_) => "",
            None => "<p><label>Code that your client shows <input name=code required></label>",
        };
        let body = format!(
            "<p role=alert>{mistake}<dl><dt>Upstream<dd>{}<dt>Its origin<dd>{}<dt>Scopes<dd>{}\
             <dt>For the caller<dd>{}</dl><p>Go on only if you have just asked for one of its prompts. \
             A link that others have sent would give them your account.\
             <form method=post action=\"{}\"><input type=hidden name=link value=\"{}\">{code}\
             <p><button>Sign in</button></form>",
            escaped(&link.upstream),
            escaped(&origin_of(&sign_ins.http.url)),
            escaped(scope.unwrap_or("those that it asks for")),
            escaped(&link.caller.id),
            escaped(&self.url),
            escaped(value),
        );
        ShownPage(if mistake.is_empty() { StatusCode::OK } else { StatusCode::FORBIDDEN }, body)
    }
}

impl OpenLink<'_> {
    /// Records a refusal, and returns its page.
    fn refused(&self, why: &str) -> ShownPage {
        self.sign_ins.refused(&self.link, "failed", Some(why));
        ShownPage::text(&format!("You have not signed in: {why}. Ask for the prompt again."))
    }
}

impl ShownPage {
    fn text(why: &str) -> Self {
        Self(StatusCode::FORBIDDEN, escaped(why))
    }

    fn over() -> Self {
        Self::text("This link is over, or did not begin in this browser. Ask for the prompt again.")
    }

    fn response(self) -> Response<Body> {
        let Self(status, body) = self;
        let text = format!(
            "<!doctype html><html lang=en><meta charset=utf-8>\
             <meta name=viewport content=\"width=device-width\"><title>promptgate</title>\n\
             <h1>Sign-ins at upstreams</h1>\n<p>{body}\n"
        );
        // Without `form-action`, which browsers apply to the redirect behind the form, too.
        let policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'";
        let mut response = respond::html(text, policy);
        *response.status_mut() = status;
        // The address holds the link. Without any referrer, the form would have no origin.
        let own = HeaderValue::from_static("same-origin");
        response.headers_mut().insert(REFERRER_POLICY, own);
        response
    }
}

/// Returns a parameter of a query or form; empty if it is missing.
fn parameter(form: &[u8], name: &str) -> String {
    let mut all = form_urlencoded::parse(form);
    all.find(|(own, _)| own == name).map_or(String::new(), |(_, value)| value.into_owned())
}

/// Returns the values of the cookie, which a browser may send several times for several paths.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';'));
    pairs.filter_map(|pair| pair.trim().strip_prefix(FLOW)?.strip_prefix('='))
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
