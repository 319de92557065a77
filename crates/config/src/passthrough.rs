//! `[passthrough]`: the upstream for requests other than prompts (tools, resources, …).

use super::reader::Section;
use super::server::views::known_id;
use super::upstream::UpstreamSettings;
use domain::name::UpstreamId;

/// The keys of `[passthrough]`.
const KEYS: &str = r#"
upstream, such as "tools": Upstream whose tools, resources and other methods clients get, unmerged
    and unrenamed. Not set: no requests for tools and resources are passed on. See
    docs/exposure.md#tools-and-resources-of-one-server.
"#;

/// Reads the table, and marks the named upstream; `None` without a name, or if that upstream is not
/// enabled.
pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &mut [UpstreamSettings],
    disabled: &[UpstreamId],
) -> Option<UpstreamId> {
    section.explain(KEYS);
    let named = section.optional_text("upstream");
    let is_unknown = |name: &&str| {
        known_id(name, upstreams, disabled).is_none()
            && !section.is_broken(&format!("upstreams.{name}"))
    };
    if let Some(name) = named.as_deref().filter(is_unknown) {
        let enabled: Vec<_> = upstreams.iter().map(|other| other.id.as_str()).collect();
        let message = format!(
            "there is no upstream {name:?}; add [upstreams.{name}], or name one of: {}",
            enabled.join(", ")
        );
        section.mistake("upstream", message);
    }
    let upstream =
        upstreams.iter_mut().find(|upstream| Some(upstream.id.as_str()) == named.as_deref());
    if let Some(upstream) = &upstream
        && !upstream.transport.is_server()
    {
        let why = "has prompts only; name a server";
        section.mistake("upstream", format!("{:?} {why}", upstream.id.as_str()));
    }
    section.finish();
    let upstream = upstream?;
    upstream.is_passthrough = true;
    Some(upstream.id.clone())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    fn read(text: &str) -> Result<Config, String> {
        let toml = format!(
            "{text}[upstreams.tools]\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n\
             [upstreams.off]\nenabled = false\ntransport = \"http\"\nurl = \"http://127.0.0.1:1/\"\n\
             [upstreams.files]\ntransport = \"library\"\npath = \".\"\n\
             [upstreams.commits]\ntransport = \"git\"\nurl = \"https://git.example/p\"\n"
        );
        Config::parse("g", &toml, Path::new(""), &[]).map_err(|e| e.to_string())
    }

    #[test]
    fn one_server_is_named_and_everything_else_is_a_mistake_with_a_remedy() {
        let config = read("[passthrough]\nupstream = \"tools\"\n").unwrap();
        assert_eq!(config.passthrough.as_ref().unwrap().as_str(), "tools");
        assert!(config.upstreams.iter().all(|u| u.is_passthrough == (u.id.as_str() == "tools")));
        assert_eq!(read("").unwrap().passthrough, None);
        let earlier = read("[rest]\nupstream = \"tools\"\n").unwrap_err();
        assert!(earlier.contains("rest: its name is [passthrough]"), "{earlier}");
        assert_eq!(read("[passthrough]\nupstream = \"off\"\n").unwrap().passthrough, None);
        for (name, remedy) in [
            ("none", "add [upstreams.none]"),
            ("files", "has prompts only"),
            ("commits", "has prompts only"),
        ] {
            let mistake = read(&format!("[passthrough]\nupstream = \"{name}\"\n")).unwrap_err();
            assert!(
                mistake.contains(remedy) && mistake.contains("passthrough.upstream"),
                "{mistake}"
            );
        }
        let other = read("[passthrough]\nupstream = [\"tools\", \"files\"]\n").unwrap_err();
        assert!(other.contains("passthrough.upstream"), "{other}");
    }
}
