//! A person's browser at the page at which callers sign in.

use url::{Url, form_urlencoded};

use super::client::{Client, Reply};
use super::wiki::browse;

pub const PAGE: &str = "https://gate.example.com/mcp/sign_in";

/// A browser with the cookie of the page. It follows no redirects.
pub struct Browser {
    client: Client,
    cookie: Option<String>,
}

impl Browser {
    pub fn new(client: Client) -> Self {
        Self { client, cookie: None }
    }

    /// The same browser at another replica.
    pub fn at(&self, client: Client) -> Self {
        Self { client, cookie: self.cookie.clone() }
    }

    async fn send(&mut self, method: &str, url: &str, form: &[(&str, &str)]) -> Reply {
        let url = Url::parse(url).unwrap();
        let path = format!("{}?{}", url.path(), url.query().unwrap_or_default());
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let cookie = self.cookie.clone().unwrap_or_default();
        let mut headers = vec![("Content-Type", "application/x-www-form-urlencoded")];
        if !cookie.is_empty() {
            headers.push(("Cookie", &cookie));
        }
        let reply = self.client.send(method, &path, &headers, body.as_bytes()).await;
        if let Some(set) = reply.header("set-cookie") {
            assert!(set.contains("; HttpOnly; SameSite=Lax; Secure"), "{set}");
            self.cookie = set.split(';').next().map(str::to_owned);
        }
        reply
    }

    pub async fn open(&mut self, url: &str) -> Reply {
        self.send("GET", url, &[]).await
    }

    /// Types the code and clicks.
    pub async fn click(&mut self, link: &str, code: &str) -> Reply {
        let value = Url::parse(link).unwrap();
        let value = value.query_pairs().find(|(name, _)| name == "link").unwrap().1.into_owned();
        self.send("POST", PAGE, &[("link", &value), ("code", code)]).await
    }

    /// Ends the own sign-in at an upstream.
    pub async fn end(&mut self, upstream: &str) -> Reply {
        self.send("POST", PAGE, &[("end", upstream)]).await
    }

    /// Clicks, and agrees at the authorization server; returns the address to which that sends the
    /// browser.
    pub async fn agree(&mut self, link: &str, code: &str) -> String {
        let clicked = self.click(link, code).await;
        assert_eq!(clicked.status, 303, "{}", text(&clicked));
        let away = Url::parse(clicked.header("location").unwrap()).unwrap();
        browse(&away).await.header("location").unwrap().to_owned()
    }

    /// Signs in, from the link to the last page.
    pub async fn sign_in(&mut self, link: &str, code: &str) {
        let back = self.agree(link, code).await;
        let last = self.open(&back).await;
        assert_eq!(last.status, 200, "{}", text(&last));
        assert!(text(&last).contains("You can go on"), "{}", text(&last));
    }
}

pub fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}
