//! Protections that a changed configuration removes. A file that has lost its end, because the disk
//! was full or a template failed, must not open a closed endpoint or console: a reload that removes
//! a protection is rejected, unless the file removes it explicitly.

use super::lock::NO_FILE;
use super::{Config, in_use};
use domain::approval::Mode;
use domain::name::UpstreamId;

impl Config {
    /// Returns why this configuration must not replace `before`: the protections that it would
    /// remove implicitly, one sentence for each.
    pub fn unspoken_removals(&self, before: &Self) -> Vec<&'static str> {
        let removed = self.removals(before);
        let is_removed = |key| removed.contains(&key);
        let removals = [
            (
                is_removed("access"),
                "access: the file has no access rule any more, so every caller could use every prompt; if that is \
                 meant, write a rule without groups, callers and scopes: allow = [\"list\", \"get\", \"complete\"]",
            ),
            (
                is_removed("access.cedar")
                    && self.access.as_ref().is_some_and(|access| !access.is_fileless_by_choice),
                "access.cedar: the file names no policies any more, so what they forbid would be open; if that is meant, \
                 set access.cedar = \"\"",
            ),
            (
                is_removed("admin.token")
                    && self.admin.as_ref().is_some_and(|admin| !admin.is_open_by_choice),
                "admin.token: the file has no way to sign in to the console and the admin API any more, so whoever \
                 reaches their address could look; if that is meant, set admin.token = {}",
            ),
            (
                is_removed("auth") && !self.auth.is_open_by_choice,
                "auth: the file has no authentication method any more, so requests would need no credential; if \
                 that is meant, set auth.required = false",
            ),
            (
                is_removed("auth.mtls") && !self.auth.takes_all_by_choice,
                "auth.mtls: the file names no subjects of certificates any more, so every certificate of \
                 server.tls.client_ca would be a caller's; if that is meant, set auth.mtls = []",
            ),
            (
                is_removed("server.tls") && !self.server.is_plain_by_choice,
                "server.tls: the file has no certificate any more, so connections would not be encrypted; if that \
                 is meant, set server.tls = { cert = \"\", key = \"\" }",
            ),
            (
                self.unenforced(before).any(|id| !self.approvals.is_mode_given(id)),
                "approvals: the file enforces no approvals for an upstream any more, so prompts that nobody approved \
                 would be served; if that is meant, set approvals.mode, or approval of the upstream",
            ),
            (
                is_removed("approvals.approvers") && !self.approvals.is_given("approvers"),
                "approvals.approvers: the file needs no second person any more; if that is meant, set approvers = 1",
            ),
            (
                is_removed("approvals.require_reason")
                    && !self.approvals.is_given("require_reason"),
                "approvals.require_reason: the file needs no reason of decisions any more; if that is meant, set \
                 require_reason = false",
            ),
            (
                is_removed("approvals.unseen") && !self.approvals.is_given("unseen"),
                "approvals.unseen: the file no longer refuses texts that nobody has seen; if that is meant, set \
                 unseen = \"ask\"",
            ),
            (
                self.approvals.lock.digest == NO_FILE
                    && !before.approvals.lock.is_empty()
                    && self.upstreams.iter().any(|up| self.approvals.mode_of(&up.id) != Mode::Off),
                "approvals.lock: the lock file is gone; restore it, or restart the gateway if that is meant",
            ),
        ];
        removals.into_iter().filter(|(is_removed, _)| *is_removed).map(|(_, why)| why).collect()
    }

    /// Returns the error if this file looks like `before` without its end, because the disk was
    /// full or a template failed: the table `[end]` is missing now, or neither file had it and this
    /// file is a prefix of the file before. Any cut can open something, such as one that drops the
    /// last line of a rule.
    pub fn lost_end(&self, before: &Self) -> Option<String> {
        let is_beginning = || before.text.expose().starts_with(self.text.expose().trim_end());
        if self.has_end || !(before.has_end || is_beginning()) {
            return None;
        }
        let changes = in_use::changes(&before.settings, &self.settings);
        let gone: Vec<_> = changes.iter().map(|change| change.key.as_str()).collect();
        if gone.is_empty() && !before.has_end {
            // Only comments are missing.
            return None;
        }
        let more = if gone.len() > NAMED { ", …" } else { "" };
        let gone = gone[..gone.len().min(NAMED)].join(", ");
        Some(format!(
            "end: the file may have lost its end ({gone}{more}); restore it, or, if that is meant, end it with \
             the table [end], or run `promptgate reload --accept`"
        ))
    }

    /// Returns the keys of the protections that `before` has and this configuration lacks. The
    /// audit log is removed only by `audit.path = ""`, which is explicit.
    pub fn removals(&self, before: &Self) -> Vec<&'static str> {
        let removals = [
            (before.access.is_some() && self.access.is_none(), "access"),
            (before.has_policy_file() && !self.has_policy_file(), "access.cedar"),
            (
                before.needs_sign_in() == Some(true) && self.needs_sign_in() == Some(false),
                "admin.token",
            ),
            (before.auth.required && !self.auth.required, "auth"),
            (self.takes_other_certificates(before), "auth.mtls"),
            (before.server.tls.is_some() && self.server.tls.is_none(), "server.tls"),
            (before.audit.is_some() && self.audit.is_none(), "audit"),
            (self.unenforced(before).next().is_some(), "approvals"),
            (before.approvals.needs_two && !self.approvals.needs_two, "approvals.approvers"),
            (
                before.approvals.requires_reason && !self.approvals.requires_reason,
                "approvals.require_reason",
            ),
            (!before.approvals.allows_unseen && self.approvals.allows_unseen, "approvals.unseen"),
        ];
        removals.into_iter().filter(|(is_removed, _)| *is_removed).map(|(_, key)| key).collect()
    }

    /// Whether a non-empty file of policies is configured.
    fn has_policy_file(&self) -> bool {
        self.access.as_ref().is_some_and(|access| access.rules.has_file())
    }

    /// Whether every certificate of the CA is now accepted as a caller, unlike before.
    fn takes_other_certificates(&self, before: &Self) -> bool {
        let is_open = self.auth.takes_certificates && self.auth.certificates.is_empty();
        is_open && !before.auth.certificates.is_empty()
    }

    /// Whether visitors of the admin API sign in; `None` if the admin API is disabled.
    fn needs_sign_in(&self) -> Option<bool> {
        self.admin.as_ref().map(|admin| admin.token.is_some() || admin.oidc.is_some())
    }

    /// Returns the upstreams whose approvals `before` enforces, and this configuration does not.
    fn unenforced<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a UpstreamId> {
        let is_enforced =
            |config: &Self, id: &UpstreamId| config.approvals.mode_of(id) == Mode::Enforce;
        let stay = before.upstreams.iter().map(|upstream| &upstream.id);
        let stay = stay.filter(|id| self.upstreams.iter().any(|upstream| upstream.id == **id));
        stay.filter(move |id| is_enforced(before, id) && !is_enforced(self, id))
    }
}

/// The number of lost keys that the error names.
const NAMED: usize = 5;

/// Whether the table `[end]` of a file is its last one: only blank lines and comments follow.
pub(super) fn ends_with_end(text: &str) -> bool {
    let content = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let last = text.lines().map(str::trim).rfind(content).unwrap_or_default();
    let header = last.split('#').next().unwrap_or_default().trim_end();
    header.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::trim) == Some("end")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::auth::Certificate;
    use crate::net::tls::Tls;
    use crate::schema_check;

    fn parse(text: &str) -> Config {
        schema_check::parse("g", text, Path::new(""), &[]).unwrap_or_else(|e| panic!("{e}"))
    }

    fn removals(before: &str, after: &str) -> Vec<&'static str> {
        let why = parse(after).unspoken_removals(&parse(before));
        why.into_iter().map(|why| why.split(':').next().unwrap_or_default()).collect()
    }

    fn key() -> String {
        format!("[[auth.api_keys]]\nid = \"ci\"\nhash = \"sha256:{}\"\n", "0".repeat(64))
    }

    const RULE: &str = "[[access.rules]]\nallow = [\"get\"]\ncallers = [\"ci\"]\n";

    #[test]
    fn f6_a_file_that_was_cut_at_any_table_opens_nothing() {
        let whole =
            format!("{}{RULE}[audit]\nlist = false\n[listing]\npage_size = 7\n[end]\n", key());
        let starts: Vec<_> = whole.match_indices("[").map(|(at, _)| at).collect();
        let cuts: Vec<_> =
            starts.iter().filter(|at| whole[..**at].ends_with('\n') || **at == 0).collect();
        assert!(cuts.len() > 4, "{cuts:?}");
        for cut in cuts {
            let why = parse(&whole[..*cut]).lost_end(&parse(&whole));
            assert!(why.is_some(), "{}", &whole[..*cut]);
        }
        let without_end = whole.replace("[end]\n", "");
        assert_eq!(removals(&without_end, ""), ["access", "auth"]);
        assert_eq!(removals(&without_end, &key()), ["access"]);
        assert_eq!(removals(&without_end, RULE), ["auth"]);
        assert_eq!(removals(&without_end, &without_end), Vec::<&str>::new());
        assert_eq!(removals("", &whole), Vec::<&str>::new(), "to close is no removal");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policies.cedar");
        std::fs::write(&file, "forbid(principal, action, resource);\n").unwrap();
        let policies = format!("[access]\ncedar = {:?}\n{RULE}", file.to_str().unwrap());
        assert_eq!(removals(&policies, RULE), ["access.cedar"]);
        assert_eq!(removals(&policies, ""), ["access"]);
        let emptied = folder.path().join("emptied.cedar");
        std::fs::write(&emptied, "// nothing left\n").unwrap();
        let emptied = format!("[access]\ncedar = {:?}\n{RULE}", emptied.to_str().unwrap());
        assert_eq!(removals(&policies, &emptied), ["access.cedar"]);
        let said = format!("[access]\ncedar = \"\"\n{RULE}");
        assert_eq!(removals(&policies, &said), Vec::<&str>::new());
        let signed_in = "[admin]\ntoken = { value = \"t\" }\n";
        assert_eq!(removals(signed_in, ""), ["admin.token"]);
        for said in ["[admin]\ntoken = {}\n", "[admin]\nlisten = \"\"\n"] {
            assert_eq!(removals(signed_in, said), Vec::<&str>::new(), "{said}");
        }
    }

    /// A file in the order of the documentation: each of its last lines closes something.
    const ORDERED: &str = r#"
[server]
expose = ["prompts"]
[upstreams.hr]
transport = "library"
path = "."
[upstreams.lib]
transport = "library"
path = "."
[[auth.api_keys]]
id = "ci"
hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
[[access.rules]]
allow = ["list", "get"]
groups = ["staff"]
upstreams = ["hr"]
[[access.rules]]
deny = ["list", "get"]
prompts = ["lib__draft*"]
[[access.rules]]
allow = ["list", "get"]
upstreams = ["lib"]
groups = ["guests"]
[views.pub]
upstreams = ["lib"]
prompts = ["lib__*"]
[[overlays]]
upstream = "hr"
prompt = "salary"
arguments.tenant = { preset = "acme" }
[[overlays]]
upstream = "lib"
prompt = "old"
drop = true
[[limits]]
name = "calls"
rate = "100/m"
"#;

    #[test]
    fn a_file_that_is_the_beginning_of_the_one_in_use_has_lost_its_end_wherever_it_was_cut() {
        let whole = parse(ORDERED);
        let parsed = |text: &str| Config::parse("g", text, Path::new(""), &[]);
        let ends = (0..ORDERED.trim_end().len()).filter(|at| ORDERED.is_char_boundary(*at));
        let cuts: Vec<_> = ends.filter_map(|at| parsed(&ORDERED[..at]).ok()).collect();
        assert!(cuts.len() > 30, "{}", cuts.len());
        for cut in &cuts {
            let why = cut.lost_end(&whole);
            assert!(why.is_some(), "{}", cut.text.expose());
        }
        // A line feed more behind the cut.
        let cut = parse(
            &(ORDERED.split("[[overlays]]").next().unwrap().to_owned()
                + "
 
"),
        );
        let why = cut.lost_end(&whole).unwrap();
        assert!(why.contains("(limits.1.name") && why.contains("reload --accept"), "{why}");
    }

    #[test]
    fn a_file_with_an_end_or_with_anything_else_and_one_without_its_comments_has_lost_none() {
        let whole = parse(&format!(
            "{ORDERED}# The end.
"
        ));
        let cut = ORDERED.split("[[limits]]").next().unwrap();
        assert_eq!(
            parse(&format!(
                "{cut}[end]
"
            ))
            .lost_end(&whole),
            None
        );
        assert_eq!(
            parse(&format!(
                "{cut}[listing]
page_size = 7
"
            ))
            .lost_end(&whole),
            None
        );
        assert_eq!(parse(ORDERED).lost_end(&whole), None, "a comment");
        assert_eq!(whole.lost_end(&whole), None);
        assert_eq!(parse(&ORDERED.replace("guests", "all")).lost_end(&whole), None);
    }

    #[test]
    fn f6_each_protection_can_be_removed_explicitly() {
        let before = key() + RULE;
        let open_rule = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n";
        let after = format!("[auth]\nrequired = false\n{open_rule}[audit]\npath = \"\"\n");
        assert_eq!(removals(&before, &after), Vec::<&str>::new());
        assert_eq!(parse(&after).removals(&parse(&before)), ["auth", "audit"]);
        assert_eq!(
            removals(&before, &format!("[auth]\nrequired = \"auto\"\n{open_rule}")),
            ["auth"]
        );
    }

    #[test]
    fn f6_tls_is_not_removed_by_leaving_it_out() {
        let mut before = parse("");
        let cert = "cert.pem".into();
        let key = "key.pem".into();
        before.server.tls = Some(Tls { cert, key, client_ca: None });
        let why = parse("").unspoken_removals(&before);
        assert_eq!(why.len(), 1);
        assert!(why[0].starts_with("server.tls: "), "{why:?}");
        let plain = parse("[server]\ntls = { cert = \"\", key = \"\" }\n");
        assert_eq!(plain.unspoken_removals(&before), Vec::<&str>::new());
        assert_eq!(plain.removals(&before), ["server.tls"]);
    }

    #[test]
    fn f6_not_every_certificate_is_a_callers_because_the_subjects_are_gone() {
        let mut before = parse("");
        before.auth.takes_certificates = true;
        let caller = before.auth.stdio.clone();
        before.auth.certificates = vec![Certificate { subject: "CN=ci".to_owned(), caller }];
        let mut after = parse("");
        after.auth.takes_certificates = true;
        let why = after.unspoken_removals(&before);
        assert!(why.len() == 1 && why[0].starts_with("auth.mtls: "), "{why:?}");
        after.auth.takes_all_by_choice = parse("auth.mtls = []\n").auth.takes_all_by_choice;
        assert_eq!(after.unspoken_removals(&before), Vec::<&str>::new());
        assert_eq!(after.removals(&before), ["auth.mtls"]);
        after.auth.takes_certificates = false;
        assert_eq!(after.removals(&before), Vec::<&str>::new());
    }

    #[test]
    fn f6_end_must_be_the_last_table() {
        for good in ["[end]", "a = 1\n[end]\n", "[end] # the end\n\n# of the file\n", "[ end ]\n"] {
            assert!(ends_with_end(good), "{good}");
        }
        for bad in ["", "[end]\na = 1\n", "[end]\n[audit]\n", "end = {}", "# [end]\n"] {
            assert!(!ends_with_end(bad), "{bad}");
        }
        let mistake = |text: &str| {
            schema_check::parse("g", text, Path::new(""), &[]).unwrap_err().to_string()
        };
        assert!(
            mistake("[end]\n[listing]\npage_size = 7\n").contains("end: must be the last table")
        );
        assert!(mistake("[end]\nkey = 1\n").contains("end.key: unknown key"));
    }

    #[test]
    fn f6_approvals_are_not_switched_off_by_leaving_them_out() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("promptgate.lock");
        let upstream = "[upstreams.a]\ntransport = \"library\"\npath = \".\"\n";
        let parse = |text: &str| {
            let config = schema_check::parse("g", &format!("{text}{upstream}"), folder.path(), &[]);
            config.unwrap_or_else(|error| panic!("{error}"))
        };
        let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats");
        std::fs::copy(formats.join("lock-3/promptgate.lock"), &lock).unwrap();
        let enforced = parse("[approvals]\nmode = \"enforce\"\n");
        let removals = |after: &Config| after.unspoken_removals(&enforced).len();
        assert_eq!(removals(&enforced), 0);
        assert_eq!(removals(&parse("")), 1);
        assert_eq!(removals(&parse("[approvals]\nmode = \"warn\"\n")), 0);
        let own = schema_check::parse(
            "g",
            &format!("{upstream}approval = \"off\"\n"),
            folder.path(),
            &[],
        );
        assert_eq!(removals(&own.unwrap()), 0);
        assert_eq!(parse("").removals(&enforced), ["approvals"]);
        std::fs::remove_file(&lock).unwrap();
        let enforce = "[approvals]\nmode = \"enforce\"\n";
        let why = parse(enforce).unspoken_removals(&enforced);
        assert!(why[0].starts_with("approvals.lock: the lock file is gone"), "{why:?}");
    }

    #[test]
    fn who_decides_is_not_relaxed_by_leaving_it_out() {
        let strict = "[approvals]\napprovers = 2\nrequire_reason = true\nunseen = \"refuse\"\n";
        assert_eq!(
            removals(strict, ""),
            ["approvals.approvers", "approvals.require_reason", "approvals.unseen"]
        );
        let spoken = "[approvals]\napprovers = 1\nrequire_reason = false\nunseen = \"ask\"\n";
        assert_eq!(removals(strict, spoken), [""; 0]);
        assert_eq!(removals("", strict), [""; 0]);
    }
}
