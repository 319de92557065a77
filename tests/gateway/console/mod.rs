//! The console and the admin API, over HTTP.

mod access;
mod attacks;
mod attention;
mod bounds;
mod configuration;
mod connect;
mod decisions;
mod described;
mod guards;
mod labels;
mod lists;
mod oidc;
mod pages;
mod records;
mod sign_in;
mod skills;
mod trials;
mod usage;
mod waiting;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::Client;
use crate::support::client::Reply;

/// `[admin]` with a token; what follows belongs to it.
const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = { value = \"t0ken\" }\n";

/// `[admin]` without a token.
const OPEN_ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A client with the token in its header.
fn with_token(admin: &Client) -> Client {
    admin.clone().with("Authorization", "Bearer t0ken")
}

/// The document at a path of the API.
async fn document(client: &Client, path: &str) -> Value {
    let reply = client.send("GET", &format!("/api/v1{path}"), &[], b"").await;
    assert_eq!(reply.status, 200, "{path}: {}", text(&reply));
    reply.json()
}

/// The cells of the rows of a table, as text; `label` names the table.
fn rows(page: &str, label: &str) -> Vec<Vec<String>> {
    let Some((_, table)) = page.split_once(&format!("aria-label=\"{label}\"")) else {
        return Vec::new();
    };
    let (_, body) = table.split_once("<tbody>").expect("a table");
    let (body, _) = body.split_once("</tbody>").expect("an end");
    let cell = |cell: &str| {
        let texts = cell.split('<').filter_map(|part| Some(part.split_once('>')?.1.trim()));
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        let text = texts.join(" ").replace("&lt;", "<").replace("&gt;", ">");
        text.replace("&quot;", "\"")
            .replace("&#34;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&")
    };
    let row = |row: &str| {
        let cells = row.replace("</th>", "</td>");
        let cells: Vec<_> = cells.split("</td>").map(cell).collect();
        cells[..cells.len() - 1].to_vec()
    };
    body.split("<tr").skip(1).map(row).collect()
}

/// Posts JSON to a path of the API.
async fn post(client: &Client, path: &str, body: &Value) -> Reply {
    let headers = [("Content-Type", "application/json")];
    client.send("POST", &format!("/api/v1{path}"), &headers, body.to_string().as_bytes()).await
}

fn text(reply: &Reply) -> String {
    String::from_utf8(reply.body.clone()).expect("UTF-8")
}

/// A browser: it keeps cookies, and says where a form comes from.
#[derive(Clone)]
struct Browser {
    client: Client,
    /// The host that the person has typed.
    host: String,
    cookies: BTreeMap<String, String>,
}

impl Browser {
    fn new(client: &Client) -> Self {
        let host = client.addr.to_string();
        Self { client: client.clone(), host, cookies: BTreeMap::new() }
    }

    /// The same browser at another host, which a proxy stands for.
    fn at(self, host: &str) -> Self {
        Self { host: host.to_owned(), ..self }
    }

    fn origin(&self) -> String {
        let is_local = self.host.starts_with("127.0.0.1") || self.host.starts_with("localhost");
        format!("{}://{}", if is_local { "http" } else { "https" }, self.host)
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Reply {
        let cookies: Vec<_> = self.cookies.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let cookies = cookies.join("; ");
        let mut all = vec![("Host", self.host.as_str()), ("Accept", "text/html,*/*;q=0.8")];
        all.extend((!cookies.is_empty()).then_some(("Cookie", cookies.as_str())));
        all.extend_from_slice(headers);
        let reply = self.client.send(method, path, &all, body).await;
        for line in set_cookies(&reply) {
            let (name, value) = line.split(';').next().unwrap().split_once('=').unwrap();
            if value.is_empty() {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.to_owned(), value.to_owned());
            }
        }
        reply
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").await
    }

    /// A page that is there.
    async fn page(&mut self, path: &str) -> String {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", text(&reply));
        text(&reply)
    }

    /// Sends a form of a page of this site.
    async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let origin = self.origin();
        self.submit_from(path, fields, &[("Origin", &origin)]).await
    }

    /// The same, with other headers about where it comes from.
    async fn submit_from(
        &mut self,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Reply {
        let body = form(fields);
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        self.send("POST", path, &[&kind, headers].concat(), body.as_bytes()).await
    }

    async fn log_in(&mut self, token: &str) -> Reply {
        self.submit("/login", &[("token", token), ("to", "/prompts")]).await
    }

    /// The token of the forms on a page.
    async fn csrf(&mut self, path: &str) -> String {
        hidden(&self.page(path).await, "csrf")
    }
}

/// A form as browsers write it.
fn form(fields: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

fn set_cookies(reply: &Reply) -> impl Iterator<Item = &str> {
    let all = reply.headers.iter().filter(|(name, _)| name == "set-cookie");
    all.map(|(_, value)| value.as_str())
}

/// The value of a hidden field on a page.
fn hidden(page: &str, name: &str) -> String {
    let start = format!("name=\"{name}\" value=\"");
    let after = page.split_once(&start).unwrap_or_else(|| panic!("no {name} on {page}")).1;
    after.split_once('"').unwrap().0.replace("&quot;", "\"").replace("&#34;", "\"")
}
