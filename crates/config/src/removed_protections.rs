//! Protections that a changed configuration removes. A file that has lost its end, because the disk
//! was full or a template failed, must not open a closed endpoint or console: a reload that removes
//! a protection is rejected, unless the file removes it explicitly.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::lock::NO_FILE;
use super::{Config, in_use};
use domain::approval::Mode;
use domain::name::UpstreamId;

/// The protections of a configuration in use, with which its successor is compared.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Protections {
    has_end: bool,
    /// Whether the lock file approves anything.
    has_lock: bool,
    keys: BTreeSet<String>,
    /// Ids of the upstreams whose approvals are enforced.
    enforced: BTreeSet<String>,
}

impl Config {
    /// Returns the protections of this configuration.
    pub fn protections(&self) -> Protections {
        let is_enforced = |id: &&UpstreamId| self.approvals.mode_of(id) == Mode::Enforce;
        let ids = self.upstreams.iter().map(|upstream| &upstream.id).filter(is_enforced);
        let keys = self.protected().into_iter().filter(|(_, is_there)| *is_there == Some(true));
        Protections {
            has_end: self.has_end,
            has_lock: !self.approvals.lock.is_empty(),
            keys: keys.map(|(key, _)| key.to_owned()).collect(),
            enforced: ids.map(ToString::to_string).collect(),
        }
    }

    /// Returns for each key of a protection whether it is there; `None` where nothing needs it.
    fn protected(&self) -> [(&'static str, Option<bool>); 11] {
        let Self { auth, approvals, .. } = self;
        let has_subjects = !auth.certificates.is_empty();
        [
            ("access", Some(self.access.is_some())),
            ("access.cedar", Some(self.has_policy_file())),
            ("admin.token", self.needs_sign_in()),
            ("auth", Some(auth.required)),
            // Without subjects, every certificate of the CA is accepted as a caller.
            ("auth.mtls", (auth.takes_certificates || has_subjects).then_some(has_subjects)),
            ("server.tls", Some(self.server.tls.is_some())),
            ("audit", Some(self.audit.is_some())),
            ("approvals.approvers", Some(approvals.needs_two)),
            ("approvals.require_reason", Some(approvals.requires_reason)),
            ("approvals.unseen", Some(!approvals.allows_unseen)),
            ("guards", Some(self.guards.iter().any(|guard| guard.is_enforced))),
        ]
    }

    /// Returns why a gateway with the protections `before` would hold this configuration back, one
    /// sentence for each reason. Whether the file is the beginning of the one in use is not known.
    pub fn held_back(&self, before: &Protections) -> Vec<String> {
        let lost_end = before.has_end && !self.has_end;
        let removals = self.unspoken_removals(before).into_iter().map(str::to_owned);
        lost_end.then(|| cut_off("")).into_iter().chain(removals).collect()
    }

    /// Returns why this configuration must not replace one with the protections `before`: those
    /// that it would remove implicitly, one sentence for each.
    pub fn unspoken_removals(&self, before: &Protections) -> Vec<&'static str> {
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
                "access.cedar: the file names no policies any more, so everything that they forbid would be open; if that is meant, \
                 set access.cedar = \"\"",
            ),
            (
                is_removed("admin.token")
                    && self.admin.as_ref().is_some_and(|admin| !admin.is_open_by_choice),
                "admin.token: the file has no way to sign in to the console and the admin API any more, so anyone who \
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
                "approvals: the file enforces no approvals for an upstream any more, so prompts without an approval \
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
                "approvals.unseen: the file no longer refuses texts that no person has seen; if that is meant, set \
                 unseen = \"ask\"",
            ),
            (
                is_removed("guards") && self.guards.is_empty(),
                "guards: the file has no guard any more, so what they refuse would pass; if that is meant, leave a \
                 guard with mode = \"observe\", or restart the gateway",
            ),
            (
                self.approvals.lock.digest == NO_FILE
                    && before.has_lock
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
        Some(cut_off(&format!(" (missing or changed: {gone}{more})")))
    }

    /// Returns the keys of the protections that `before` has and this configuration lacks. The
    /// audit log is removed only by `audit.path = ""`, which is explicit.
    pub fn removals(&self, before: &Protections) -> Vec<&'static str> {
        let open = self.protected().into_iter().filter(|(_, is_there)| *is_there == Some(false));
        let removed = open.map(|(key, _)| key).filter(|key| before.keys.contains(*key));
        let approvals = self.unenforced(before).next().map(|_| "approvals");
        removed.chain(approvals).collect()
    }

    /// Whether a non-empty file of policies is configured.
    fn has_policy_file(&self) -> bool {
        self.access.as_ref().is_some_and(|access| access.rules.has_file())
    }

    /// Whether visitors of the admin API sign in; `None` if the admin API is disabled.
    fn needs_sign_in(&self) -> Option<bool> {
        self.admin.as_ref().map(|admin| admin.token.is_some() || admin.oidc.is_some())
    }

    /// Returns the upstreams whose approvals are no longer enforced.
    fn unenforced<'a>(&'a self, before: &'a Protections) -> impl Iterator<Item = &'a UpstreamId> {
        let ids = self.upstreams.iter().map(|upstream| &upstream.id);
        let were_enforced = ids.filter(|id| before.enforced.contains(id.as_str()));
        were_enforced.filter(|id| self.approvals.mode_of(id) != Mode::Enforce)
    }
}

/// Returns the error of a file that looks as if it had lost its end.
fn cut_off(detail: &str) -> String {
    format!(
        "end: the line `[end]` is missing, so the file may be cut off{detail}. Restore the file. If it is complete, \
         add `[end]`, or run `promptgate reload --accept`"
    )
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
        let why = parse(after).unspoken_removals(&parse(before).protections());
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
        assert!(why.contains("changed: limits.1.name") && why.contains("reload --accept"), "{why}");
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
    fn what_is_held_back_is_known_from_the_recorded_protections_alone() {
        let whole = parse(&format!("{}{RULE}[end]\n", key()));
        let recorded = serde_json::to_string(&whole.protections()).unwrap();
        let recorded: Protections = serde_json::from_str(&recorded).unwrap();
        assert_eq!(whole.held_back(&recorded), [""; 0]);
        let keys = |text: &str| -> Vec<String> {
            let why = parse(text).held_back(&recorded);
            why.iter().map(|why| why.split(':').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(keys(&format!("{}{RULE}", key())), ["end"]);
        assert_eq!(keys(&format!("{}[end]\n", key())), ["access"]);
        assert_eq!(keys(""), ["end", "access", "auth"]);
    }

    #[test]
    fn f6_each_protection_can_be_removed_explicitly() {
        let before = key() + RULE;
        let open_rule = "[[access.rules]]\nallow = [\"list\", \"get\", \"complete\"]\n";
        let after = format!("[auth]\nrequired = false\n{open_rule}[audit]\npath = \"\"\n");
        assert_eq!(removals(&before, &after), Vec::<&str>::new());
        assert_eq!(parse(&after).removals(&parse(&before).protections()), ["auth", "audit"]);
        assert_eq!(
            removals(&before, &format!("[auth]\nrequired = \"auto\"\n{open_rule}")),
            ["auth"]
        );
    }

    #[test]
    fn f6_enforced_guards_are_not_removed_by_leaving_them_out() {
        let guard = |mode: &str| {
            let on = "on = [\"arguments\"]\ndeny = [\"email\"]";
            format!("[[guards]]\nname = \"g\"\nmode = \"{mode}\"\n{on}\n")
        };
        assert_eq!(removals(&guard("enforce"), ""), ["guards"]);
        for (before, after) in
            [(guard("enforce"), guard("observe")), (guard("observe"), String::new())]
        {
            assert_eq!(removals(&before, &after), Vec::<&str>::new(), "{before}");
        }
    }

    #[test]
    fn f6_tls_is_not_removed_by_leaving_it_out() {
        let mut before = parse("");
        let cert = "cert.pem".into();
        let key = "key.pem".into();
        before.server.tls = Some(Tls { cert, key, client_ca: None });
        let why = parse("").unspoken_removals(&before.protections());
        assert_eq!(why.len(), 1);
        assert!(why[0].starts_with("server.tls: "), "{why:?}");
        let plain = parse("[server]\ntls = { cert = \"\", key = \"\" }\n");
        assert_eq!(plain.unspoken_removals(&before.protections()), Vec::<&str>::new());
        assert_eq!(plain.removals(&before.protections()), ["server.tls"]);
    }

    #[test]
    fn f6_not_every_certificate_is_a_callers_because_the_subjects_are_gone() {
        let mut before = parse("");
        before.auth.takes_certificates = true;
        let caller = before.auth.stdio.clone();
        before.auth.certificates = vec![Certificate { subject: "CN=ci".to_owned(), caller }];
        let mut after = parse("");
        after.auth.takes_certificates = true;
        let why = after.unspoken_removals(&before.protections());
        assert!(why.len() == 1 && why[0].starts_with("auth.mtls: "), "{why:?}");
        after.auth.takes_all_by_choice = parse("auth.mtls = []\n").auth.takes_all_by_choice;
        assert_eq!(after.unspoken_removals(&before.protections()), Vec::<&str>::new());
        assert_eq!(after.removals(&before.protections()), ["auth.mtls"]);
        after.auth.takes_certificates = false;
        assert_eq!(after.removals(&before.protections()), Vec::<&str>::new());
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
        assert!(mistake("[end]\n[listing]\npage_size = 7\n").contains("end: must come last"));
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
        let removals = |after: &Config| after.unspoken_removals(&enforced.protections()).len();
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
        assert_eq!(parse("").removals(&enforced.protections()), ["approvals"]);
        std::fs::remove_file(&lock).unwrap();
        let enforce = "[approvals]\nmode = \"enforce\"\n";
        let why = parse(enforce).unspoken_removals(&enforced.protections());
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
