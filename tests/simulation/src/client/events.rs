//! The events of a stream (Server-Sent Events).

use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

pub struct Events {
    body: Incoming,
    text: String,
}

impl Events {
    pub fn new(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), text: String::new() }
    }

    /// Returns the data of the next event; `None` at the end.
    pub async fn next_data(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().filter_map(|line| line.strip_prefix("data:"));
                let data = data.map(str::trim_start).collect();
                self.text = rest.to_owned();
                return Some(data);
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.text.push_str(&String::from_utf8_lossy(&data));
            }
        }
    }

    /// Returns the next message; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            let data = self.next_data().await?;
            if let Ok(message) = serde_json::from_str(&data) {
                return Some(message);
            }
        }
    }
}
